#include "cpu.h"

#include <cpuid.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace disc {
namespace {

struct Cpuid {
  uint32_t l1c = 0, l1d = 0, l7b = 0, l7c = 0, l7d = 0, l71a = 0, extc = 0;
  uint64_t xcr0 = 0;

  Cpuid() {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) l1c = c, l1d = d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
      l7b = b, l7c = c, l7d = d;
      uint32_t a1 = 0;
      if (a >= 1 && __get_cpuid_count(7, 1, &a1, &b, &c, &d)) l71a = a1;
    }
    if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) extc = c;
    if (l1c & (1u << 27)) {  // OSXSAVE: the operating system lets us ask what it saves
      uint32_t lo = 0, hi = 0;
      __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
      xcr0 = (static_cast<uint64_t>(hi) << 32) | lo;
    }
  }
  bool os_avx() const { return (xcr0 & 0x6) == 0x6; }
  bool os_avx512() const { return (xcr0 & 0xe6) == 0xe6; }
};

const Cpuid& cpuid() {
  static const Cpuid* c = new Cpuid;
  return *c;
}

enum class Needs { kNothing, kAvx, kAvx512 };

struct Feature {
  const char* name;
  uint32_t Cpuid::*word;
  int bit;
  Needs os;
};

constexpr Feature kFeatures[] = {
    {"sse3", &Cpuid::l1c, 0, Needs::kNothing},        {"pni", &Cpuid::l1c, 0, Needs::kNothing},
    {"ssse3", &Cpuid::l1c, 9, Needs::kNothing},       {"cx16", &Cpuid::l1c, 13, Needs::kNothing},
    {"sse4_1", &Cpuid::l1c, 19, Needs::kNothing},     {"sse4_2", &Cpuid::l1c, 20, Needs::kNothing},
    {"movbe", &Cpuid::l1c, 22, Needs::kNothing},      {"popcnt", &Cpuid::l1c, 23, Needs::kNothing},
    {"lahf_lm", &Cpuid::extc, 0, Needs::kNothing},    {"lzcnt", &Cpuid::extc, 5, Needs::kNothing},
    {"abm", &Cpuid::extc, 5, Needs::kNothing},        {"bmi1", &Cpuid::l7b, 3, Needs::kNothing},
    {"bmi", &Cpuid::l7b, 3, Needs::kNothing},         {"bmi2", &Cpuid::l7b, 8, Needs::kNothing},
    {"fma", &Cpuid::l1c, 12, Needs::kAvx},            {"avx", &Cpuid::l1c, 28, Needs::kAvx},
    {"f16c", &Cpuid::l1c, 29, Needs::kAvx},           {"avx2", &Cpuid::l7b, 5, Needs::kAvx},
    {"avx_vnni", &Cpuid::l71a, 4, Needs::kAvx},       {"avx512f", &Cpuid::l7b, 16, Needs::kAvx512},
    {"avx512dq", &Cpuid::l7b, 17, Needs::kAvx512},    {"avx512cd", &Cpuid::l7b, 28, Needs::kAvx512},
    {"avx512bw", &Cpuid::l7b, 30, Needs::kAvx512},    {"avx512vl", &Cpuid::l7b, 31, Needs::kAvx512},
    {"avx512vbmi", &Cpuid::l7c, 1, Needs::kAvx512},   {"avx512_vnni", &Cpuid::l7c, 11, Needs::kAvx512},
    {"avx512_fp16", &Cpuid::l7d, 23, Needs::kAvx512}, {"avx512_bf16", &Cpuid::l71a, 5, Needs::kAvx512},
};

