// The part of ELF that images use: a shared object for x86-64 with a handful of load segments. Checked before the dynamic
// linker or our own mapper sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "status.h"

namespace disc {

struct ElfSegment {
  uint64_t offset = 0, address = 0, file_size = 0, memory_size = 0;
  bool write = false, execute = false;
};

struct ElfImage {
  const uint8_t* data = nullptr;
  size_t size = 0;
  std::vector<ElfSegment> segments;
  uint64_t span = 0;  // bytes of address space from address 0, a multiple of the page size
  uint64_t dynamic_address = 0, dynamic_size = 0;
};

// Refuses what is not such an object: other machines, W+X segments, initialisers, needed libraries.
Status parse_elf(const uint8_t* data, size_t size, ElfImage* out);

// Maps the image into anonymous memory, RW first and then R, RX or RW, and finds the query function. The mapping is
// [*base, *base + span).
Status map_elf(const ElfImage& image, uint8_t** base, void** query);
void unmap_elf(const ElfImage& image, uint8_t* base);

// Where the names of functions are in a loaded image, as addresses in it; count 0: nowhere.
struct ElfSymbols {
  uint64_t symbols = 0, strings = 0, strings_size = 0;
  uint32_t count = 0;
};
ElfSymbols find_symbols(const ElfImage& image);

// A function of a loaded image. `name` lives as long as the image is loaded.
struct ElfFunction {
  const uint8_t* code;
  uint64_t size;
  const char* name;
};
// Function `index` of a table in the image at `base`; false if this symbol is none.
bool function_at(const ElfSymbols& table, const uint8_t* base, uint64_t span, uint32_t index, ElfFunction* out);

// True if the read-only segments at `base` are those of the image: that the library we got is the one we asked for.
bool same_code(const ElfImage& image, const uint8_t* base);

}  // namespace disc
