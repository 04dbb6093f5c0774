// Times of what runs do, for tools that look for the slow parts. A run that begins while recording is on calls the RAL through a table of its
// own (`profiled_api_table`); all others have nothing of this on their path but one load for the run.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "disc_ral.h"

namespace disc {

class Executable;

enum ProfileLevel : int { kProfileOff = 0, kProfileLaunches = 1, kProfileAll = 2 };

extern std::atomic<int> g_profile_level;
inline int profile_level() { return g_profile_level.load(std::memory_order_relaxed); }

// Nanoseconds of CLOCK_MONOTONIC; of the calling thread's processor time.
int64_t wall_clock();
int64_t processor_clock();

// The number of the recording that a run takes part in from now on, 0 if there is none. The executable, and so the names of its code, is
// kept until the next start.
uint64_t profile_join(const std::shared_ptr<Executable>& executable);
// Notes one event of a run in recording `number`, if that is not over (stopped is not over); `thread` is filled in. Its texts must live as
// long as the executable. Takes no lock.
void profile_record(uint64_t number, const disc_event& event);

// The table for runs that are recorded.
const disc_api* profiled_api_table();

void lock_profile_for_fork();
void unlock_profile_after_fork(bool child);

// An event of recording `number` from here to the end of the block, if `on`.
class Recorded {
 public:
  Recorded(bool on, uint64_t number, int32_t kind, int64_t run, const char* executable, const char* name, int64_t first = 0, int64_t second = 0)
      : on_(on), number_(number) {
    if (!on) return;
    event_ = {sizeof(disc_event), kind, 0, 0, run, executable, name, wall_clock(), 0, 0, first, second};
  }
  ~Recorded() {
    if (!on_) return;
    event_.end_ns = wall_clock();
    profile_record(number_, event_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  void set_first(int64_t value) { event_.first = value; }
  void set_second(int64_t value) { event_.second = value; }

 private:
  bool on_;
  uint64_t number_;
  disc_event event_{};
};

}  // namespace disc
