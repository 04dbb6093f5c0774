// What this machine can run, asked of CPUID and of the operating system (XCR0: a kernel may not save AVX state).
#pragma once

#include <string>
#include <vector>

#include "artifact.h"
#include "status.h"

namespace disc {

// 2, 3, 4 for "x86-64-v2" ..., 5 and 6 for the extensions of v4 in which artefacts have code for products of narrow types; 0 for any other name.
int isa_level(const std::string& isa);
// The highest level that CPU and operating system support (1 if not even v2).
int host_isa_level();
// "x86-64" below 2.
const char* isa_name(int level);
// All that a target may be called, for messages.
std::string isa_names();
// By /proc/cpuinfo's name or LLVM's ("sse4_2", "avx512vl", "avx512_vnni", ...). False for an unknown name.
bool cpu_has(const std::string& feature);
// Index of the best usable target at most `cap` (a level; 0: no cap), or an error that says what was missing.
Status choose_target(const std::vector<TargetCode>& targets, int cap, size_t* index);

// CPUs that this process may use: affinity mask and cgroup quota; at least 1.
int usable_cpus();

}  // namespace disc
