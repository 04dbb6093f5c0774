#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "test_main.h"
#include "toy_artifact.h"

using disc_test::ToyRun;

namespace {
struct Toy {
  explicit Toy(const std::string& identity, const std::string& digest = {}) {
    const std::string data = disc_test::toy_artifact(identity, digest);
    exec = disc_load(data.data(), data.size());
    if (!exec) disc_test::fail(__FILE__, __LINE__, disc_last_error());
  }
  ~Toy() { disc_close(exec); }
  disc_exec* exec;
};
}  // namespace

TEST(runs_of_many_shapes) {
  const Toy toy("shapes");
  disc_set_num_threads(3);
  for (auto [r, c] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {0, 3}, {3, 0}, {2, 64}, {999, 5}, {64, 1000}}) {
    ToyRun run(r, c, 7);
    EXPECT_EQ(run.execute(toy.exec), 0);
    EXPECT(run.right());
  }
}

TEST(the_lowest_check_is_reported) {
  const Toy toy("checks");
  disc_set_num_threads(4);
  for (int i = 0; i < 50; ++i) {
    ToyRun run(400, 3, 1);
    run.x[5] = 777.0f;
    run.x[1190] = 666.0f;
    EXPECT_EQ(run.execute(toy.exec), 11);
    EXPECT_EQ(std::string(disc_last_error()), "666 is not allowed");
    EXPECT_EQ(std::string(disc_last_error_node()), "scale/Assert");
  }
  ToyRun run(4, 3, 1);
  run.w_size = 2;
  EXPECT_EQ(run.execute(toy.exec), 3);
}

TEST(sizes_that_overflow_are_an_error) {
  const Toy toy("overflow");
  for (int64_t n : {int64_t{1} << 62, int64_t{1} << 61, int64_t{1} << 59}) {
    ToyRun run(2, 2, n);
    EXPECT_EQ(run.execute(toy.exec), 8);
  }
  EXPECT_EQ(disc_counter("arena_in_use_bytes"), [] {
    ToyRun run(1, 1, 1);
    return disc_counter("arena_in_use_bytes");
  }());
}

TEST(concurrent_runs_share_one_packed_constant) {
  const Toy toy("prepared", std::string(32, 'p'));
  disc_set_num_threads(3);
  const int64_t before = disc_counter("prepared_built");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 5; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        ToyRun run(60, 300, 3);
        if (run.execute(toy.exec) != 0 || !run.right()) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(disc_counter("prepared_built"), before + 1);
}

TEST(without_retain_packed_constants_are_not_remembered) {
  const Toy toy("no retain");
  ToyRun run(2, 3, 1);
  run.retain = false;
  for (float v : {1.0f, 5.0f, 9.0f}) {  // the same buffer with other contents
    for (float& w : run.w) w = v;
    EXPECT_EQ(run.execute(toy.exec), 0);
    EXPECT(run.right());
  }
}

TEST(a_cap_of_one_thread_is_kept) {
  const Toy toy("cap");
  disc_set_num_threads(4);
  const int64_t before = disc_counter("parallel_launches");
  ToyRun run(5000, 4, 1);
  run.max_threads = 1;
  EXPECT_EQ(run.execute(toy.exec), 0);
  EXPECT(run.right());
  EXPECT_EQ(disc_counter("parallel_launches"), before);
}

TEST(settings_are_checked) {
  EXPECT(disc_set_num_threads(-1) != 0);
  EXPECT(disc_set_target("x86-64-v9") != 0);
  EXPECT(disc_set_loader("teleport") != 0);
  EXPECT_EQ(disc_counter("no such counter"), -1);
  EXPECT(disc_ral_get(99) == nullptr);
  EXPECT(disc_ral_get(DISC_RAL_API_VERSION)->load == disc_load);
}

TEST(signature_queries) {
  const Toy toy("signature", std::string(32, 's'));
  disc_tensor_info info;
  EXPECT_EQ(disc_num_args(toy.exec), 3);
  EXPECT_EQ(disc_arg(toy.exec, 0, &info), 0);
  EXPECT(info.digest && info.digest[0] == 's' && info.kind == DISC_KIND_CONST && info.rank == 1 && info.dims[0] == -1);
  EXPECT_EQ(disc_result(toy.exec, 2, &info), 0);
  EXPECT(info.kind == DISC_KIND_HOST && std::strcmp(info.name, "filled") == 0);
  EXPECT(disc_arg(toy.exec, 3, &info) != 0);
}
