// Every setting of the RAL that comes from the environment, read once; API calls override.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "status.h"

namespace disc {

enum class Loader : int { kAuto = 0, kMemfd, kFile, kMmap };

// How perf is told the names of compiled code.
enum class PerfForm : int { kNone = 0, kMap, kDump };
struct PerfSetting {
  PerfForm form = PerfForm::kNone;
  std::string directory;  // of jitdumps, absolute
};

struct Settings {
  int num_threads = 0;  // DISC_TF_NUM_THREADS; 0: by CPUs
  int target_cap = 0;   // DISC_TF_TARGET; 0: native
  Loader loader = Loader::kAuto;  // DISC_TF_LOADER
  std::string cache_dir;          // DISC_TF_CACHE_DIR, else $XDG_CACHE_HOME/disc_tf, else ~/.cache/disc_tf; may be empty
  std::string packs;              // DISC_TF_PACKS: directory of packed constants that processes share, absolute; empty: none
  std::string trust;              // DISC_TF_TRUST: file of the keys whose code is loaded, absolute; empty: any code is
  PerfSetting perf;               // DISC_TF_PERF: map, jitdump or jitdump:DIRECTORY (default: the working directory); empty: none
  int64_t packs_limit = 0;        // DISC_TF_PACKS_LIMIT_MB, in bytes; 0: none
  Status error;                   // a value that was not understood; loading fails with it
};

const Settings& environment();

Status parse_target(const std::string& text, int* cap);
// Sets *out to the absolute path of `path` ("" stays "").
Status absolute_path(const std::string& path, std::string* out);
Status parse_loader(const std::string& text, Loader* loader);
Status parse_perf(const std::string& text, PerfSetting* perf);

// In force now: the API's value, else the environment's.
int target_cap();
void override_target_cap(int cap);  // -1: none
Loader loader();
void override_loader(int loader);  // -1: none
std::string trust_file();          // "": no policy
void override_trust_file(const std::string* path);  // null: none

}  // namespace disc
