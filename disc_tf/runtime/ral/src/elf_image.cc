#include "elf_image.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "disc_ral_abi.h"

namespace disc {
namespace {

constexpr uint64_t kMaxSpan = uint64_t{1} << 30;

Status bad(const std::string& what) { return Status(kDataLoss, "code image: " + what); }

uint64_t page_size() {
  static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

template <typename T>
T load(const uint8_t* at) {
  T v;
  std::memcpy(&v, at, sizeof(T));
  return v;
}

// Bytes of the file that back [address, address + size), null if they are not all in one segment.
const uint8_t* at_address(const ElfImage& e, uint64_t address, uint64_t size) {
  for (const ElfSegment& s : e.segments)
    if (address >= s.address && address - s.address <= s.file_size && size <= s.file_size - (address - s.address))
      return e.data + s.offset + (address - s.address);
  return nullptr;
}

struct Dynamic {
  uint64_t hash = 0, strings = 0, strings_size = 0, symbols = 0, rela = 0, rela_size = 0;
};

Status read_dynamic(const ElfImage& e, Dynamic* d) {
  const uint8_t* p = at_address(e, e.dynamic_address, e.dynamic_size);
  if (!p) return bad("the dynamic table lies outside");
  for (uint64_t i = 0; i + sizeof(Elf64_Dyn) <= e.dynamic_size; i += sizeof(Elf64_Dyn)) {
    const auto entry = load<Elf64_Dyn>(p + i);
    const uint64_t v = entry.d_un.d_val;
    switch (entry.d_tag) {
      case DT_NULL: return Status();
      case DT_HASH: d->hash = v; break;
      case DT_STRTAB: d->strings = v; break;
      case DT_STRSZ: d->strings_size = v; break;
      case DT_SYMTAB: d->symbols = v; break;
      case DT_RELA: d->rela = v; break;
      case DT_RELASZ: d->rela_size = v; break;
      case DT_NEEDED: return bad("it needs another library");
      case DT_INIT: case DT_FINI: case DT_INIT_ARRAY: case DT_FINI_ARRAY: case DT_PREINIT_ARRAY:
        return bad("it has initialisers or finalisers");
      case DT_REL: case DT_JMPREL: case DT_TEXTREL: return bad("it has relocations of a kind that is not allowed");
      default: break;
    }
  }
  return Status();
}

Status relocate(const ElfImage& e, const Dynamic& d, uint8_t* base) {
  if (d.rela_size == 0) return Status();
  const uint8_t* p = at_address(e, d.rela, d.rela_size);
  if (!p) return bad("the relocation table lies outside");
  for (uint64_t i = 0; i + sizeof(Elf64_Rela) <= d.rela_size; i += sizeof(Elf64_Rela)) {
    const auto r = load<Elf64_Rela>(p + i);
    if (ELF64_R_TYPE(r.r_info) != R_X86_64_RELATIVE) return bad("it has a relocation that is not relative");
    const bool inside = std::any_of(e.segments.begin(), e.segments.end(), [&](const ElfSegment& s) {
      return s.write && r.r_offset >= s.address && r.r_offset - s.address <= s.memory_size - 8 && s.memory_size >= 8;
    });
    if (!inside) return bad("it has a relocation outside its writable data");
    const uint64_t v = reinterpret_cast<uint64_t>(base) + static_cast<uint64_t>(r.r_addend);
    std::memcpy(base + r.r_offset, &v, 8);
  }
  return Status();
}

Status find_query(const ElfImage& e, const Dynamic& d, uint8_t* base, void** query) {
  const uint8_t* hash = d.hash ? at_address(e, d.hash, 8) : nullptr;
  if (!hash) return bad("it has no DT_HASH symbol table");
  const uint32_t count = load<uint32_t>(hash + 4);
  const uint8_t* symbols = at_address(e, d.symbols, uint64_t{count} * sizeof(Elf64_Sym));
  const uint8_t* strings = at_address(e, d.strings, d.strings_size);
  if (!symbols || !strings) return bad("its symbol table lies outside");
  const size_t want = sizeof(DISC_QUERY_SYMBOL);
  for (uint32_t i = 1; i < count; ++i) {
    const auto s = load<Elf64_Sym>(symbols + i * sizeof(Elf64_Sym));
    if (s.st_shndx == SHN_UNDEF || ELF64_ST_BIND(s.st_info) == STB_LOCAL || s.st_name >= d.strings_size || d.strings_size - s.st_name < want) continue;
    if (std::memcmp(strings + s.st_name, DISC_QUERY_SYMBOL, want) != 0) continue;
    const bool code = std::any_of(e.segments.begin(), e.segments.end(), [&](const ElfSegment& g) {
      return g.execute && s.st_value >= g.address && s.st_value - g.address < g.file_size;
    });
    if (!code) return bad("its query function is not code");
    *query = base + s.st_value;
    return Status();
  }
  return bad("it does not export " DISC_QUERY_SYMBOL);
}

}  // namespace

Status parse_elf(const uint8_t* data, size_t size, ElfImage* out) {
  *out = ElfImage();
  out->data = data;
  out->size = size;
  if (size < sizeof(Elf64_Ehdr) || std::memcmp(data, ELFMAG, SELFMAG) != 0) return bad("not an ELF file");
  const auto h = load<Elf64_Ehdr>(data);
  if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_type != ET_DYN || h.e_machine != EM_X86_64)
    return bad("not a shared object for x86-64");
  if (h.e_phentsize != sizeof(Elf64_Phdr) || h.e_phnum > 64 || h.e_phoff > size || h.e_phnum * sizeof(Elf64_Phdr) > size - h.e_phoff)
    return bad("its program headers lie outside");
  uint64_t end = 0;
  for (int i = 0; i < h.e_phnum; ++i) {
    const auto p = load<Elf64_Phdr>(data + h.e_phoff + i * sizeof(Elf64_Phdr));
    if (p.p_type == PT_DYNAMIC) out->dynamic_address = p.p_vaddr, out->dynamic_size = p.p_memsz;
    if (p.p_type == PT_INTERP || p.p_type == PT_TLS) return bad("it has an interpreter or thread-local data");
    if (p.p_type != PT_LOAD || p.p_memsz == 0) continue;
    if (p.p_offset > size || p.p_filesz > size - p.p_offset || p.p_filesz > p.p_memsz || p.p_memsz > kMaxSpan || p.p_vaddr > kMaxSpan)
      return bad("a segment lies outside");
    const bool w = p.p_flags & PF_W, x = p.p_flags & PF_X;
    if (w && x) return bad("a segment is writable and executable");
    if (p.p_vaddr < end / page_size() * page_size() && end > 0) return bad("segments overlap");
    out->segments.push_back({p.p_offset, p.p_vaddr, p.p_filesz, p.p_memsz, w, x});
    end = p.p_vaddr + p.p_memsz;
  }
  if (out->segments.empty()) return bad("it has no segments");
  out->span = (end + page_size() - 1) / page_size() * page_size();
  Dynamic d;
  return read_dynamic(*out, &d);
}

Status map_elf(const ElfImage& image, uint8_t** base, void** query) {
  Dynamic d;
  if (Status s = read_dynamic(image, &d); !s.ok()) return s;
  // Segments that share a page (other linkers than ours do that) could not get rights of their own.
  for (size_t i = 1; i < image.segments.size(); ++i) {
    const ElfSegment &a = image.segments[i - 1], &b = image.segments[i];
    if ((a.address + a.memory_size - 1) / page_size() == b.address / page_size()) return bad("segments share a page");
  }
  void* p = mmap(nullptr, image.span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return Status(kResourceExhausted, std::string("code image: mmap: ") + std::strerror(errno));
  auto* at = static_cast<uint8_t*>(p);
  for (const ElfSegment& s : image.segments) std::memcpy(at + s.address, image.data + s.offset, s.file_size);
  Status status = relocate(image, d, at);
  if (status.ok()) status = find_query(image, d, at, query);
  for (const ElfSegment& s : image.segments) {
    if (!status.ok()) break;
    const uint64_t from = s.address / page_size() * page_size();
    const int rights = PROT_READ | (s.write ? PROT_WRITE : 0) | (s.execute ? PROT_EXEC : 0);
    if (mprotect(at + from, s.address + s.memory_size - from, rights) != 0)
      status = Status(kFailedPrecondition, std::string("code image: mprotect: ") + std::strerror(errno));
  }
  if (!status.ok()) {
    munmap(p, image.span);
    return status;
  }
  *base = at;
  return Status();
}

ElfSymbols find_symbols(const ElfImage& image) {
  Dynamic d;
  ElfSymbols found;
  if (!read_dynamic(image, &d).ok()) return found;
  const uint8_t* hash = d.hash ? at_address(image, d.hash, 8) : nullptr;
  if (!hash) return found;
  const uint32_t count = load<uint32_t>(hash + 4);
  // What was loaded is known to be the image only where nobody can write to it.
  auto read_only = [&](uint64_t address, uint64_t size) {
    return std::any_of(image.segments.begin(), image.segments.end(), [&](const ElfSegment& s) {
      return !s.write && address >= s.address && address - s.address <= s.file_size && size <= s.file_size - (address - s.address);
    });
  };
  if (!read_only(d.symbols, uint64_t{count} * sizeof(Elf64_Sym)) || !read_only(d.strings, d.strings_size)) return found;
  return {d.symbols, d.strings, d.strings_size, count};
}

bool function_at(const ElfSymbols& table, const uint8_t* base, uint64_t span, uint32_t index, ElfFunction* out) {
  if (index >= table.count) return false;
  const auto s = load<Elf64_Sym>(base + table.symbols + uint64_t{index} * sizeof(Elf64_Sym));
  if (ELF64_ST_TYPE(s.st_info) != STT_FUNC || s.st_shndx == SHN_UNDEF || s.st_name >= table.strings_size) return false;
  if (s.st_value >= span || s.st_size > span - s.st_value) return false;
  const auto* name = reinterpret_cast<const char*>(base + table.strings + s.st_name);
  if (*name == 0 || !std::memchr(name, 0, table.strings_size - s.st_name)) return false;
  *out = {base + s.st_value, s.st_size, name};
  return true;
}

void unmap_elf(const ElfImage& image, uint8_t* base) { munmap(base, image.span); }

bool same_code(const ElfImage& image, const uint8_t* base) {
  return std::all_of(image.segments.begin(), image.segments.end(), [&](const ElfSegment& s) {
    return s.write || std::memcmp(base + s.address, image.data + s.offset, s.file_size) == 0;
  });
}

}  // namespace disc
