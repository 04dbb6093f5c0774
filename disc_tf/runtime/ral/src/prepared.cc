#include "prepared.h"

#include "memory.h"

namespace disc {
namespace {
std::atomic<int64_t> g_live_bytes{0}, g_mapped_bytes{0};
}

int64_t prepared_live_bytes() { return g_live_bytes.load(std::memory_order_relaxed); }
int64_t packs_mapped_bytes() { return g_mapped_bytes.load(std::memory_order_relaxed); }

bool PreparedData::allocate(size_t bytes) {
  data = system_alloc(bytes);
  if (!data) return false;
  size = bytes;
  g_live_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return true;
}

void PreparedData::free_own() {
  if (!data || pack_) return;
  g_live_bytes.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
  system_free(data, size);
}

void PreparedData::adopt(std::unique_ptr<PackMap> pack) {
  free_own();
  pack_ = std::move(pack);
  data = pack_->data();
  size = pack_->size();
  g_mapped_bytes.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed);
}

PreparedData::~PreparedData() {
  free_own();
  if (pack_) g_mapped_bytes.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
  for (const auto& release : releases) release();
}

PreparedCache& PreparedCache::get() {
  static auto* cache = new PreparedCache;
  return *cache;
}

Status PreparedCache::find_or_build(const std::string& key, const std::function<Status(PreparedData*)>& build, PreparedRef* out) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    Entry& entry = entries_[key];
    if ((*out = entry.ready.lock())) return Status();
    if (!entry.building) break;
    changed_->wait(lock);
  }
  entries_[key].building = true;
  lock.unlock();

  auto data = std::make_shared<PreparedData>();
  const Status status = build(data.get());

  lock.lock();
  if (status.ok()) {
    if (!data->found) built_.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = entries_[key];
    entry.building = false;
    entry.ready = data;
    for (auto it = entries_.begin(); it != entries_.end();)  // building is rare: the time to forget what was freed
      it = !it->second.building && it->second.ready.expired() ? entries_.erase(it) : std::next(it);
    *out = std::move(data);
  } else {
    entries_.erase(key);
  }
  changed_->notify_all();
  lock.unlock();
  return status;
}

void PreparedCache::unlock_after_fork(bool child) {
  if (child) {
    // The threads that were building are not here; waiters of before do not exist either.
    for (auto it = entries_.begin(); it != entries_.end();) it = it->second.building ? entries_.erase(it) : std::next(it);
    changed_ = new std::condition_variable;
  }
  mutex_.unlock();
}

}  // namespace disc
