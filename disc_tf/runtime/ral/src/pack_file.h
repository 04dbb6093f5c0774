// A packed constant as a file: header, key, and the bytes from a page boundary on. Reading trusts nothing before it was checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "status.h"

namespace disc {

// Raised when the format changes, or when a library function that prepare may call gives other bits than before.
constexpr uint32_t kPackVersion = 2;
constexpr size_t kPackAlignment = 4096;

// What a pack is known by.
struct PackKey {
  std::string code;     // hash of the code that makes it, or the executable's digest and the entry's number
  std::string isa;
  std::string layout;
  std::vector<std::string> digests;  // of the inputs that it is made of

  std::string encoded() const;
  std::string file_name() const;  // the same for equal keys only (128 bits of hash)
};

// 64 bits for finding damage and changes, not forgeries: a change inside any one lane of eight words always changes the result.
uint64_t content_hash(const void* data, size_t size, uint64_t seed = 0);

// The file's bytes before the data; their number is a multiple of kPackAlignment. sources: hash of the inputs' contents.
std::string pack_header(const PackKey& key, uint64_t sources, const void* data, size_t size);

// A pack, mapped read-only. Its pages are shared by all processes that map the file, and live on when it is deleted.
class PackMap {
 public:
  // Checks all of the file against its header and the header against `key`; *sources is what the header says. fd stays the caller's.
  static Status open(int fd, const PackKey& key, uint64_t* sources, std::unique_ptr<PackMap>* out);
  ~PackMap();
  PackMap(const PackMap&) = delete;
  PackMap& operator=(const PackMap&) = delete;
  void* data() const { return base_ + offset_; }
  size_t size() const { return length_ - offset_; }

 private:
  PackMap() = default;
  uint8_t* base_ = nullptr;
  size_t length_ = 0, offset_ = 0;
};

}  // namespace disc
