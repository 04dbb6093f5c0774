#include "settings.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "cpu.h"

namespace disc {
namespace {

std::atomic<int> g_target{-1}, g_loader{-1};
// What was said before may be in use in another thread: kept. No lock, which a fork might leave locked.
struct TrustChoice {
  bool given;
  std::string path;
  const TrustChoice* before;
};
std::atomic<const TrustChoice*> g_trust{nullptr};

std::string get(const char* name) {
  const char* v = std::getenv(name);
  return v ? v : "";
}

Settings* read() {
  auto* s = new Settings;
  if (const std::string text = get("DISC_TF_NUM_THREADS"); !text.empty()) {
    char* end = nullptr;
    const long n = std::strtol(text.c_str(), &end, 10);
    if (*end != 0 || n < 0 || n > 4096)
      s->error = Status(kInvalidArgument, "DISC_TF_NUM_THREADS=" + text + ": expected a number of threads, 0 to 4096");
    else
      s->num_threads = static_cast<int>(n);
  }
  if (const std::string text = get("DISC_TF_TARGET"); !text.empty())
    if (Status st = parse_target(text, &s->target_cap); !st.ok()) s->error = Status(st.code, "DISC_TF_TARGET: " + st.message);
  if (const std::string text = get("DISC_TF_LOADER"); !text.empty())
    if (Status st = parse_loader(text, &s->loader); !st.ok()) s->error = Status(st.code, "DISC_TF_LOADER: " + st.message);
  s->cache_dir = get("DISC_TF_CACHE_DIR");
  if (s->cache_dir.empty() && !get("XDG_CACHE_HOME").empty()) s->cache_dir = get("XDG_CACHE_HOME") + "/disc_tf";
  if (s->cache_dir.empty() && !get("HOME").empty()) s->cache_dir = get("HOME") + "/.cache/disc_tf";
  if (Status st = absolute_path(get("DISC_TF_PACKS"), &s->packs); !st.ok()) s->error = Status(st.code, "DISC_TF_PACKS: " + st.message);
  if (Status st = absolute_path(get("DISC_TF_TRUST"), &s->trust); !st.ok()) s->error = Status(st.code, "DISC_TF_TRUST: " + st.message);
  if (Status st = parse_perf(get("DISC_TF_PERF"), &s->perf); !st.ok()) s->error = Status(st.code, "DISC_TF_PERF: " + st.message);
  if (const std::string text = get("DISC_TF_PACKS_LIMIT_MB"); !text.empty()) {
    char* end = nullptr;
    const long long n = std::strtoll(text.c_str(), &end, 10);
    if (*end != 0 || n < 0 || n > INT64_MAX >> 20)
      s->error = Status(kInvalidArgument, "DISC_TF_PACKS_LIMIT_MB=" + text + ": expected a number of megabytes; 0 is no limit");
    else
      s->packs_limit = static_cast<int64_t>(n) << 20;
  }
  return s;
}

}  // namespace

const Settings& environment() {
  static const Settings* s = read();
  return *s;
}

Status parse_target(const std::string& text, int* cap) {
  *cap = text == "native" ? 0 : isa_level(text);
  if (text == "native" || *cap > 0) return Status();
  return Status(kInvalidArgument, "unknown target '" + text + "'; expected native, " + isa_names());
}

Status parse_loader(const std::string& text, Loader* loader) {
  static constexpr const char* kNames[] = {"auto", "memfd", "file", "mmap"};
  for (int i = 0; i < 4; ++i)
    if (text == kNames[i]) {
      *loader = static_cast<Loader>(i);
      return Status();
    }
  return Status(kInvalidArgument, "unknown loader '" + text + "'; expected auto, memfd, file or mmap");
}

Status parse_perf(const std::string& text, PerfSetting* perf) {
  *perf = PerfSetting();
  if (text.empty()) return Status();
  if (text == "map") {
    perf->form = PerfForm::kMap;
    return Status();
  }
  static const std::string kDump = "jitdump";
  if (text.compare(0, kDump.size(), kDump) == 0 && (text.size() == kDump.size() || text[kDump.size()] == ':')) {
    perf->form = PerfForm::kDump;
    const std::string directory = text.size() > kDump.size() + 1 ? text.substr(kDump.size() + 1) : ".";
    return absolute_path(directory, &perf->directory);
  }
  return Status(kInvalidArgument, "unknown form '" + text + "'; expected map, jitdump or jitdump:DIRECTORY");
}

Status absolute_path(const std::string& path, std::string* out) {
  *out = path;
  if (path.empty() || path.front() == '/') return Status();
  char here[PATH_MAX];
  if (!getcwd(here, sizeof(here))) return Status(kFailedPrecondition, std::string("the working directory is not known: ") + std::strerror(errno));
  *out = std::string(here) + "/" + path;
  return Status();
}

int target_cap() {
  const int v = g_target.load(std::memory_order_relaxed);
  return v >= 0 ? v : environment().target_cap;
}
void override_target_cap(int cap) { g_target.store(cap, std::memory_order_relaxed); }

Loader loader() {
  const int v = g_loader.load(std::memory_order_relaxed);
  return v >= 0 ? static_cast<Loader>(v) : environment().loader;
}
void override_loader(int loader) { g_loader.store(loader, std::memory_order_relaxed); }

std::string trust_file() {
  const TrustChoice* choice = g_trust.load(std::memory_order_acquire);
  return choice && choice->given ? choice->path : environment().trust;
}
void override_trust_file(const std::string* path) {
  const TrustChoice* now = g_trust.load(std::memory_order_acquire);
  if (now && now->given == (path != nullptr) && (!path || now->path == *path)) return;
  auto* choice = new TrustChoice{path != nullptr, path ? *path : std::string(), now};
  while (!g_trust.compare_exchange_weak(choice->before, choice, std::memory_order_acq_rel)) {
  }
}

}  // namespace disc
