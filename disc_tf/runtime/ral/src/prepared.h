// The process-wide cache of packed constants ("prepared" entries).
//
// An entry is known by what it was made of: the code (its hash, ISA and layout, or this executable and index) and the inputs,
// each by its digest (and a hash of its contents, where the host gives them) or else by its buffer. A buffer is kept referenced by the entry, so that no other contents can come to
// lie at that address while the entry may be found.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pack_file.h"
#include "status.h"

namespace disc {

// A packed constant, ready: memory of its own, or a mapped pack. Freed, and its inputs released, with the last reference.
struct PreparedData {
  void* data = nullptr;
  size_t size = 0;
  std::vector<std::function<void()>> releases;

  PreparedData() = default;
  ~PreparedData();
  PreparedData(const PreparedData&) = delete;
  PreparedData& operator=(const PreparedData&) = delete;
  bool allocate(size_t bytes);
  // Takes a pack in the place of memory of its own.
  void adopt(std::unique_ptr<PackMap> pack);
  bool found = false;  // it was there, and was not made by this process

 private:
  std::unique_ptr<PackMap> pack_;
  void free_own();
};

using PreparedRef = std::shared_ptr<PreparedData>;

class PreparedCache {
 public:
  static PreparedCache& get();

  // The entry of that key. If there is none, exactly one caller makes it with `build` (called without locks); the others wait,
  // and try themselves if it fails.
  Status find_or_build(const std::string& key, const std::function<Status(PreparedData*)>& build, PreparedRef* out);

  int64_t built() const { return built_.load(std::memory_order_relaxed); }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork(bool child);

 private:
  struct Entry {
    bool building = false;
    std::weak_ptr<PreparedData> ready;
  };
  std::mutex mutex_;
  std::condition_variable* changed_ = new std::condition_variable;
  std::map<std::string, Entry> entries_;
  std::atomic<int64_t> built_{0};
};

int64_t prepared_live_bytes();  // memory of our own
int64_t packs_mapped_bytes();

}  // namespace disc
