#include "profile.h"

#include <dlfcn.h>
#include <time.h>

#include <mutex>
#include <string>
#include <vector>

#include "disc_ral.h"

namespace disc {

std::atomic<bool> g_profiling{false};

namespace {

struct Launch {
  const void* code;
  std::string name;
  int64_t tasks, nanoseconds;
};

std::mutex g_mutex;
std::vector<Launch>* g_launches = nullptr;

}  // namespace

int64_t profile_clock(bool alone) {
  timespec t{};
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return int64_t{1000000000} * t.tv_sec + t.tv_nsec;
}

void profile_record(const void* code, int64_t tasks, int64_t nanoseconds) {
  Dl_info info{};
  const bool named = dladdr(const_cast<void*>(code), &info) != 0 && info.dli_sname && info.dli_saddr == code;
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_launches) g_launches->push_back({code, named ? info.dli_sname : "", tasks, nanoseconds});
}

}  // namespace disc

void disc_profile(int32_t on) {
  {
    const std::lock_guard<std::mutex> lock(disc::g_mutex);
    if (!disc::g_launches) disc::g_launches = new std::vector<disc::Launch>;
    if (on) disc::g_launches->clear();
  }
  disc::g_profiling.store(on != 0, std::memory_order_relaxed);
}

int64_t disc_profile_launch(int64_t index, const char** name, int64_t* tasks, int64_t* nanoseconds) {
  const std::lock_guard<std::mutex> lock(disc::g_mutex);
  const int64_t count = disc::g_launches ? static_cast<int64_t>(disc::g_launches->size()) : 0;
  if (index < 0 || index >= count) return count;
  const disc::Launch& launch = (*disc::g_launches)[static_cast<size_t>(index)];
  *name = launch.name.c_str();
  *tasks = launch.tasks;
  *nanoseconds = launch.nanoseconds;
  return count;
}
