// Recordings: what is in them, and that threads may run, start, stop and read at the same time.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "test_main.h"
#include "toy_artifact.h"

using disc_test::ToyRun;

namespace {

std::vector<disc_event> events() {
  std::vector<disc_event> found;
  for (int64_t i = 0, n = disc_profile_event(-1, nullptr); i < n; ++i) {
    disc_event e{};
    e.struct_size = sizeof(e);
    disc_profile_event(i, &e);
    if (e.kind != 0) found.push_back(e);
  }
  return found;
}

int64_t of(const std::vector<disc_event>& found, int32_t kind) {
  int64_t n = 0;
  for (const disc_event& e : found) n += e.kind == kind;
  return n;
}

}  // namespace

TEST(a_recording_has_all_of_a_run) {
  const std::string data = disc_test::toy_artifact("recorded");
  disc_exec* exec = disc_load(data.data(), data.size());
  disc_set_num_threads(2);
  ToyRun run(64, 1000, 3);
  EXPECT_EQ(run.execute(exec), 0);
  EXPECT_EQ(disc_profile(2), 0);
  EXPECT_EQ(run.execute(exec), 0);
  EXPECT_EQ(disc_profile(0), 0);
  EXPECT_EQ(run.execute(exec), 0);
  const auto found = events();
  EXPECT_EQ(of(found, DISC_EVENT_RUN), 1);
  EXPECT(of(found, DISC_EVENT_KERNEL) > 0 && of(found, DISC_EVENT_SEGMENT) > 0 && of(found, DISC_EVENT_OUTPUT) > 0);
  for (const disc_event& e : found) EXPECT(e.begin_ns <= e.end_ns && e.thread > 0 && e.executable && e.name);
  disc_event small{};
  small.struct_size = offsetof(disc_event, axis);  // of a host that knows fewer fields
  disc_profile_event(0, &small);
  EXPECT(small.kind == found[0].kind && small.run == 0 && !small.name);
  // what was recorded stays readable when its code is closed, until it is forgotten
  const int64_t live = disc_counter("images_live");
  disc_close(exec);
  EXPECT_EQ(disc_counter("images_live"), live);
  EXPECT(std::string(events()[0].executable).size() > 0);
  EXPECT_EQ(disc_profile(-1), 0);
  EXPECT_EQ(disc_counter("images_live"), live - 1);
  EXPECT_EQ(disc_profile_event(-1, nullptr), 0);
}

TEST(only_launches) {
  const std::string data = disc_test::toy_artifact("launches");
  disc_exec* exec = disc_load(data.data(), data.size());
  ToyRun run(5, 5, 3);
  EXPECT_EQ(disc_profile(1), 0);
  EXPECT_EQ(run.execute(exec), 0);
  EXPECT_EQ(disc_profile(0), 0);
  const auto found = events();
  EXPECT(!found.empty());
  EXPECT_EQ(of(found, DISC_EVENT_KERNEL), static_cast<int64_t>(found.size()));
  disc_close(exec);
  disc_profile(-1);
}

TEST(recordings_start_and_stop_while_runs_are_under_way) {
  disc_set_num_threads(3);
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c)
    clients.emplace_back([&stop, c] {
      while (!stop.load(std::memory_order_relaxed)) {  // loaded and unloaded all the time: texts must not outlive their code
        const std::string data = disc_test::toy_artifact("client" + std::to_string(c));
        disc_exec* exec = disc_load(data.data(), data.size());
        for (int i = 0; i < 5; ++i) {
          ToyRun run(40, 300, 2);
          EXPECT_EQ(run.execute(exec), 0);
        }
        disc_close(exec);
      }
    });
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(disc_profile(i % 3 == 0 ? 1 : 2), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (i % 2) disc_profile(0);
    for (const disc_event& e : events()) EXPECT(std::string(e.executable).size() > 0 && std::string(e.name).size() < 1000);
    if (i % 5 == 0) disc_profile(-1);
  }
  stop = true;
  for (std::thread& t : clients) t.join();
  disc_profile(-1);
}
