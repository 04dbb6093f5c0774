#include "contention.h"

#include <sys/resource.h>

namespace disc {
namespace {

constexpr std::chrono::milliseconds kBetweenReadings{1}, kForgotten{50};

int64_t nanoseconds(std::chrono::nanoseconds d) { return d.count(); }

}  // namespace

int64_t involuntary_switches() {
  rusage usage{};
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

int64_t SwitchMeter::take(SwitchCounter counter, Time now) {
  const auto passed = now - last_;
  if (seen_ >= 0 && passed < kBetweenReadings) return 0;
  const int64_t before = seen_;
  seen_ = counter();
  last_ = now;
  return before >= 0 && passed <= kForgotten ? seen_ - before : 0;
}

void Contention::note(int64_t switches, Time now) {
  const int64_t at = nanoseconds(now.time_since_epoch());
  if (switches > 0) count_.fetch_add(switches, std::memory_order_relaxed);
  const int64_t begin = begin_.load(std::memory_order_relaxed);
  if (at - begin < nanoseconds(kWindow)) return;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || begin_.load(std::memory_order_relaxed) != begin) return;
  begin_.store(at, std::memory_order_relaxed);
  const int64_t count = count_.exchange(0, std::memory_order_relaxed);
  // A window that took long is judged by its rate.
  calm_.store(count * nanoseconds(kWindow) < kSharedCpu * (at - begin), std::memory_order_relaxed);
}

}  // namespace disc
