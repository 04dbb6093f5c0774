// Whether other processes want the CPUs that runs use, told from involuntary context switches of the threads that take part.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace disc {

// Involuntary context switches of the calling thread so far.
using SwitchCounter = int64_t (*)();
int64_t involuntary_switches();

// Reads one thread's counter, rarely enough that short runs do not pay for it.
class SwitchMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Switches since the last reading; 0 if that was a moment ago, or so long ago that they need not be of a run.
  int64_t take(SwitchCounter counter, Time now);

 private:
  int64_t seen_ = -1;
  Time last_{};
};

// Whether threads are preempted as often as on CPUs shared with processes that compute. Waiting actively then uses up the time that the
// scheduler gives to the process, and the thread that has work is the one that waits for a CPU.
class Contention {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kWindow{20};
  // The scheduler's slices are a few milliseconds: a shared CPU preempts at least this often in a window, the kernel's own work does not.
  static constexpr int64_t kSharedCpu = 3;

  // Counts `switches` of any thread of a run.
  void note(int64_t switches, Time now);
  // Whether active waiting costs nobody anything: the latest window was without such preemption.
  bool calm() const { return calm_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;  // the end of a window; tried, never waited for
  std::atomic<int64_t> count_{0}, begin_{0};
  std::atomic<bool> calm_{true};
};

}  // namespace disc
