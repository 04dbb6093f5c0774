// The process's worker threads. A launch borrows idle workers, hands each of them the job through its own mailbox, takes part
// itself and takes back the mail that nobody opened: it never waits for a thread that has not begun, nor for another run.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "contention.h"
#include "disc_ral_abi.h"

namespace disc {

class ThreadPool {
 public:
  static ThreadPool& get();

  // Threads that a launch may use, its caller included: the API's number, DISC_TF_NUM_THREADS, or the CPUs there are.
  int threads();
  void set_threads(int n);  // 0: automatic
  int workers() const { return workers_.load(std::memory_order_relaxed); }

  // Counts runs, so that they share the workers fairly and spinning stops when there are more runs than threads.
  class ActiveRun {
   public:
    ActiveRun() : pool_(ThreadPool::get()) { pool_.runs_.fetch_add(1, std::memory_order_relaxed); }
    ~ActiveRun() {
      if (pool_.runs_.fetch_sub(1, std::memory_order_relaxed) == 1) pool_.measure_caller();
    }
    ActiveRun(const ActiveRun&) = delete;
    ActiveRun& operator=(const ActiveRun&) = delete;

   private:
    ThreadPool& pool_;
  };

  struct Work {
    disc_kernel_fn fn = nullptr;
    const disc_kernel_args* args = nullptr;
    int64_t tasks = 0, grain = 1, scratch_bytes = 0;
    int max_threads = 0;       // 0: no cap
    void* scratch = nullptr;   // the caller's
  };
  // How many threads `work` may use; 1 means that run() would only call the kernel.
  int width(const Work& work);
  // Runs all tasks; returns when no thread is inside any more. Workers bring their own scratch.
  void run(const Work& work, int width);

  // Around fork(): the child has no workers, so it gets a pool without any.
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

 private:
  static constexpr int kMaxWorkers = 255;
  struct Job;
  struct Worker;

  static void* thread_main(void* worker);
  void start_workers(int count);
  int claim(int count, Worker** out);
  void set_idle(int index);
  // A thread tells how often it was preempted. Callers do when no other run is left: many runs preempt each other.
  void measure_caller();
  void measure(SwitchMeter& meter);
  // Whether a caller waits actively for its workers still, after this long; not with more runs than threads.
  bool worth_waiting(std::chrono::steady_clock::duration passed) const;
  // Whether an idle worker stays awake still; not while each of the threads has a run of its own, since no launch is given more then.
  bool wanted(std::chrono::steady_clock::duration passed) const;

  static std::atomic<ThreadPool*> instance_;
  Contention contention_;
  std::mutex mutex_;  // starts of threads
  std::atomic<int> limit_{0}, workers_{0}, runs_{0};
  std::array<std::atomic<uint64_t>, (kMaxWorkers + 64) / 64> idle_{};
  std::array<Worker*, kMaxWorkers> slots_{};
};

}  // namespace disc
