#include "pack_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace disc {
namespace {

constexpr char kMagic[8] = {'D', 'I', 'S', 'C', 'P', 'A', 'C', 'K'};
constexpr size_t kMaxHeader = size_t{16} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;  // 2^64 divided by the golden ratio

struct Header {
  char magic[8];
  uint32_t version, key_bytes;
  uint64_t data_offset, data_bytes, data_hash, sources;
  uint64_t header_hash;  // of header and key, with this field 0
};
static_assert(sizeof(Header) == 56, "fixed layout");

uint64_t rotate(uint64_t v, int by) { return (v << by) | (v >> (64 - by)); }
uint64_t stir(uint64_t h, uint64_t word) { return rotate((h ^ word) * kOdd, 29); }  // one to one in each argument
uint64_t finish(uint64_t h) {
  h = (h ^ (h >> 32)) * kOdd;
  h = (h ^ (h >> 29)) * kOdd;
  return h ^ (h >> 32);
}

std::string text(const std::string& s) {
  const auto n = static_cast<uint32_t>(s.size());
  return std::string(reinterpret_cast<const char*>(&n), 4) + s;
}

uint64_t header_hash(Header h, const char* key) {
  h.header_hash = 0;
  return content_hash(key, h.key_bytes, content_hash(&h, sizeof(h)));
}

Status damaged(const std::string& why) { return Status(kDataLoss, why); }

Status check_header(const Header& h, const char* key, size_t file_size, const std::string& wanted) {
  if (std::memcmp(h.magic, kMagic, sizeof(kMagic)) != 0) return damaged("is not a pack");
  if (h.version != kPackVersion)
    return Status(kFailedPrecondition, "is of format " + std::to_string(h.version) + ", this runtime reads " + std::to_string(kPackVersion) +
                                           ": another version of disc_tf shares the directory");
  if (h.data_offset > kMaxHeader || h.data_offset % kPackAlignment != 0 || h.key_bytes > h.data_offset || sizeof(h) + h.key_bytes > h.data_offset ||
      h.data_offset > file_size || h.data_bytes != file_size - h.data_offset || h.data_bytes == 0)
    return damaged("is cut off, or its header is damaged");
  if (header_hash(h, key) != h.header_hash) return damaged("has a damaged header");
  if (wanted != std::string(key, h.key_bytes)) return Status(kFailedPrecondition, "was made of other weights, by other code, or for another instruction set");
  return Status();
}

// Address space that starts at a multiple of a huge page, so that the kernel may map huge pages of the file; MAP_FAILED if there is none.
void* map_aligned(int fd, size_t length) {
  if (length < kHugePage) return mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, 0);
  const size_t room = length + kHugePage;
  void* p = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return p;
  const uintptr_t start = reinterpret_cast<uintptr_t>(p), page = kPackAlignment - 1;
  const uintptr_t base = (start + kHugePage - 1) & ~(kHugePage - 1), end = (base + length + page) & ~page, last = (start + room + page) & ~page;
  if (mmap(reinterpret_cast<void*>(base), length, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(p, room);
    return MAP_FAILED;
  }
  if (base > start) munmap(p, base - start);
  if (last > end) munmap(reinterpret_cast<void*>(end), last - end);
  madvise(reinterpret_cast<void*>(base), length, MADV_HUGEPAGE);  // only advice
  return reinterpret_cast<void*>(base);
}

}  // namespace

uint64_t content_hash(const void* data, size_t size, uint64_t seed) {
  constexpr size_t kLanes = 8;  // independent of each other: as fast as memory
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = stir(seed, i);
  const auto* p = static_cast<const uint8_t*>(data);
  const size_t whole = size / sizeof(lanes) * sizeof(lanes);
  for (size_t at = 0; at < whole; at += sizeof(lanes)) {
    uint64_t words[kLanes];
    std::memcpy(words, p + at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = stir(lanes[i], words[i]);
  }
  if (whole < size) {
    uint64_t words[kLanes] = {};
    std::memcpy(words, p + whole, size - whole);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = stir(lanes[i], words[i]);
  }
  uint64_t h = stir(seed, size);
  for (const uint64_t lane : lanes) h = stir(h, lane);
  return finish(h);
}

std::string PackKey::encoded() const {
  std::string out = text(isa) + text(layout) + text(code);
  for (const std::string& d : digests) out += text(d);
  return out;
}

std::string PackKey::file_name() const {
  const std::string key = encoded();
  const uint64_t halves[] = {content_hash(key.data(), key.size(), 1), content_hash(key.data(), key.size(), 2)};
  std::string name;
  for (const uint64_t half : halves)
    for (int shift = 60; shift >= 0; shift -= 4) name += "0123456789abcdef"[half >> shift & 15];
  return name + ".pack";
}

std::string pack_header(const PackKey& key, uint64_t sources, const void* data, size_t size) {
  const std::string encoded = key.encoded();
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof(kMagic));
  h.version = kPackVersion;
  h.key_bytes = static_cast<uint32_t>(encoded.size());
  h.data_offset = (sizeof(h) + encoded.size() + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
  h.data_bytes = size;
  h.data_hash = content_hash(data, size);
  h.sources = sources;
  h.header_hash = header_hash(h, encoded.data());
  std::string out(h.data_offset, '\0');
  std::memcpy(out.data(), &h, sizeof(h));
  std::memcpy(out.data() + sizeof(h), encoded.data(), encoded.size());
  return out;
}

Status PackMap::open(int fd, const PackKey& key, uint64_t* sources, std::unique_ptr<PackMap>* out) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return Status(kFailedPrecondition, std::strerror(errno));
  const auto length = static_cast<size_t>(st.st_size);
  if (length < kPackAlignment) return damaged("is cut off, or its header is damaged");
  void* base = map_aligned(fd, length);
  if (base == MAP_FAILED) return Status(kResourceExhausted, std::string("cannot be mapped: ") + std::strerror(errno));
  std::unique_ptr<PackMap> map(new PackMap);
  map->base_ = static_cast<uint8_t*>(base);
  map->length_ = length;
  if (length >= kHugePage) madvise(base, length, MADV_COLLAPSE);  // tmpfs: huge pages at once, for all who map them; only advice
  // Reads all of the file now. What cannot be read is an error here, where it would be a signal later; older kernels do not know it.
  if (madvise(base, length, MADV_POPULATE_READ) != 0 && errno != EINVAL && errno != ENOMEM) return damaged(std::string("cannot be read: ") + std::strerror(errno));
  Header h;
  std::memcpy(&h, map->base_, sizeof(h));
  const std::string wanted = key.encoded();
  const char* found = reinterpret_cast<const char*>(map->base_) + sizeof(h);
  if (Status s = check_header(h, found, length, wanted); !s.ok()) return s;
  map->offset_ = h.data_offset;
  if (content_hash(map->data(), map->size()) != h.data_hash) return damaged("has damaged contents");
  *sources = h.sources;
  *out = std::move(map);
  return Status();
}

PackMap::~PackMap() {
  if (base_) munmap(base_, length_);
}

}  // namespace disc
