#include "image.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "elf_image.h"
#include "file.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace disc {
namespace {

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

uint64_t next_serial() {
  static std::atomic<uint64_t> serial{0};
  return serial.fetch_add(1, std::memory_order_relaxed);
}

// dlopen takes a library for loaded when the path is the same string, and descriptor numbers come back after close: so every
// image gets a spelling of /proc/self/fd/N of its own. Each bit of the serial number becomes "/." or "//.", which the kernel skips.
std::string unique_fd_path(int fd) {
  std::string path = "/proc/self/fd";
  for (uint64_t s = next_serial() | (uint64_t{1} << 32); s > 1; s >>= 1) path += (s & 1) ? "//." : "/.";
  return path + "/" + std::to_string(fd);
}

Status open_library(const ElfImage& elf, const std::string& path, void** handle, const uint8_t** base, void** query) {
  *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!*handle) {
    const char* why = dlerror();
    return Status(kFailedPrecondition, std::string("dlopen: ") + (why ? why : "failed"));
  }
  *query = dlsym(*handle, DISC_QUERY_SYMBOL);
  Dl_info info;
  Status status;
  if (!*query || !dladdr(*query, &info))
    status = Status(kDataLoss, "code image: it does not export " DISC_QUERY_SYMBOL);
  else if (!same_code(elf, static_cast<const uint8_t*>(info.dli_fbase)))
    status = Status(kInternal, "code image: the dynamic linker gave another library than " + path);
  if (!status.ok()) {
    dlclose(*handle);
    *handle = nullptr;
  } else {
    *base = static_cast<const uint8_t*>(info.dli_fbase);
  }
  return status;
}

Status open_memfd(const ElfImage& elf, void** handle, const uint8_t** base, void** query) {
  // MFD_EXEC says that code is meant to run (Linux 6.3 and later ask); older kernels refuse the flag.
  int raw = static_cast<int>(syscall(SYS_memfd_create, "disc_tf", MFD_CLOEXEC | MFD_EXEC));
  if (raw < 0 && errno == EINVAL) raw = static_cast<int>(syscall(SYS_memfd_create, "disc_tf", MFD_CLOEXEC));
  if (raw < 0) return Status(kFailedPrecondition, errno_text("memfd_create"));
  const Fd fd(raw);
  if (!write_all(fd.get(), elf.data, elf.size)) return Status(kResourceExhausted, errno_text("write to memfd"));
  return open_library(elf, unique_fd_path(fd.get()), handle, base, query);
}

// The directory, made if need be; only ours, and closed to all others, or other users could put code there.
Status private_dir(std::string* dir) {
  *dir = environment().cache_dir;
  if (dir->empty()) *dir = "/tmp/disc_tf-" + std::to_string(getuid());
  for (size_t at = dir->find('/', 1);; at = dir->find('/', at + 1)) {
    const std::string part = dir->substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return Status(kFailedPrecondition, errno_text("mkdir " + part));
    if (at == std::string::npos) break;
  }
  struct stat st;
  if (lstat(dir->c_str(), &st) != 0) return Status(kFailedPrecondition, errno_text(*dir));
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 0022) != 0)
    return Status(kFailedPrecondition, *dir + " is not a directory that only this user can write to; set DISC_TF_CACHE_DIR");
  if (st.st_mode & 0077) chmod(dir->c_str(), 0700);
  return Status();
}

Status open_file(const ElfImage& elf, void** handle, const uint8_t** base, void** query) {
  std::string dir;
  if (Status s = private_dir(&dir); !s.ok()) return s;
  const std::string path = dir + "/image-" + std::to_string(getpid()) + "-" + std::to_string(next_serial()) + ".so";
  unlink(path.c_str());  // left by a process of the same number that died
  Status status;
  {
    const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0700));
    if (fd.get() < 0) return Status(kFailedPrecondition, errno_text(path));
    if (!write_all(fd.get(), elf.data, elf.size)) status = Status(kResourceExhausted, errno_text("write to " + path));
  }
  if (status.ok()) status = open_library(elf, path, handle, base, query);
  unlink(path.c_str());  // the mapping keeps the file
  return status;
}

}  // namespace

Image::~Image() {
  if (handle_) dlclose(handle_);
  if (map_) munmap(map_, map_size_);
}

Status Image::load(const uint8_t* data, size_t size, Loader way, std::unique_ptr<Image>* out) {
  ElfImage elf;
  if (Status s = parse_elf(data, size, &elf); !s.ok()) return s;
  std::unique_ptr<Image> image(new Image);
  void* query = nullptr;
  std::string reasons;
  auto attempt = [&](Loader which, const char* name, auto open) {
    if (query || (way != Loader::kAuto && way != which)) return;
    const Status s = open();
    if (s.ok())
      image->loader_ = name;
    else
      reasons += std::string(reasons.empty() ? "" : "; ") + name + ": " + s.message, query = nullptr;
  };
  attempt(Loader::kMemfd, "memfd", [&] { return open_memfd(elf, &image->handle_, &image->base_, &query); });
  attempt(Loader::kFile, "file", [&] { return open_file(elf, &image->handle_, &image->base_, &query); });
  attempt(Loader::kMmap, "mmap", [&] {
    Status s = map_elf(elf, &image->map_, &query);
    image->map_size_ = elf.span;
    image->base_ = image->map_;
    return s;
  });
  if (!query)
    return Status(kFailedPrecondition, "the system does not let this process load code (" + reasons +
                                           "); set DISC_TF_CACHE_DIR to a directory on a file system without noexec");
  image->query_ = reinterpret_cast<disc_executable_query_fn>(query);
  image->span_ = elf.span;
  image->symbols_ = find_symbols(elf);
  *out = std::move(image);
  return Status();
}

std::vector<ElfFunction> Image::functions() const {
  std::vector<ElfFunction> found;
  ElfFunction f{};
  for (uint32_t i = 0; i < symbols_.count; ++i)
    if (function_at(symbols_, base_, span_, i, &f)) found.push_back(f);
  return found;
}

const char* Image::name_of(const void* code) const {
  ElfFunction f{};
  for (uint32_t i = 0; i < symbols_.count; ++i)
    if (function_at(symbols_, base_, span_, i, &f) && f.code == code) return f.name;
  return "";
}

}  // namespace disc
