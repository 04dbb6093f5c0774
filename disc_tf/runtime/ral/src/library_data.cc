// Ops whose result's size depends on data: results padded to their upper bound, and a count.
//
// Nothing here trusts data: positions are counted and bounded by the sizes among the scalars, and results do not depend on the threads.
// Data may change between two passes over it (library.h: read_once): the second writes no more than the first one counted, and zeros where
// it finds less.

#include <algorithm>
#include <cstring>
#include <string>

#include "artifact.h"
#include "disc_ral.h"
#include "library.h"
#include "narrow_float.h"
#include "run.h"

namespace disc {
namespace {

// ---- nonzero ------------------------------------------------------------------------------------------------------

constexpr int64_t kChunk = 65536;  // elements that a task counts, then lists
constexpr int64_t kMaxVector = 8;  // ranks that Where takes

enum { kTotal, kDimCount, kDims };

int64_t count_true(const uint8_t* p, int64_t begin, int64_t end) {
  int64_t n = 0;
  for (int64_t i = begin; i < end; ++i) n += p[i] != 0;
  return n;
}

void count_chunks(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  auto* starts = static_cast<int64_t*>(a->bufs[3]);
  const int64_t total = a->scalars[kTotal];
  for (int64_t c = begin; c < end; ++c)
    starts[c] = count_true(static_cast<const uint8_t*>(a->bufs[0]), c * kChunk, std::min(total, (c + 1) * kChunk));
}

// The true ones of elements [i, end) of a line that starts at `start`, written behind `at` until `last`: `outer` is where the line is.
template <int kRank>
int64_t list_line(const uint8_t* p, int64_t i, int64_t end, int64_t start, const int64_t* outer, int64_t rank, int64_t* out, int64_t at,
                  int64_t last) {
  const int64_t width = kRank ? kRank : rank;
  while (i < end && at < last) {
    if (i + 8 <= end) {
      uint64_t eight;
      std::memcpy(&eight, p + i, sizeof(eight));
      if (eight == 0) {
        i += 8;
        continue;
      }
    }
    // Written whether true or not, and counted if true: that needs no prediction.
    for (const int64_t stop = std::min(i + 8, end); i < stop && at < last; ++i) {
      int64_t* to = out + at * width;
      for (int64_t k = 0; k + 1 < width; ++k) to[k] = outer[k];
      to[width - 1] = i - start;
      at += read_once(p, i) != 0;
    }
  }
  return at;
}

// Index vectors of the true elements of a chunk, from where the chunks before it end. Never more than were counted.
template <int kRank>
void list_chunk(const disc_kernel_args* a, int64_t c) {
  const auto* p = static_cast<const uint8_t*>(a->bufs[0]);
  auto* out = static_cast<int64_t*>(a->bufs[1]);
  const auto* starts = static_cast<const int64_t*>(a->bufs[3]);
  const int64_t total = a->scalars[kTotal], rank = kRank ? kRank : a->scalars[kDimCount];
  const int64_t* dims = a->scalars + kDims;
  const int64_t minor = dims[rank - 1], limit = std::min(total, (c + 1) * kChunk), last = starts[c + 1];
  int64_t at = starts[c], i = c * kChunk, line = i / minor;
  int64_t outer[kMaxVector] = {};
  for (int64_t k = rank - 2, rest = line; k >= 0; --k) {
    outer[k] = rest % dims[k];
    rest /= dims[k];
  }
  while (i < limit && at < last) {
    const int64_t end = std::min((line + 1) * minor, limit);
    at = list_line<kRank>(p, i, end, line * minor, outer, rank, out, at, last);
    i = end;
    ++line;
    for (int64_t k = rank - 2; k >= 0 && ++outer[k] == dims[k]; --k) outer[k] = 0;
  }
  std::fill(out + at * rank, out + last * rank, int64_t{0});
}

void list_chunks(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  for (int64_t c = begin; c < end; ++c) switch (a->scalars[kDimCount]) {
      case 1: list_chunk<1>(a, c); break;
      case 2: list_chunk<2>(a, c); break;
      default: list_chunk<0>(a, c);
    }
}

// ---- unique -------------------------------------------------------------------------------------------------------

enum { kUniqueDtype, kUniqueRows, kUniqueWidth, kUniqueIndexBytes, kUniqueDistinctZeros };

// An element as an integer that is equal for equal values; false for a NaN, which equals nothing. f32 and f64 denormals count as zero, as
// wherever TensorFlow computes with them; `zeros` tells +0 and -0 apart.
template <typename Bits>
bool float_key(const void* base, int64_t i, Bits infinity, bool flush, bool zeros, uint64_t* key) {
  Bits bits;
  std::memcpy(&bits, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
  constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const Bits magnitude = static_cast<Bits>(bits & static_cast<Bits>(~sign));
  if (magnitude > infinity) return false;
  if (!zeros && (magnitude == 0 || (flush && (magnitude & infinity) == 0))) bits = 0;
  *key = bits;
  return true;
}

template <typename Bits>
bool integer_key(const void* base, int64_t i, uint64_t* key) {
  Bits bits;
  std::memcpy(&bits, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
  *key = bits;
  return true;
}

bool element_key(const void* base, int64_t i, int32_t dtype, bool zeros, uint64_t* key) {
  switch (dtype) {
    case DISC_F16: return float_key<uint16_t>(base, i, 0x7C00, false, zeros, key);
    case DISC_BF16: return float_key<uint16_t>(base, i, 0x7F80, false, zeros, key);
    case DISC_F32: return float_key<uint32_t>(base, i, 0x7F800000u, true, zeros, key);
    case DISC_F64: return float_key<uint64_t>(base, i, 0x7FF0000000000000u, true, zeros, key);
    default: break;
  }
  switch (dtype_size(dtype)) {
    case 1: return integer_key<uint8_t>(base, i, key);
    case 2: return integer_key<uint16_t>(base, i, key);
    case 4: return integer_key<uint32_t>(base, i, key);
    default: return integer_key<uint64_t>(base, i, key);
  }
}

__extension__ typedef unsigned __int128 Wide;

uint64_t mix(uint64_t h, uint64_t key) {
  const auto product = static_cast<Wide>(h ^ key) * 0x9E3779B97F4A7C15u;
  h = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  h *= 0xD6E8FEB86659FD93u;
  return h ^ (h >> 32);
}

// Rows of one element whose key fits 32 bits: the tag in the table is the key.
struct ShortKeys {
  static constexpr bool kExact = true;
  const void* base;
  int32_t dtype;
  bool zeros;

  bool hash(int64_t row, uint64_t seed, uint64_t* out, uint32_t* tag) const {
    uint64_t key = 0;
    if (!element_key(base, row, dtype, zeros, &key)) return false;
    *out = mix(seed, key);
    *tag = static_cast<uint32_t>(key);
    return true;
  }
  static bool equal(int64_t, int64_t) { return true; }
};

struct Rows {
  static constexpr bool kExact = false;
  const void* base;
  int64_t width;
  int32_t dtype;
  bool zeros;

  // False if the row holds a NaN.
  bool hash(int64_t row, uint64_t seed, uint64_t* out, uint32_t* tag) const {
    uint64_t h = seed, key = 0;
    for (int64_t j = 0; j < width; ++j) {
      if (!element_key(base, row * width + j, dtype, zeros, &key)) return false;
      h = mix(h, key);
    }
    *out = h;
    *tag = static_cast<uint32_t>(h);
    return true;
  }
  bool equal(int64_t a, int64_t b) const {
    uint64_t x = 0, y = 0;
    for (int64_t j = 0; j < width; ++j) {
      element_key(base, a * width + j, dtype, zeros, &x);
      element_key(base, b * width + j, dtype, zeros, &y);
      if (x != y) return false;
    }
    return true;
  }
};

// `table`: 2 n slots, never more than half full; 0 is an empty one, else the number + 1 and above it the tag.
template <typename Keys, typename Index>
int64_t number_rows(const Keys& x, int64_t n, int64_t* first, Index* index, Index* counts, uint64_t* table) {
  const int64_t capacity = 2 * n;
  std::memset(table, 0, static_cast<size_t>(capacity) * sizeof(uint64_t));
  // A seed that no input can be made for. The numbering does not depend on it.
  const uint64_t seed = reinterpret_cast<uintptr_t>(table) * 0x9E3779B97F4A7C15u;
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint64_t h = 0;
    uint32_t tag = 0;
    int64_t number = found;
    if (x.hash(i, seed, &h, &tag)) {
      auto at = static_cast<int64_t>((static_cast<Wide>(h) * static_cast<uint64_t>(capacity)) >> 64);
      const auto same = [&](uint64_t slot) {
        return static_cast<uint32_t>(slot >> 32) == tag && (Keys::kExact || x.equal(first[static_cast<uint32_t>(slot) - 1], i));
      };
      while (table[at] != 0 && !same(table[at])) at = at + 1 == capacity ? 0 : at + 1;
      if (table[at] != 0)
        number = static_cast<uint32_t>(table[at]) - 1;
      else
        table[at] = static_cast<uint64_t>(tag) << 32 | static_cast<uint64_t>(found + 1);
    }
    if (number == found) {
      first[found] = i;
      counts[found] = 0;
      ++found;
    }
    index[i] = static_cast<Index>(number);
    ++counts[number];
  }
  return found;
}

template <typename Index>
int64_t number_any(void* const* args, const int64_t* s) {
  const int64_t n = s[kUniqueRows], width = s[kUniqueWidth];
  const auto dtype = static_cast<int32_t>(s[kUniqueDtype]);
  const bool zeros = s[kUniqueDistinctZeros] != 0 && width == 1;
  auto* first = static_cast<int64_t*>(args[1]);
  auto *index = static_cast<Index*>(args[2]), *counts = static_cast<Index*>(args[3]);
  auto* table = static_cast<uint64_t*>(args[5]);
  if (width == 1 && dtype_size(dtype) <= 4) return number_rows(ShortKeys{args[0], dtype, zeros}, n, first, index, counts, table);
  return number_rows(Rows{args[0], width, dtype, zeros}, n, first, index, counts, table);
}

// ---- partition ----------------------------------------------------------------------------------------------------

enum { kPartitionRows, kParts };

// ---- search -------------------------------------------------------------------------------------------------------

enum { kSearchDtype, kSearchLines, kSearchLength, kSearchValues, kUpper, kSearchIndexBytes };

struct Half {
  uint16_t bits;
  float value() const { return half_to_float(bits); }
};

struct Bfloat {
  uint16_t bits;
  float value() const { return bfloat_to_float(bits); }
};

template <typename T>
bool less(T a, T b) { return a < b; }
bool less(Half a, Half b) { return a.value() < b.value(); }
bool less(Bfloat a, Bfloat b) { return a.value() < b.value(); }

// As std::lower_bound and std::upper_bound: the same steps, so the same answer where the line is not sorted.
template <typename T>
int64_t bound(const T* line, int64_t length, T x, bool upper) {
  int64_t first = 0;
  while (length > 0) {
    const int64_t half = length / 2;
    const T middle = line[first + half];
    if (upper ? !less(x, middle) : less(middle, x)) {
      first += half + 1;
      length -= half + 1;
    } else {
      length = half;
    }
  }
  return first;
}

template <typename T>
void search_lines(const disc_kernel_args* a, int64_t begin, int64_t end) {
  const int64_t* s = a->scalars;
  const auto* sorted = static_cast<const T*>(a->bufs[0]);
  const auto* values = static_cast<const T*>(a->bufs[1]);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t found = bound(sorted + i / s[kSearchValues] * s[kSearchLength], s[kSearchLength], values[i], s[kUpper] != 0);
    if (s[kSearchIndexBytes] == 8)
      static_cast<int64_t*>(a->bufs[2])[i] = found;
    else
      static_cast<int32_t*>(a->bufs[2])[i] = static_cast<int32_t>(found);
  }
}

void search_any(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  switch (a->scalars[kSearchDtype]) {
    case DISC_F16: return search_lines<Half>(a, begin, end);
    case DISC_BF16: return search_lines<Bfloat>(a, begin, end);
    case DISC_F32: return search_lines<float>(a, begin, end);
    case DISC_F64: return search_lines<double>(a, begin, end);
    case DISC_I8: return search_lines<int8_t>(a, begin, end);
    case DISC_I16: return search_lines<int16_t>(a, begin, end);
    case DISC_I32: return search_lines<int32_t>(a, begin, end);
    case DISC_I64: return search_lines<int64_t>(a, begin, end);
    case DISC_U8: case DISC_BOOL: return search_lines<uint8_t>(a, begin, end);
    case DISC_U16: return search_lines<uint16_t>(a, begin, end);
    case DISC_U32: return search_lines<uint32_t>(a, begin, end);
    default: return search_lines<uint64_t>(a, begin, end);
  }
}

}  // namespace

// nonzero: args mask (bool), indices (i64 [total, rank]), count (i64), work (i64 [chunks of 65536 + 1]); scalars total, rank, dims...
// The index vectors of the true elements in row-major order; what lies behind them is left as it was.
int32_t library_nonzero(disc_context* context, void* const* args, const int64_t* s) {
  if (s[kDimCount] < 1 || s[kDimCount] > kMaxVector) return context->fail_internally(kInternal, "nonzero: rank out of range");
  const int64_t total = s[kTotal];
  int64_t count = 0;
  if (total > 0) {
    const int64_t chunks = (total - 1) / kChunk + 1;
    const disc_kernel_args a{args, s, context->error_cell()};
    if (const int32_t status = context->launch(count_chunks, &a, chunks, 1, 0)) return status;
    auto* starts = static_cast<int64_t*>(args[3]);
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t here = starts[c];
      starts[c] = count;
      count += here;
    }
    starts[chunks] = count;
    if (const int32_t status = context->launch(list_chunks, &a, chunks, 1, 0)) return status;
  }
  std::memcpy(args[2], &count, sizeof(count));
  return 0;
}

