#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace disc {
namespace {

constexpr int64_t kDecayMs = 10000;  // a buffer that no run took for this long goes back to the system
constexpr size_t kMmapFrom = size_t{1} << 20;
constexpr size_t kSmallest = 4096;
constexpr size_t kSystemPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void* system_alloc(size_t size) {
  if (size > (size_t{1} << 62)) return nullptr;
  size = std::max(size, kAlignment);
  if (size < kMmapFrom) return std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  // Not malloc: large blocks must go back to the system when freed, whatever malloc's thresholds are.
  void* p = mmap(nullptr, size < kHugePage ? size : size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (size < kHugePage) return p;
  // Huge pages where they fit: a stream of weights comes from memory a third faster (the hardware prefetchers stop at 4 KiB page ends).
  const uintptr_t start = reinterpret_cast<uintptr_t>(p), page = kSystemPage - 1;
  const uintptr_t data = (start + kHugePage - 1) & ~(kHugePage - 1), end = (data + size + page) & ~page;
  if (data > start) munmap(p, data - start);
  if (const uintptr_t last = start + ((size + kHugePage + page) & ~page); last > end) munmap(reinterpret_cast<void*>(end), last - end);
  p = reinterpret_cast<void*>(data);
  madvise(p, size, MADV_HUGEPAGE);  // only advice: refused on systems without
  return p;
}

void system_free(void* p, size_t size) {
  if (!p) return;
  if (size < kMmapFrom)
    std::free(p);
  else
    munmap(p, size);
}

size_t size_class(size_t size) {
  if (size <= kSmallest) return kSmallest;
  if (size > (size_t{1} << 62)) return 0;
  const int top = 63 - __builtin_clzll(size);
  const size_t step = size_t{1} << (top - 3);
  return (size + step - 1) / step * step;
}

MemoryPool& MemoryPool::get() {
  static auto* pool = new MemoryPool;  // never destroyed: runs may outlive main
  return *pool;
}

MemoryPool::Block MemoryPool::acquire(size_t size) {
  const size_t want = size_class(size);
  if (want == 0) return {};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The class itself, or one at most a quarter larger.
    for (auto it = idle_.lower_bound(want); it != idle_.end() && it->first <= want + want / 4; ++it) {
      if (it->second.empty()) continue;
      const Block block{it->second.back().data, it->first};
      it->second.pop_back();
      kept_ -= static_cast<int64_t>(block.size);
      in_use_ += static_cast<int64_t>(block.size);
      return block;
    }
  }
  void* p = system_alloc(want);
  if (!p) {
    trim();
    p = system_alloc(want);
    if (!p) return {};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  in_use_ += static_cast<int64_t>(want);
  peak_ = std::max(peak_, in_use_ + kept_);
  return {p, want};
}

void MemoryPool::release(Block block) {
  if (!block.data) return;
  std::vector<Block> expired;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = now_ms();
    in_use_ -= static_cast<int64_t>(block.size);
    kept_ += static_cast<int64_t>(block.size);
    idle_[block.size].push_back({block.data, now});
    if (now >= next_trim_ms_) {
      next_trim_ms_ = now + kDecayMs / 4;
      take_expired(now - kDecayMs, &expired);
    }
  }
  for (const Block& b : expired) system_free(b.data, b.size);
}

void MemoryPool::take_expired(int64_t before_ms, std::vector<Block>* out) {
  for (auto it = idle_.begin(); it != idle_.end();) {
    auto& list = it->second;
    const auto fresh = std::find_if(list.begin(), list.end(), [&](const Idle& i) { return i.since_ms >= before_ms; });
    for (auto i = list.begin(); i != fresh; ++i) out->push_back({i->data, it->first});
    kept_ -= static_cast<int64_t>(it->first) * (fresh - list.begin());
    list.erase(list.begin(), fresh);
    it = list.empty() ? idle_.erase(it) : std::next(it);
  }
}

void MemoryPool::trim() {
  std::vector<Block> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    take_expired(INT64_MAX, &all);
  }
  for (const Block& b : all) system_free(b.data, b.size);
}

int64_t MemoryPool::in_use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}
int64_t MemoryPool::kept() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_;
}
int64_t MemoryPool::peak() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

}  // namespace disc