// By level.
constexpr const char* kIsas[] = {"x86-64", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-vnni-bf16"};
constexpr int kHighest = sizeof(kIsas) / sizeof(kIsas[0]) - 1;

// LLVM writes sse4.2, avx512vnni, avxvnni where /proc/cpuinfo writes sse4_2, avx512_vnni, avx_vnni.
std::string plain(const std::string& name) {
  std::string s;
  for (char c : name)
    if (c != '_' && c != '.') s += c;
  return s;
}

bool has_all(std::initializer_list<const char*> names) {
  return std::all_of(names.begin(), names.end(), [](const char* n) { return cpu_has(n); });
}

std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// CPUs of the cgroup's quota, rounded up; 0 if there is none. Version 2 (cpu.max) of this group and those above, or version 1.
int cgroup_cpus() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line, v2_path, v1_path;
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) == 0) v2_path = line.substr(3);
    const size_t at = line.find(":cpu,");
    const size_t at2 = line.find(",cpu:");
    if (at != std::string::npos || at2 != std::string::npos || line.find(":cpu:") != std::string::npos)
      v1_path = line.substr(line.find(':', line.find(':') + 1) + 1);
  }
  double best = 0;
  auto take = [&best](double quota, double period) {
    if (quota > 0 && period > 0 && (best == 0 || quota / period < best)) best = quota / period;
  };
  for (std::string path = v2_path;; path = path.substr(0, path.rfind('/'))) {
    long long quota = 0, period = 0;
    const std::string text = read_line("/sys/fs/cgroup" + (path == "/" ? "" : path) + "/cpu.max");
    if (std::sscanf(text.c_str(), "%lld %lld", &quota, &period) == 2) take(static_cast<double>(quota), static_cast<double>(period));
    if (path.empty() || path == "/" || path.rfind('/') == std::string::npos) break;
  }
  for (const std::string& path : {v1_path, std::string()}) {
    const std::string dir = "/sys/fs/cgroup/cpu" + path;
    take(std::atof(read_line(dir + "/cpu.cfs_quota_us").c_str()), std::atof(read_line(dir + "/cpu.cfs_period_us").c_str()));
  }
  return best > 0 ? std::max(1, static_cast<int>(best + 0.999)) : 0;
}

int affinity_cpus() {
  // More CPUs than a cpu_set_t holds make the call fail with EINVAL: ask with larger sets.
  for (int n = 1024; n <= 65536; n *= 2) {
    cpu_set_t* set = CPU_ALLOC(n);
    if (!set) break;
    const size_t size = CPU_ALLOC_SIZE(n);
    CPU_ZERO_S(size, set);
    const int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

int isa_level(const std::string& isa) {
  for (int level = 2; level <= kHighest; ++level)
    if (isa == kIsas[level]) return level;
  return 0;
}

const char* isa_name(int level) { return kIsas[level]; }

std::string isa_names() {
  std::string names;
  for (int level = 2; level <= kHighest; ++level) names += std::string(level == 2 ? "" : level == kHighest ? " or " : ", ") + kIsas[level];
  return names;
}

bool cpu_has(const std::string& feature) {
  const std::string name = plain(feature);
  if (name == "fxsr" || name == "mmx" || name == "sse" || name == "sse2" || name == "64bit" || name == "cx8" || name == "cmov")
    return true;  // x86-64 itself
  if (name == "sahf") return cpu_has("lahf_lm");
  if (name == "xsave") return cpuid().xcr0 != 0;
  if (name == "crc32") return cpu_has("sse4_2");
  if (name == "evex512") return cpu_has("avx512f");
  for (const Feature& f : kFeatures) {
    if (plain(f.name) != name) continue;
    if (f.os == Needs::kAvx && !cpuid().os_avx()) return false;
    if (f.os == Needs::kAvx512 && !cpuid().os_avx512()) return false;
    return (cpuid().*f.word >> f.bit) & 1;
  }
  return false;
}

int host_isa_level() {
  static const int level = [] {
    if (!has_all({"cx16", "lahf_lm", "popcnt", "sse3", "sse4_1", "sse4_2", "ssse3"})) return 1;
    if (!has_all({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"})) return 2;
    if (!has_all({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})) return 3;
    if (!cpu_has("avx512_vnni")) return 4;
    return cpu_has("avx512_bf16") ? 6 : 5;
  }();
  return level;
}

Status choose_target(const std::vector<TargetCode>& targets, int cap, size_t* index) {
  const int host = host_isa_level();
  const int limit = cap > 0 ? std::min(cap, host) : host;
  int best = 0;
  std::string have;
  for (size_t i = 0; i < targets.size(); ++i) {
    const int level = isa_level(targets[i].isa);
    have += (have.empty() ? "" : ", ") + targets[i].isa;
    const auto& features = targets[i].features;
    const auto missing = std::find_if(features.begin(), features.end(), [](const auto& f) { return !cpu_has(f); });
    if (missing != features.end()) {
      have += " (needs " + *missing + ")";
      continue;
    }
    if (level > best && level <= limit) best = level, *index = i;
  }
  if (best > 0) return Status();
  return Status(kFailedPrecondition,
                "no code for this machine: the artefact has " + have + "; this CPU and operating system run " +
                    (host < 2 ? std::string("less than x86-64-v2") : isa_name(host)) +
                    (cap > 0 ? ", and DISC_TF_TARGET or disc_set_target allows at most " + std::string(isa_name(cap)) : std::string()) +
                    "; optimise the graph again with a lower --target");
}

int usable_cpus() {
  const int quota = cgroup_cpus();
  const int cpus = affinity_cpus();
  return std::max(1, quota > 0 ? std::min(quota, cpus) : cpus);
}

}  // namespace disc
