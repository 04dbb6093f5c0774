#include "thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>
#include <vector>

#include "float_mode.h"
#include "fork.h"
#include "memory.h"
#include "test_main.h"

using disc::ThreadPool;

namespace {

// Counts every task once and checks scratch for intruders.
void mark(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  auto* seen = static_cast<unsigned char*>(a->bufs[0]);
  auto* mine = static_cast<int64_t*>(scratch);
  for (int64_t i = begin; i < end; ++i) {
    for (int k = 0; k < 8; ++k) mine[k] = i + k;
    ++seen[i];
    for (int k = 0; k < 8; ++k)
      if (mine[k] != i + k) seen[i] = 100;
  }
}

bool launch(int64_t tasks, int64_t grain, int cap = 0) {
  std::vector<unsigned char> seen(static_cast<size_t>(tasks));
  void* bufs[] = {seen.data()};
  const disc_kernel_args args{bufs, nullptr, nullptr};
  alignas(64) int64_t scratch[8];
  ThreadPool::Work work;
  work.fn = mark;
  work.args = &args;
  work.tasks = tasks;
  work.grain = grain;
  work.scratch_bytes = sizeof(scratch);
  work.scratch = scratch;
  work.max_threads = cap;
  ThreadPool& pool = ThreadPool::get();
  pool.run(work, pool.width(work));
  for (unsigned char c : seen)
    if (c != 1) return false;
  return true;
}

// Sleeps, so that every thread gets some of the tasks however busy the machine is.
void thread_ids(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  auto* ids = static_cast<std::thread::id*>(a->bufs[0]);
  for (int64_t i = begin; i < end; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ids[i] = std::this_thread::get_id();
  }
}

void float_bits(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  auto* modes = static_cast<uint32_t*>(a->bufs[0]);
  for (int64_t i = begin; i < end; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    modes[i] = _mm_getcsr() & 0xFFC0;  // without the sticky flags
  }
}

// Adds up what it was given: how many tasks, and their numbers modulo 2^64.
void add_up(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  auto* sums = static_cast<std::atomic<uint64_t>*>(a->bufs[0]);
  const auto first = static_cast<uint64_t>(begin), count = static_cast<uint64_t>(end - begin);
  if (begin >= end) sums[2].fetch_add(1);
  sums[0].fetch_add(count);
  sums[1].fetch_add(first * count + (count % 2 ? count * ((count - 1) / 2) : count / 2 * (count - 1)));
}

// A thread begins with its own share: gives the number of the share of the first tasks that each thread took.
void first_of_thread(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  auto* waiting = static_cast<std::atomic<int>*>(a->bufs[0]);
  auto* firsts = static_cast<std::atomic<int64_t>*>(a->bufs[1]);
  thread_local int64_t seen = -1;
  const auto run = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a->bufs[2]));
  if (seen != run) {
    seen = run;
    firsts[waiting->fetch_add(-1) - 1] = begin;
  }
  // until all threads have begun nobody goes on to the shares of others
  const auto end_of_patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (waiting->load() > 0 && std::chrono::steady_clock::now() < end_of_patience) std::this_thread::yield();
  (void)end;
}

// All of `tasks` by the pool, as many threads as it gives them.
template <typename F>
void run_all(F fn, void** bufs, int64_t tasks, int64_t grain = 1) {
  const disc_kernel_args args{bufs, nullptr, nullptr};
  ThreadPool::Work work;
  work.fn = fn;
  work.args = &args;
  work.tasks = tasks;
  work.grain = grain;
  ThreadPool& pool = ThreadPool::get();
  pool.run(work, pool.width(work));
}

}  // namespace

TEST(more_tasks_than_fit_into_half_a_word) {
  for (int threads : {1, 2, 3}) {
    ThreadPool::get().set_threads(threads);
    for (int64_t tasks : {(int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 32) + 5, (int64_t{1} << 40) + 12345}) {
      for (int64_t grain : {int64_t{1} << 24, int64_t{1} << 39}) {
        std::atomic<uint64_t> sums[3]{};
        void* bufs[] = {sums};
        run_all(add_up, bufs, tasks, std::max(grain, tasks >> 12));
        const auto n = static_cast<uint64_t>(tasks);
        EXPECT_EQ(sums[0].load(), n);
        EXPECT_EQ(sums[1].load(), n % 2 ? n * ((n - 1) / 2) : n / 2 * (n - 1));
        EXPECT_EQ(sums[2].load(), 0u);
      }
    }
  }
}

TEST(each_thread_begins_with_its_own_share) {
  ThreadPool::get().set_threads(3);
  for (int64_t run = 0; run < 20; ++run) {
    std::atomic<int> waiting{3};
    std::atomic<int64_t> firsts[3]{};
    void* bufs[] = {&waiting, firsts, reinterpret_cast<void*>(static_cast<uintptr_t>(run))};
    run_all(first_of_thread, bufs, 300);
    std::set<int64_t> shares;
    for (auto& f : firsts) shares.insert(f.load());
    EXPECT(shares == (std::set<int64_t>{0, 100, 200}));
  }
}

TEST(every_task_runs_once) {
  disc::install_fork_handlers();
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool::get().set_threads(threads);
    for (int64_t tasks : {2, 3, 64, 1000, 4099})
      for (int64_t grain : {1, 5, 100, 5000}) EXPECT(launch(tasks, grain));
  }
}

