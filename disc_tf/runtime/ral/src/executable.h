// A loaded artefact: its signature, its code, the packed constants that it keeps alive.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "artifact.h"
#include "disc_ral.h"
#include "image.h"
#include "prepared.h"

namespace disc {

class Executable {
 public:
  // Parses, picks a target, loads; gives the executable that is already there for equal bytes and target.
  // constants (may be null): the values that the artefact holds; they point into `data`.
  static Status load(const uint8_t* data, size_t size, std::shared_ptr<Executable>* out, std::vector<ConstantSpec>* constants = nullptr);

  const Artifact& artifact() const { return artifact_; }
  const disc_executable& code() const { return code_; }
  const std::string& isa() const { return isa_; }
  const char* loader() const { return image_->loader(); }
  const Image& image() const { return *image_; }
  const std::string& identity() const { return identity_; }

  // Packed constants of this executable, of each entry the latest few contents. `made_of`: what tells those of an entry apart, see
  // disc_context::note_made_of.
  PreparedRef kept(int32_t index, const std::vector<uint64_t>& made_of);
  void keep(int32_t index, const std::vector<uint64_t>& made_of, const PreparedRef& data);
  // True once entry `index` was made anew for so many buffers that packing it does not pay.
  bool unstable(int32_t index);

  static void lock_for_fork();
  static void unlock_after_fork();

  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

 private:
  Executable() = default;
  struct Kept {
    std::vector<uint64_t> made_of;
    PreparedRef data;
  };
  struct Slot {
    std::vector<Kept> entries;  // latest last
    int rebuilds = 0;
  };

  Artifact artifact_;
  disc_executable code_{};
  std::string isa_, identity_;
  std::unique_ptr<Image> image_;
  std::vector<Slot> slots_;  // under one lock of the process, so that fork() can hold it
};

int64_t images_loaded();
int64_t images_live();

}  // namespace disc
