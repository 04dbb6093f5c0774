// Staged runs: inputs one by one, from many threads, ended anywhere; and files that bring their constants along.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "test_main.h"
#include "toy_artifact.h"

namespace {

// One staged run of the toy: which results came, and in what order.
struct Staged {
  std::vector<float> w, x;
  int64_t n;
  std::array<int64_t, 2> x_dims;
  int64_t w_size;
  std::vector<float> results[3];
  std::vector<int32_t> sent;
  disc_run* run = nullptr;

  Staged(disc_exec* exec, int64_t rows, int64_t columns, int64_t count)
      : w(static_cast<size_t>(columns)), x(static_cast<size_t>(rows * columns)), n(count), x_dims{rows, columns}, w_size(columns) {
    for (size_t i = 0; i < w.size(); ++i) w[i] = 1.0f + static_cast<float>(i % 13);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 601) - 300.0f;
    disc_run_options o{};
    o.struct_size = sizeof(o);
    o.user = this;
    o.alloc_output = [](void* user, int32_t i, int32_t, const int64_t*, int64_t bytes) -> void* {
      auto& v = static_cast<Staged*>(user)->results[i];
      v.assign(static_cast<size_t>(bytes) / 4, -1.0f);
      return v.data();
    };
    o.send_output = [](void* user, int32_t i) -> int32_t {
      static_cast<Staged*>(user)->sent.push_back(i);
      return 0;
    };
    o.retain_input = [](void* user, int32_t) -> void* { return new std::vector<float>(static_cast<Staged*>(user)->w); };
    o.release_input = [](void* handle) { delete static_cast<std::vector<float>*>(handle); };
    run = disc_run_begin(exec, &o);
  }
  ~Staged() {
    if (run) disc_run_end(run);
  }
  int32_t give(int32_t index) {
    const disc_memref values[] = {{w.data(), 1, &w_size}, {x.data(), 2, x_dims.data()}, {&n, 0, nullptr}};
    if (const int32_t rc = disc_run_set_input(run, index, &values[index]); rc != 0) return rc;
    return disc_run_advance(run, nullptr);
  }
  int32_t end() {
    disc_run* r = run;
    run = nullptr;
    return disc_run_end(r);
  }
  bool right() const {
    for (size_t i = 0; i < x.size(); ++i)
      if (results[0][i] != x[i] * (2.0f * w[i % w.size()])) return false;
    return results[1] == x && results[2].size() == static_cast<size_t>(n);
  }
};

struct File {
  explicit File(const std::string& bytes) : path("/tmp/disc_ral_test_" + std::to_string(getpid()) + ".disc") {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~File() { unlink(path.c_str()); }
  std::string path;
};

disc_exec* load(const std::string& bytes) {
  disc_exec* exec = disc_load(bytes.data(), bytes.size());
  if (!exec) disc_test::fail(__FILE__, __LINE__, disc_last_error());
  return exec;
}

}  // namespace

TEST(results_come_in_every_order_of_arrival) {
  disc_exec* exec = load(disc_test::toy_artifact("staged orders"));
  std::array<int32_t, 3> order{0, 1, 2};
  do {
    Staged s(exec, 30, 7, 5);
    for (size_t k = 0; k < order.size(); ++k) {
      EXPECT_EQ(s.give(order[k]), 0);
      bool has[3] = {};
      for (size_t j = 0; j <= k; ++j) has[order[j]] = true;
      const size_t want = has[0] && has[1] ? (has[2] ? 3u : 2u) : 0u;
      EXPECT_EQ(s.sent.size(), want);
    }
    EXPECT_EQ(s.end(), 0);
    EXPECT(s.right());
  } while (std::next_permutation(order.begin(), order.end()));
  disc_close(exec);
}

TEST(staged_runs_of_many_threads) {
  disc_exec* exec = load(disc_test::toy_artifact("staged threads", std::string(32, 's')));
  disc_set_num_threads(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        Staged s(exec, 40 + t, 200, 3 + i);
        for (int k = 0; k < 3; ++k)
          if (s.give((t + i + k) % 3) != 0) ++wrong;
        if (s.end() != 0 || !s.right()) ++wrong;
        Staged abandoned(exec, 40, 200, 3);  // ends after its first segment
        if (abandoned.give(0) != 0 || abandoned.give(1) != 0 || abandoned.sent.size() != 2) ++wrong;
        if (abandoned.end() != 9) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT(disc_counter("arena_in_use_bytes") < 64 << 10);  // scratch of the workers: runs would have left ten times as much
  disc_close(exec);
}

TEST(a_run_may_change_threads_between_calls) {
  disc_exec* exec = load(disc_test::toy_artifact("staged moves"));
  Staged s(exec, 50, 9, 4);
  for (int32_t i : {2, 0, 1}) std::thread([&] { s.give(i); }).join();
  EXPECT_EQ(s.end(), 0);
  EXPECT(s.right());
  disc_close(exec);
}

TEST(closing_does_not_end_a_run) {
  disc_exec* exec = load(disc_test::toy_artifact("staged close"));
  Staged s(exec, 5, 9, 4);
  disc_close(exec);
  for (int32_t i : {0, 1, 2}) EXPECT_EQ(s.give(i), 0);
  EXPECT_EQ(s.end(), 0);
  EXPECT(s.right());
}

TEST(a_file_brings_its_constants) {
  const std::vector<float> w{1, 2, 3, 4, 5};
  const File file(disc_test::toy_file("file", w));
  disc_exec* exec = disc_load_file(file.path.c_str());
  if (!exec) disc_test::fail(__FILE__, __LINE__, disc_last_error());
  EXPECT(disc_arg_bound(exec, 0) == 1 && disc_arg_bound(exec, 1) == 0 && disc_arg_bound(exec, 7) == 0);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        Staged s(exec, 3, 5, 2);
        if (s.give(2) != 0 || s.give(1) != 0 || s.end() != 0 || !s.right()) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
  Staged twice(exec, 3, 5, 2);
  EXPECT_EQ(twice.give(0), 3);
  EXPECT(std::string(disc_last_error()).find("has its value in the file") != std::string::npos);
  Staged last(exec, 3, 5, 2);
  disc_close(exec);  // the mapping lives as long as the run
  EXPECT_EQ(last.give(1), 0);
  EXPECT_EQ(last.give(2), 0);
  EXPECT_EQ(last.end(), 0);
  EXPECT(last.right());
}

TEST(files_that_do_not_fit_are_refused) {
  EXPECT(disc_load_file("/tmp/no such file.disc") == nullptr);
  EXPECT_EQ(disc_last_error_code(), 5);
  EXPECT(disc_load_file("/tmp") == nullptr);
  EXPECT(disc_load_file(nullptr) == nullptr);
  const std::vector<float> w{1, 2, 3, 4, 5};
  for (uint64_t shift : {uint64_t{4}, uint64_t{64}, uint64_t{1} << 40, uint64_t{1} << 63}) {
    const File file(disc_test::toy_file("bad file", w, shift));
    EXPECT(disc_load_file(file.path.c_str()) == nullptr);
    EXPECT_EQ(disc_last_error_code(), 15);
  }
  const std::string good = disc_test::toy_file("cut file", w);
  for (size_t cut : {size_t{0}, size_t{63}, size_t{200}, good.size() - 1}) {
    const File file(good.substr(0, cut));
    EXPECT(disc_load_file(file.path.c_str()) == nullptr);
  }
}
