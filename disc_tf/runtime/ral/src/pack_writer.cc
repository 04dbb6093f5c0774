#include "pack_writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "file.h"

namespace disc {
namespace {

constexpr char kTemporary[] = ".writing-";
constexpr char kSuffix[] = ".pack";
constexpr time_t kInUse = 3600;     // seconds after which a pack that nobody took is not in use
constexpr time_t kJustStarted = 10;  // a writer locks its file right after making it

struct File {
  std::string name;
  int64_t bytes;
  time_t changed;
};

bool starts_with(const std::string& s, const char* prefix) { return s.compare(0, std::strlen(prefix), prefix) == 0; }
bool ends_with(const std::string& s, const char* suffix) {
  const size_t n = std::strlen(suffix);
  return s.size() >= n && s.compare(s.size() - n, n, suffix) == 0;
}

// Regular files of the directory.
std::vector<File> files_of(int directory) {
  std::vector<File> out;
  const int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd < 0 ? nullptr : fdopendir(fd), closedir);
  if (!dir) {
    if (fd >= 0) close(fd);
    return out;
  }
  while (const dirent* e = readdir(dir.get())) {
    struct stat st {};
    if (fstatat(directory, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) out.push_back({e->d_name, st.st_size, st.st_mtime});
  }
  return out;
}

// Deletes what writers left that died: they hold a lock on their file as long as they live.
void clean(int directory, const std::vector<File>& files, time_t now) {
  for (const File& f : files) {
    if (!starts_with(f.name, kTemporary) || now - f.changed < kJustStarted) continue;
    const Fd fd(openat(directory, f.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd.get() >= 0 && flock(fd.get(), LOCK_EX | LOCK_NB) == 0) unlinkat(directory, f.name.c_str(), 0);
  }
}

// Deletes packs until `needed` bytes more keep the limit.
Status make_room(int directory, std::vector<File> files, const std::string& name, int64_t needed, int64_t limit, time_t now) {
  int64_t total = needed;
  for (const File& f : files)
    if (f.name != name) total += f.bytes;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.changed < b.changed; });
  for (const File& f : files) {
    if (total <= limit || now - f.changed < kInUse) break;
    if (f.name != name && ends_with(f.name, kSuffix) && unlinkat(directory, f.name.c_str(), 0) == 0) total -= f.bytes;
  }
  if (total <= limit) return Status();
  return Status(kResourceExhausted, "its limit of " + std::to_string(limit) + " bytes is taken by packs that were in use in the last hour");
}

Status check_space(int directory, size_t bytes) {
  rlimit file_size{};
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY && file_size.rlim_cur < bytes)  // else a signal would come
    return Status(kResourceExhausted, "a file of " + std::to_string(bytes) + " bytes is more than this process may write (RLIMIT_FSIZE)");
  struct statvfs vfs {};
  if (fstatvfs(directory, &vfs) == 0 && static_cast<uint64_t>(vfs.f_bavail) * vfs.f_frsize < bytes)
    return Status(kResourceExhausted, "no space for a file of " + std::to_string(bytes) + " bytes");
  return Status();
}

bool rename_in(int directory, const std::string& from, const std::string& to, bool replace) {
  constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
  if (!replace && syscall(SYS_renameat2, directory, from.c_str(), directory, to.c_str(), kNoReplace) == 0) return true;
  if (!replace && errno != EINVAL && errno != ENOSYS) return false;
  return renameat(directory, from.c_str(), directory, to.c_str()) == 0;  // also where the file system cannot do the other
}

std::string own_name() {
  static std::atomic<uint64_t> serial{0};
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);  // process numbers are not unique where containers share the directory
  return kTemporary + std::to_string(getpid()) + "-" + std::to_string(serial.fetch_add(1, std::memory_order_relaxed)) + "-" + std::to_string(t.tv_sec) + "." +
         std::to_string(t.tv_nsec);
}

}  // namespace

Status write_pack(int directory, const std::string& name, const std::string& header, const void* data, size_t size, int64_t limit, bool replace,
                  bool* written) {
  const size_t bytes = header.size() + size;
  const time_t now = time(nullptr);
  const std::vector<File> files = files_of(directory);
  clean(directory, files, now);
  if (limit > 0)
    if (Status s = make_room(directory, files, name, static_cast<int64_t>(bytes), limit, now); !s.ok()) return s;
  if (Status s = check_space(directory, bytes); !s.ok()) return s;

  const std::string temporary = own_name();
  const Fd fd(openat(directory, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.get() < 0) return Status(kFailedPrecondition, std::string("no file can be made there: ") + std::strerror(errno));
  // No fsync: what a power cut leaves of a pack does not have its hash.
  bool ok = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  ok = ok && (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS);  // a full disk is known before it is full
  ok = ok && write_all(fd.get(), header.data(), header.size()) && write_all(fd.get(), data, size);
  *written = ok && rename_in(directory, temporary, name, replace);
  if (*written) return Status();
  const int error = errno;
  unlinkat(directory, temporary.c_str(), 0);
  if (ok && !replace && error == EEXIST) return Status();
  return Status(error == ENOSPC || error == EDQUOT ? kResourceExhausted : kFailedPrecondition, std::string("a pack cannot be written: ") + std::strerror(error));
}

void mark_as_used(int fd, const struct stat& st) {
  if (time(nullptr) - st.st_mtime < kInUse / 2) return;
  const timespec now[] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
  futimens(fd, now);  // refused for root's files: then they are not deleted by us either
}

}  // namespace disc
