#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu.h"
#include "test_main.h"
#include "toy_artifact.h"

using disc_test::ToyRun;

namespace {
disc_exec* load(const std::string& identity) {
  const std::string data = disc_test::toy_artifact(identity);
  disc_exec* exec = disc_load(data.data(), data.size());
  if (!exec) disc_test::fail(__FILE__, __LINE__, disc_last_error());
  return exec;
}
}  // namespace

TEST(a_thousand_loads_with_interleaved_closes) {
  for (const char* loader : {"memfd", "mmap"}) {
    EXPECT_EQ(disc_set_loader(loader), 0);
    const int64_t before = disc_counter("images_live");
    std::vector<disc_exec*> live;
    for (int i = 0; i < 1000; ++i) {
      live.push_back(load("load " + std::to_string(i)));
      EXPECT_EQ(std::string(disc_loader(live.back())), loader);
      if (live.size() < 9) continue;
      const size_t at = static_cast<size_t>(i * 7) % live.size();
      ToyRun run(3, 2, 1, static_cast<float>(i));
      EXPECT_EQ(run.execute(live[at]), 0);
      EXPECT(run.right());
      disc_close(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    EXPECT_EQ(disc_counter("images_live"), before + static_cast<int64_t>(live.size()));
    for (disc_exec* e : live) disc_close(e);
    EXPECT_EQ(disc_counter("images_live"), before);
  }
  disc_set_loader(nullptr);
}

TEST(closing_while_runs_are_inside) {
  for (int round = 0; round < 20; ++round) {
    disc_exec* exec = load("closing " + std::to_string(round));
    disc_run* run = disc_run_begin(exec, nullptr);
    EXPECT(run != nullptr);
    disc_close(exec);
    std::vector<float> w(2, 1.0f);
    const int64_t n = 2;
    const disc_memref value{w.data(), 1, &n};
    EXPECT_EQ(disc_run_set_input(run, 0, &value), 0);
    int32_t remaining = 0;
    EXPECT_EQ(disc_run_advance(run, &remaining), 0);
    EXPECT_EQ(remaining, 2);
    EXPECT_EQ(disc_run_end(run), static_cast<int32_t>(disc::kFailedPrecondition));
  }
}

TEST(loads_and_runs_from_many_threads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&wrong, t] {
      for (int i = 0; i < 60; ++i) {
        disc_exec* e = load("shared " + std::to_string((i + t) % 5));
        ToyRun run(40, 3, 2, static_cast<float>(t));
        if (run.execute(e) != 0 || !run.right()) ++wrong;
        disc_close(e);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(image_that_is_not_code_is_refused) {
  const std::string image = disc_test::toy_image();
  for (const std::string& bad : {std::string("nonsense"), image.substr(0, 200), image.substr(0, 0x1040)}) {
    const std::string data = disc_test::toy_artifact("bad", {}, bad);
    EXPECT(!disc_load(data.data(), data.size()));
    EXPECT(std::strlen(disc_last_error()) > 10);
  }
  EXPECT(!disc_load(nullptr, 0));
}

TEST(targets_are_chosen_by_what_the_machine_has) {
  auto target = [](const char* isa, std::vector<std::string> features) { return disc::TargetCode{isa, std::move(features), nullptr, 0}; };
  size_t index = 99;
  EXPECT(disc::choose_target({target("x86-64-v3", {"no-such-feature"}), target("x86-64-v2", {"sse4_2", "cx16"})}, 0, &index).ok());
  EXPECT_EQ(index, 1u);
  EXPECT(disc::choose_target({target("sparc", {}), target("x86-64-v2", {"ssse3", "sse4.1", "popcnt"})}, 2, &index).ok());
  EXPECT_EQ(index, 1u);
  EXPECT(!disc::choose_target({target("sparc", {})}, 0, &index).ok());
  // Extensions of v4: the machine and the limit decide, whatever the order.
  const std::vector<disc::TargetCode> all = {target("x86-64-v4-vnni-bf16", {"avx512_bf16"}), target("x86-64-v4-vnni", {"avx512_vnni"}),
                                             target("x86-64-v4", {}), target("x86-64-v2", {})};
  const int host = disc::host_isa_level();
  EXPECT(disc::choose_target(all, 0, &index).ok());
  EXPECT_EQ(index, host == 6 ? 0u : host == 5 ? 1u : host == 4 ? 2u : 3u);
  EXPECT(disc::choose_target(all, 4, &index).ok());
  EXPECT_EQ(index, host >= 4 ? 2u : 3u);
  EXPECT(disc::choose_target({target("x86-64-v4-vnni-bf16", {"no-such-feature"}), target("x86-64-v2", {})}, 0, &index).ok());
  EXPECT_EQ(index, 1u);
  for (int level = 2; level <= 6; ++level) EXPECT_EQ(disc::isa_level(disc::isa_name(level)), level);
  EXPECT(!disc::choose_target({}, 0, &index).ok());
  EXPECT(disc::usable_cpus() >= 1);
}
