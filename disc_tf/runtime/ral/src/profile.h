// Times of kernel launches, for tools that look for the slow ones. Off (one relaxed load per launch) unless asked for.
#pragma once

#include <atomic>
#include <cstdint>

namespace disc {

extern std::atomic<bool> g_profiling;
inline bool profiling() { return g_profiling.load(std::memory_order_relaxed); }

// Nanoseconds on the clock for a launch: the thread's processor time if it runs `alone`, else the wall clock.
int64_t profile_clock(bool alone);
// Notes one launch: its code, its tasks and how long it took.
void profile_record(const void* code, int64_t tasks, int64_t nanoseconds);

}  // namespace disc