TEST(width_honours_grain_cap_and_runs) {
  ThreadPool& pool = ThreadPool::get();
  pool.set_threads(8);
  ThreadPool::Work w;
  w.tasks = 100;
  w.grain = 100;
  EXPECT_EQ(pool.width(w), 1);
  w.grain = 60;
  EXPECT_EQ(pool.width(w), 2);
  w.grain = 1;
  EXPECT_EQ(pool.width(w), 8);
  w.max_threads = 3;
  EXPECT_EQ(pool.width(w), 3);
  w.max_threads = 0;
  const ThreadPool::ActiveRun a, b;
  EXPECT_EQ(pool.width(w), 4);
}

namespace {

using disc::Contention;
using disc::SwitchMeter;
using std::chrono::milliseconds;

Contention::Time at(int ms) { return Contention::Time(milliseconds(ms)); }

int64_t g_switches = 0;
int64_t fake_switches() { return g_switches; }

}  // namespace

TEST(a_meter_counts_between_readings) {
  SwitchMeter meter;
  g_switches = 5;
  EXPECT_EQ(meter.take(fake_switches, at(1000)), 0);  // nothing is known of the time before
  g_switches = 9;
  EXPECT_EQ(meter.take(fake_switches, at(1000)), 0);  // a moment ago
  EXPECT_EQ(meter.take(fake_switches, at(1010)), 4);
  EXPECT_EQ(meter.take(fake_switches, at(1020)), 0);
  g_switches = 50;
  EXPECT_EQ(meter.take(fake_switches, at(1120)), 0);  // too long ago to be of a run
  g_switches = 51;
  EXPECT_EQ(meter.take(fake_switches, at(1130)), 1);
}

TEST(contention_is_a_rate_of_switches) {
  const struct {
    int every_ms, switches, windows;
    bool calm;
  } cases[] = {
      {1, 0, 5, true}, {10, 1, 5, true},    // two in a window
      {5, 1, 5, false}, {1, 1, 5, false},   // four, twenty
      {100, 5, 3, true}, {100, 20, 3, false},  // readings that are rarer than windows
  };
  for (const auto& c : cases) {
    Contention contention;
    EXPECT_EQ(contention.calm(), true);
    int now = 1000;
    contention.note(0, at(now));
    for (const int end = now + std::max(20, c.every_ms) * c.windows; now < end;) contention.note(c.switches, at(now += c.every_ms));
    EXPECT_EQ(contention.calm(), c.calm);
    for (int i = 0; i < 3; ++i) contention.note(0, at(now += 20));  // the others have ended
    EXPECT_EQ(contention.calm(), true);
  }
}

TEST(all_threads_take_part) {
  ThreadPool::get().set_threads(4);
  std::vector<std::thread::id> ids(200);
  void* bufs[] = {ids.data()};
  run_all(thread_ids, bufs, 200);
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 4u);
}

TEST(many_callers_at_once) {
  ThreadPool::get().set_threads(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 5; ++t)
    callers.emplace_back([&wrong] {
      const ThreadPool::ActiveRun active;
      for (int i = 0; i < 400; ++i)
        if (!launch(50 + i % 200, 1)) ++wrong;
    });
  for (auto& c : callers) c.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(sleeping_workers_wake_up) {
  ThreadPool::get().set_threads(3);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT(launch(300, 1));
  }
}

TEST(workers_flush_denormals_and_callers_get_their_mode_back) {
  ThreadPool::get().set_threads(3);
  const uint32_t before = _mm_getcsr();
  std::vector<uint32_t> modes(64);
  void* bufs[] = {modes.data()};
  {
    const disc::FloatMode mode;
    run_all(float_bits, bufs, 64);
  }
  for (uint32_t m : modes) EXPECT_EQ(m, disc::kKernelMxcsr);
  EXPECT_EQ(_mm_getcsr(), before);
}

#ifndef DISC_TSAN  // ThreadSanitizer does not follow threads of a forked child
TEST(fork_gives_the_child_a_pool_of_its_own) {
  disc::install_fork_handlers();
  ThreadPool::get().set_threads(3);
  EXPECT(launch(1000, 1));
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {  // locks are being taken while we fork
    while (!stop) {
      const auto b = disc::MemoryPool::get().acquire(10000);
      disc::MemoryPool::get().release(b);
      launch(100, 1);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      bool ok = ThreadPool::get().workers() == 0;
      for (int k = 0; k < 20; ++k) ok = ok && launch(1000, 1);
      _exit(ok && ThreadPool::get().workers() == 2 ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}
#endif

// A figure, not a test: what a launch costs when the work is nothing.
TEST(launch_overhead_is_printed) {
  ThreadPool::get().set_threads(2);
  unsigned char seen[8] = {};
  void* bufs[] = {seen};
  const disc_kernel_args args{bufs, nullptr, nullptr};
  alignas(64) int64_t scratch[8];
  ThreadPool::Work work;
  work.fn = mark;
  work.args = &args;
  work.tasks = 8;
  work.scratch = scratch;
  work.scratch_bytes = sizeof(scratch);
  ThreadPool& pool = ThreadPool::get();
  constexpr int kTimes = 20000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) pool.run(work, 2);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  std::printf("     a launch on two threads: %.2f us\n", spent.count() / kTimes);
}
