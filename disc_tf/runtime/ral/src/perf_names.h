// Names of compiled code for Linux perf (DISC_TF_PERF): /tmp/perf-PID.map, or a jitdump with the code itself. Code lies in anonymous memory
// then, since perf asks for such names nowhere else. What cannot be written names nothing and fails no load: stderr has the first reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "image.h"
#include "settings.h"

namespace disc {

// Kernel -> the original nodes that it computes.
using KernelNodes = std::map<std::string, std::vector<std::string>>;

// What perf shows for a function of executable `executable`: printable, without line ends, of bounded length.
std::string perf_name(const std::string& executable, const std::string& symbol, const KernelNodes& nodes);

// Tells perf of an image that was loaded. Called under the registry's lock, after install_fork_handlers.
void write_perf_names(const PerfSetting& setting, const std::string& executable, const KernelNodes& nodes, const Image& image);

}  // namespace disc
