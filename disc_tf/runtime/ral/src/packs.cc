#include "packs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "file.h"
#include "pack_writer.h"
#include "settings.h"

namespace disc {
namespace {

// A directory or file that only its owner may change, who is this user or root.
std::string distrusted(const struct stat& st) {
  if (st.st_uid != geteuid() && st.st_uid != 0) return "belongs to user " + std::to_string(st.st_uid) + ", neither to this one (" + std::to_string(geteuid()) + ") nor to root";
  if (st.st_mode & 0022) return "may be written by others than its owner (chmod go-w)";
  return {};
}

std::string hex(uint64_t v) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

// Opens the directory and checks it; with `make` it is made if it is not there.
Status open_directory(const std::string& path, bool make, int* fd) {
  if (make && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Status(kFailedPrecondition, "cannot make the directory " + path + ": " + std::strerror(errno));
  const int opened = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return Status(kFailedPrecondition, "cannot open the directory " + path + ": " + std::strerror(errno));
  struct stat st {};
  struct statfs fs {};
  std::string wrong;
  if (fstat(opened, &st) != 0 || fstatfs(opened, &fs) != 0)
    wrong = std::strerror(errno);
  else if (wrong = distrusted(st); wrong.empty() && !local_filesystem(static_cast<uint64_t>(fs.f_type) & 0xffffffffu))
    wrong = "lies on a file system that is not known to be of this host alone (type " + hex(static_cast<uint64_t>(fs.f_type) & 0xffffffffu) + ")";
  if (wrong.empty()) {
    *fd = opened;
    return Status();
  }
  close(opened);
  return Status(kFailedPrecondition, "the directory " + path + " " + wrong);
}

}  // namespace

const char* local_filesystem(uint64_t magic) {
  static constexpr struct {
    uint64_t magic;
    const char* name;
  } kKnown[] = {{0xEF53, "ext4"},         {0x58465342, "xfs"},       {0x9123683E, "btrfs"},   {0x01021994, "tmpfs"},    {0x858458F6, "ramfs"},
                {0x794C7630, "overlayfs"}, {0x2FC12FC1, "zfs"},       {0xF2F52010, "f2fs"},    {0xCA451A4E, "bcachefs"}, {0x3153464A, "jfs"},
                {0x52654973, "reiserfs"},  {0x73717368, "squashfs"},  {0xE0F5E1E2, "erofs"}};
  for (const auto& k : kKnown)
    if (k.magic == magic) return k.name;
  return nullptr;
}

Packs& Packs::get() {
  static auto* packs = new Packs;
  return *packs;
}

Status Packs::share(const char* directory, int64_t limit) {
  if (limit < 0) return Status(kInvalidArgument, "the limit of a directory of packs must not be negative; 0 is no limit");
  Place wanted;
  if (directory) {
    if (Status s = absolute_path(directory, &wanted.directory); !s.ok()) return s;
    wanted.limit = limit;
    if (!wanted.directory.empty()) {
      int fd = -1;
      if (Status s = open_directory(wanted.directory, true, &fd); !s.ok()) return Status(s.code, "packed weights cannot be shared: " + s.message);
      close(fd);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  chosen_ = directory != nullptr;
  place_ = std::move(wanted);
  said_ = false;
  problem_.clear();
  return Status();
}

Packs::Place Packs::place() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return chosen_ ? place_ : Place{environment().packs, environment().packs_limit};
}

std::string Packs::directory() { return place().directory; }

std::string Packs::problem() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problem_;
}

void Packs::tell(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  problem_ = reason;
  if (std::exchange(said_, true)) return;
  std::fprintf(stderr, "disc_tf: sharing packed weights: %s; packed in memory instead\n", reason.c_str());
}

Packs::Found Packs::look(int directory, const std::string& path, const std::string& name, const PackKey& key, const MadeOf& made_of,
                         std::unique_ptr<PackMap>* out) {
  const Fd fd(openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0 && errno == ENOENT) return Found::kNothing;
  struct stat st {};
  std::string wrong;
  std::unique_ptr<PackMap> map;
  Found found = Found::kDamaged;
  if (fd.get() < 0) {
    wrong = errno == ELOOP ? std::string("is a symbolic link") : std::string("cannot be opened: ") + std::strerror(errno);
  } else if (fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    wrong = "is not a regular file";
  } else if (wrong = distrusted(st); wrong.empty()) {
    uint64_t sources = 0;
    const Status status = PackMap::open(fd.get(), key, &sources, &map);
    wrong = status.message;
    if (status.ok() && !made_of(sources)) {
      wrong = "was made of weights that are not those of this graph, which say that they are (they were changed after it was compiled)";
      found = Found::kOther;
    }
  }
  if (!wrong.empty()) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    tell(path + "/" + name + " " + wrong);
    return found;
  }
  mark_as_used(fd.get(), st);
  *out = std::move(map);
  return Found::kPack;
}

Packs::Found Packs::load(const PackKey& key, const MadeOf& made_of, std::unique_ptr<PackMap>* out) {
  const Place place = this->place();
  if (place.directory.empty()) return Found::kNothing;
  int raw = -1;
  if (Status s = open_directory(place.directory, false, &raw); !s.ok()) return Found::kNothing;  // `store` makes it, or says why not
  const Fd directory(raw);
  const Found found = look(directory.get(), place.directory, key.file_name(), key, made_of, out);
  if (found == Found::kPack) loaded_.fetch_add(1, std::memory_order_relaxed);
  return found;
}

std::unique_ptr<PackMap> Packs::store(const PackKey& key, Found found, uint64_t sources, const void* data, size_t size) {
  const Place place = this->place();
  if (place.directory.empty() || size < kSmallestPack || found == Found::kOther) return nullptr;
  int raw = -1;
  Status status = open_directory(place.directory, true, &raw);
  const Fd directory(raw);
  std::unique_ptr<PackMap> map;
  const std::string name = key.file_name();
  const auto again = [&] { return look(directory.get(), place.directory, name, key, [&](uint64_t hash) { return hash == sources; }, &map); };
  if (status.ok() && found == Found::kNothing) found = again();  // others may have started when we did
  bool written = false;
  if (status.ok() && found != Found::kPack) {
    status = write_pack(directory.get(), name, pack_header(key, sources, data, size), data, size, place.limit, found != Found::kNothing, &written);
    if (!status.ok())
      status.message = place.directory + ": " + status.message;
    else if (found = again(); found == Found::kNothing)
      status.message = place.directory + "/" + name + " was deleted as soon as it was written";
    else if (found != Found::kPack)
      return nullptr;  // it was counted and told of
  }
  if (!map) {
    unwritten_.fetch_add(1, std::memory_order_relaxed);
    tell(status.message);
    return nullptr;
  }
  (written ? written_ : loaded_).fetch_add(1, std::memory_order_relaxed);
  return map;
}

}  // namespace disc
