// Native code in memory: from the artefact's bytes to callable functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "disc_ral_abi.h"
#include "elf_image.h"
#include "settings.h"
#include "status.h"

namespace disc {

// A loaded code image; unloaded by the destructor.
class Image {
 public:
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Tries the ways in order: memfd + dlopen, a file in a 0700 cache directory + dlopen, anonymous memory RW then RX; never RWX.
  // `way` other than kAuto allows that one only. The code is checked byte for byte after it was loaded.
  static Status load(const uint8_t* data, size_t size, Loader way, std::unique_ptr<Image>* out);

  disc_executable_query_fn query() const { return query_; }
  const char* loader() const { return loader_; }

  // The functions that it names, in no order. Names live as long as the image.
  std::vector<ElfFunction> functions() const;
  // The name of the function at `code`, "" if it has none.
  const char* name_of(const void* code) const;
  const uint8_t* base() const { return base_; }

 private:
  Image() = default;
  disc_executable_query_fn query_ = nullptr;
  const char* loader_ = "";
  const uint8_t* base_ = nullptr;  // address 0 of the image, however it was loaded
  uint64_t span_ = 0;
  ElfSymbols symbols_;
  void* handle_ = nullptr;   // dlopen
  uint8_t* map_ = nullptr;   // our own mapping
  size_t map_size_ = 0;
};

}  // namespace disc