// unique: args x [rows, width], first (i64 [rows]), index ([rows]), counts ([rows]), count (i64), work (u64 [2 * rows]); scalars dtype, rows,
// width, bytes of an element of index and counts (4, 8), whether +0 and -0 differ in rows of one element (0, 1). Distinct rows are
// numbered by their first occurrence: `first` is where that is, `index` the number of each row, `counts` how often each occurs.
int32_t library_unique(disc_context* context, void* const* args, const int64_t* s) {
  const auto dtype = static_cast<int32_t>(s[kUniqueDtype]);
  const int64_t n = s[kUniqueRows];
  if (dtype_size(dtype) == 0) return context->fail_internally(kInternal, "unique: unknown dtype");
  if (n > INT32_MAX) return context->fail_internally(kInvalidArgument, "unique does not support input tensors larger than 2147483647 elements");
  int64_t found = 0;
  if (n > 0) {
    found = s[kUniqueIndexBytes] == 8 ? number_any<int64_t>(args, s) : number_any<int32_t>(args, s);
  }
  std::memcpy(args[4], &found, sizeof(found));
  return 0;
}

// partition: args ids (i32 [rows]), order (i64 [rows]), counts (i64 [parts]), work (i64 [parts]); scalars rows, parts. The rows of part 0 in
// their order, then those of part 1 ...; ids outside of [0, parts) are in no part, what lies behind the last part's rows is zero.
int32_t library_partition(disc_context*, void* const* args, const int64_t* s) {
  const int64_t n = s[kPartitionRows], parts = s[kParts];
  const auto* ids = static_cast<const int32_t*>(args[0]);
  auto *order = static_cast<int64_t*>(args[1]), *counts = static_cast<int64_t*>(args[2]), *next = static_cast<int64_t*>(args[3]);
  const auto is_part = [parts](int32_t id) { return id >= 0 && id < parts; };
  std::fill_n(counts, parts, int64_t{0});
  for (int64_t i = 0; i < n; ++i) {
    const int32_t id = read_once(ids, i);
    if (is_part(id)) ++counts[id];
  }
  int64_t at = 0;
  for (int64_t k = 0; k < parts; ++k) {
    next[k] = at;
    at += counts[k];
  }
  std::fill(order + at, order + n, int64_t{0});
  for (int64_t i = 0; i < n; ++i) {
    const int32_t id = read_once(ids, i);
    if (is_part(id) && next[id] < at) order[next[id]++] = i;
  }
  int64_t end = 0;
  for (int64_t k = 0; k < parts; ++k) {
    end += counts[k];
    if (next[k] < end) std::fill(order + next[k], order + end, int64_t{0});
  }
  return 0;
}

// search: args sorted [lines, length], values [lines, values], positions [lines, values]; scalars dtype, lines, length, values, whether the
// upper bound is wanted (0, 1), bytes of a position (4, 8).
int32_t library_search(disc_context* context, void* const* args, const int64_t* s) {
  if (dtype_size(static_cast<int32_t>(s[kSearchDtype])) == 0) return context->fail_internally(kInternal, "search: unknown dtype");
  if (s[kSearchLines] <= 0 || s[kSearchValues] <= 0) return 0;
  const disc_kernel_args a{args, s, context->error_cell()};
  return context->launch(search_any, &a, s[kSearchLines] * s[kSearchValues], 512, 0);
}

}  // namespace disc
