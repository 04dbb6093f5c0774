// Every setting of the RAL that comes from the environment, read once; API calls override.
#pragma once

#include <atomic>
#include <string>

#include "status.h"

namespace disc {

enum class Loader : int { kAuto = 0, kMemfd, kFile, kMmap };

struct Settings {
  int num_threads = 0;  // DISC_TF_NUM_THREADS; 0: by CPUs
  int target_cap = 0;   // DISC_TF_TARGET; 0: native
  Loader loader = Loader::kAuto;  // DISC_TF_LOADER
  std::string cache_dir;          // DISC_TF_CACHE_DIR, else $XDG_CACHE_HOME/disc_tf, else ~/.cache/disc_tf; may be empty
  Status error;                   // a value that was not understood; loading fails with it
};

const Settings& environment();

Status parse_target(const std::string& text, int* cap);
Status parse_loader(const std::string& text, Loader* loader);

// In force now: the API's value, else the environment's.
int target_cap();
void override_target_cap(int cap);  // -1: none
Loader loader();
void override_loader(int loader);  // -1: none

}  // namespace disc
