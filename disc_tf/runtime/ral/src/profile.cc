#include "profile.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "executable.h"
#include "status.h"

namespace disc {

std::atomic<int> g_profile_level{kProfileOff};

namespace {

// What more is recorded in one go is dropped, and counted.
constexpr int64_t kCapacity = int64_t{1} << 20;

struct Slot {
  std::atomic<uint32_t> ready;
  disc_event event;
};

// Recordings are numbered from 1, and take turns with two arrays: who still writes an event of the one before writes where nobody reads.
// Mapped at the first start and kept; pages that were not written, or forgotten, take no memory.
constexpr int kIndexBits = 40;
std::atomic<Slot*> g_slots{nullptr};
std::atomic<uint64_t> g_next{0};  // the recording's number, then how many events it has
// Starts, stops and what is held; never around a record.
std::mutex g_mutex;
std::vector<std::shared_ptr<Executable>>* g_held = nullptr;

int64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return int64_t{1000000000} * t.tv_sec + t.tv_nsec;
}

thread_local int32_t t_thread = 0;  // 0: not asked yet

int32_t this_thread() {
  if (t_thread == 0) t_thread = static_cast<int32_t>(syscall(SYS_gettid));
  return t_thread;
}

Slot* slots_of(uint64_t number) { return g_slots.load(std::memory_order_acquire) + static_cast<int64_t>(number % 2) * kCapacity; }

// Events that were asked to be recorded, those without room included.
int64_t asked() { return static_cast<int64_t>(g_next.load(std::memory_order_acquire) & ((uint64_t{1} << kIndexBits) - 1)); }

void forget() {
  std::vector<std::shared_ptr<Executable>> dropped;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    if (!g_held) g_held = new std::vector<std::shared_ptr<Executable>>;
    dropped.swap(*g_held);
    if (g_slots.load(std::memory_order_relaxed)) {
      // A number that no run has joined is taken again: so recordings that follow each other never have the same array, though what was
      // between them was a call that only forgets.
      const uint64_t last = g_next.load(std::memory_order_relaxed) >> kIndexBits;
      const uint64_t number = last != 0 && dropped.empty() ? last : last + 1;
      madvise(g_slots.load(std::memory_order_relaxed), 2 * sizeof(Slot) * kCapacity, MADV_DONTNEED);  // zeros from now on
      g_next.store(number << kIndexBits, std::memory_order_release);
    }
  }
  // images go here, outside of the lock
}

bool provide_slots() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_slots.load(std::memory_order_relaxed)) return true;
  void* p = mmap(nullptr, 2 * sizeof(Slot) * kCapacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  g_slots.store(static_cast<Slot*>(p), std::memory_order_release);
  return true;
}

}  // namespace

int64_t wall_clock() { return clock_ns(CLOCK_MONOTONIC); }
int64_t processor_clock() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

uint64_t profile_join(const std::shared_ptr<Executable>& executable) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (profile_level() == kProfileOff || !g_held) return 0;
  if (std::find(g_held->begin(), g_held->end(), executable) == g_held->end()) g_held->push_back(executable);
  return g_next.load(std::memory_order_relaxed) >> kIndexBits;
}

void profile_record(uint64_t number, const disc_event& event) {
  uint64_t next = g_next.load(std::memory_order_relaxed);
  do {
    if (next >> kIndexBits != number) return;
  } while (!g_next.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel, std::memory_order_relaxed));
  const auto i = static_cast<int64_t>(next & ((uint64_t{1} << kIndexBits) - 1));
  if (i >= kCapacity) return;
  Slot* slots = slots_of(number);
  slots[i].event = event;
  slots[i].event.thread = this_thread();
  slots[i].ready.store(1, std::memory_order_release);
}

void lock_profile_for_fork() { g_mutex.lock(); }
void unlock_profile_after_fork(bool child) {
  if (child) {
    g_profile_level.store(kProfileOff, std::memory_order_relaxed);  // its parent reads what it records
    t_thread = 0;
  }
  g_mutex.unlock();
}

}  // namespace disc

int32_t disc_profile(int32_t level) {
  disc::g_profile_level.store(disc::kProfileOff, std::memory_order_relaxed);
  if (level == 0) return 0;
  if (level > 0 && !disc::provide_slots())
    return disc::set_last_error(disc::Status(disc::kResourceExhausted, "no memory for a profile"));
  disc::forget();
  if (level > 0) disc::g_profile_level.store(std::min<int>(level, disc::kProfileAll), std::memory_order_relaxed);
  return 0;
}

int64_t disc_profile_event(int64_t index, disc_event* out) {
  const int64_t count = std::min(disc::asked(), disc::kCapacity);
  if (index < 0 || index >= count || !out) return count;
  const disc::Slot& slot = disc::slots_of(disc::g_next.load(std::memory_order_acquire) >> disc::kIndexBits)[index];
  disc_event event{};
  if (slot.ready.load(std::memory_order_acquire)) event = slot.event;  // else it is being written: of kind 0
  const auto size = std::min<size_t>(out->struct_size, sizeof(event));
  event.struct_size = out->struct_size;
  std::memcpy(out, &event, size);
  return count;
}

int64_t disc_profile_dropped(void) { return std::max<int64_t>(0, disc::asked() - disc::kCapacity); }
