// A directory of packed constants that the processes of a host share, each as a file (pack_file.h) that every process maps.
//
// Off unless a directory was named. Nothing here fails a run: what cannot be shared is packed in memory, counted, and explained by
// `problem`; the first reason goes to stderr, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "pack_file.h"
#include "status.h"

namespace disc {

class Packs {
 public:
  static Packs& get();

  // The API's choice: "" is none, null goes back to the environment's. Fails, and changes nothing, if the directory cannot be used.
  // limit: bytes that the directory's packs may take, 0 for no limit.
  Status share(const char* directory, int64_t limit);
  // Absolute; "" if none.
  std::string directory();

  enum class Found { kNothing, kPack, kDamaged, kOther };
  using MadeOf = std::function<bool(uint64_t)>;  // whether the inputs have the contents of that hash

  // Looks for the pack of that key. kDamaged: there is a file that is not to be trusted; kOther: a sound one, of other contents than ours.
  Found load(const PackKey& key, const MadeOf& made_of, std::unique_ptr<PackMap>* out);
  // Writes a pack for others, after `load` gave `found`, and gives it mapped, or the one that somebody else wrote meanwhile; null if neither
  // is possible.
  std::unique_ptr<PackMap> store(const PackKey& key, Found found, uint64_t sources, const void* data, size_t size);

  // Why something was not shared, the latest reason; "" if there was none.
  std::string problem();
  int64_t loaded() const { return loaded_.load(std::memory_order_relaxed); }
  int64_t written() const { return written_.load(std::memory_order_relaxed); }
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }      // files that were there and not taken
  int64_t unwritten() const { return unwritten_.load(std::memory_order_relaxed); }  // packs that could not be written

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Place {
    std::string directory;
    int64_t limit = 0;
  };
  Place place();
  Found look(int directory, const std::string& path, const std::string& name, const PackKey& key, const MadeOf& made_of, std::unique_ptr<PackMap>* out);
  void tell(const std::string& reason);

  std::mutex mutex_;
  bool chosen_ = false;  // by the API
  Place place_;
  std::string problem_;
  bool said_ = false;
  std::atomic<int64_t> loaded_{0}, written_{0}, refused_{0}, unwritten_{0};
};

// A smaller one is made again sooner than it is mapped.
constexpr size_t kSmallestPack = size_t{64} << 10;

// The name of a file system that is known to be of this host ("ext4"), or null: others (NFS, SMB, FUSE ...) may fail or change under a mapping.
const char* local_filesystem(uint64_t magic);

}  // namespace disc
