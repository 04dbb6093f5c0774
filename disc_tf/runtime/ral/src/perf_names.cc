#include "perf_names.h"

#include <elf.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "file.h"

namespace disc {
namespace {

constexpr size_t kLongestName = 240;

// The file of this process. A forked process makes one of its own: perf looks for its number.
struct Output {
  pid_t pid = 0;
  int fd = -1;
  bool failed = false;
  uint64_t code_index = 0;
};
Output g_output;

void give_up(const std::string& why) {
  if (!g_output.failed) std::fprintf(stderr, "disc_tf: DISC_TF_PERF: %s; perf will not know the names of compiled code\n", why.c_str());
  g_output.failed = true;
}

uint64_t monotonic() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t{1000000000} * static_cast<uint64_t>(t.tv_sec) + static_cast<uint64_t>(t.tv_nsec);
}

// Seconds of CLOCK_REALTIME at which this process began, 0 if that is not known.
int64_t process_start() {
  char text[1024];
  const Fd fd(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  const ssize_t n = fd.get() >= 0 ? read(fd.get(), text, sizeof(text) - 1) : -1;
  if (n <= 0) return 0;
  text[n] = 0;
  const char* at = std::strrchr(text, ')');  // the name before may hold anything
  unsigned long long ticks = 0;
  if (!at || std::sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) != 1) return 0;
  timespec now{}, up{};
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &up);
  return now.tv_sec - up.tv_sec + static_cast<int64_t>(ticks / static_cast<unsigned long long>(sysconf(_SC_CLK_TCK)));
}

// Opens the map, which other runtimes of the process may write to as well; one that an earlier process of the same number left is removed.
int open_map(const std::string& path) {
  struct stat st {};
  const int64_t start = process_start();
  if (lstat(path.c_str(), &st) == 0 && start > 0 && st.st_mtime < start - 1) unlink(path.c_str());
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return give_up("cannot open " + path + ": " + std::strerror(errno)), -1;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
    close(fd);
    return give_up(path + " is not a regular file of this user"), -1;
  }
  return fd;
}

struct DumpHeader {
  uint32_t magic = 0x4A695444, version = 1, size = sizeof(DumpHeader), machine = EM_X86_64, pad = 0, pid = 0;
  uint64_t time = 0, flags = 0;
};
struct CodeLoad {
  uint32_t id = 0, size = 0;
  uint64_t time = 0;
  uint32_t pid = 0, tid = 0;
  uint64_t vma = 0, address = 0, code_size = 0, index = 0;
};

int open_dump(const std::string& path) {
  unlink(path.c_str());  // of an earlier process of this number
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return give_up("cannot make " + path + ": " + std::strerror(errno)), -1;
  DumpHeader header;
  header.pid = static_cast<uint32_t>(getpid());
  header.time = monotonic();
  std::string why;
  if (!write_all(fd, &header, sizeof(header)))
    why = "cannot write " + path + ": " + std::strerror(errno);
  // perf records this mapping, and finds the file by it.
  else if (mmap(nullptr, sizeof(header), PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
    why = "cannot map " + path + " as code: " + std::strerror(errno) + " (choose a directory on a file system without noexec)";
  if (why.empty()) return fd;
  close(fd);
  unlink(path.c_str());
  return give_up(why), -1;
}

bool begins(const std::string& text, size_t at, const char* with) { return strncasecmp(text.c_str() + at, with, std::strlen(with)) == 0; }

// The node that tells most of a kernel: the product or convolution of one around it, else the first.
const std::string& telling(const std::string& symbol, const std::vector<std::string>& nodes) {
  static constexpr const char* kProducts[] = {"k_gemm", "k_conv", "k_attention", "k_depthwise"};
  static constexpr const char* kNodes[] = {"matmul", "batchmatmul", "batch_matmul", "einsum", "conv", "depthwise"};
  if (std::none_of(std::begin(kProducts), std::end(kProducts), [&](const char* p) { return begins(symbol, 0, p); })) return nodes.front();
  for (const std::string& node : nodes) {
    const size_t last = node.rfind('/') + 1;  // npos + 1 is 0
    if (std::any_of(std::begin(kNodes), std::end(kNodes), [&](const char* n) { return begins(node, last, n); })) return node;
  }
  return nodes.front();
}

void append(std::string* out, const void* data, size_t size) { out->append(static_cast<const char*>(data), size); }

}  // namespace

std::string perf_name(const std::string& executable, const std::string& symbol, const KernelNodes& nodes) {
  std::string name;
  if (const auto found = nodes.find(symbol); found != nodes.end() && !found->second.empty()) {
    name = telling(symbol, found->second);
    if (found->second.size() > 1) name += " +" + std::to_string(found->second.size() - 1);
    name += " ";
  }
  name += "[" + symbol + "]";
  if (!executable.empty()) name += " " + executable;
  if (name.size() > kLongestName) name.resize(kLongestName);
  for (char& c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return name;
}

void write_perf_names(const PerfSetting& setting, const std::string& executable, const KernelNodes& nodes, const Image& image) {
  if (setting.form == PerfForm::kNone) return;
  const bool dump = setting.form == PerfForm::kDump;
  const pid_t pid = getpid();
  const std::string path = dump ? setting.directory + "/jit-" + std::to_string(pid) + ".dump" : "/tmp/perf-" + std::to_string(pid) + ".map";
  if (g_output.pid != pid) {  // the first image of this process
    if (g_output.fd >= 0) close(g_output.fd);
    g_output = Output{pid, -1, false, 0};
    g_output.fd = dump ? open_dump(path) : open_map(path);
  }
  if (g_output.fd < 0 || g_output.failed) return;
  std::string text;
  for (const ElfFunction& f : image.functions()) {
    if (f.size == 0) continue;
    const std::string name = perf_name(executable, f.name, nodes);
    if (dump) {
      CodeLoad record;
      record.size = static_cast<uint32_t>(sizeof(record) + name.size() + 1 + f.size);
      record.time = monotonic();
      record.pid = static_cast<uint32_t>(pid);
      record.tid = static_cast<uint32_t>(syscall(SYS_gettid));
      record.vma = record.address = reinterpret_cast<uint64_t>(f.code);
      record.code_size = f.size;
      record.index = g_output.code_index++;
      append(&text, &record, sizeof(record));
      append(&text, name.c_str(), name.size() + 1);
      append(&text, f.code, f.size);
    } else {
      char place[64];
      std::snprintf(place, sizeof(place), "%llx %llx ", reinterpret_cast<unsigned long long>(f.code), static_cast<unsigned long long>(f.size));
      text += place + name + "\n";
    }
  }
  const off_t before = lseek(g_output.fd, 0, SEEK_END);
  if (write_all(g_output.fd, text.data(), text.size())) return;
  const int why = errno;
  // A record that is cut off would spoil those before it.
  const bool cut = dump && before >= 0 && ftruncate(g_output.fd, before) == 0;
  give_up("cannot write " + path + ": " + std::strerror(why) + (cut ? " (what was there before is whole)" : ""));
}

}  // namespace disc
