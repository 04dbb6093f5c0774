// Process-wide pool of large buffers: arenas, worker scratch. Checked out per run, given back to the system by decay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace disc {

constexpr size_t kAlignment = 64;

// An aligned buffer outside the pool (packed constants), null if there is no memory. `size` must be passed to the free.
void* system_alloc(size_t size);
void system_free(void* p, size_t size);

class MemoryPool {
 public:
  static MemoryPool& get();

  struct Block {
    void* data = nullptr;
    size_t size = 0;
  };
  // 64-byte aligned, at least `size` bytes, uninitialised; data is null if there is no memory.
  Block acquire(size_t size);
  void release(Block block);
  void trim();  // frees all that is not in use

  int64_t in_use() const;
  int64_t kept() const;
  int64_t peak() const;

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Idle {
    void* data;
    int64_t since_ms;
  };
  void take_expired(int64_t now_ms, std::vector<Block>* out);

  mutable std::mutex mutex_;
  std::map<size_t, std::vector<Idle>> idle_;  // by size class, each oldest first
  int64_t in_use_ = 0, kept_ = 0, peak_ = 0, next_trim_ms_ = 0;
};

// Rounds up to a size class: eight steps in each power of two, so at most 1/8 is wasted. 0 if it would overflow.
size_t size_class(size_t size);

}  // namespace disc
