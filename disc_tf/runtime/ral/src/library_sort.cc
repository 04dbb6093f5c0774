// sort and topk along one dimension, for every dtype.
//
// Keys are mapped to unsigned integers whose order is the wanted one, so one algorithm serves all dtypes: floats with -0 equal to +0 and
// every NaN equal and above +infinity (numpy's and JAX's order), integers by value. Equal keys keep their order.

#include <algorithm>
#include <cstring>
#include <string>

#include "artifact.h"
#include "disc_ral.h"
#include "library.h"
#include "run.h"

namespace disc {
namespace {

// `sign`: the type's sign bit. Inverting negative numbers wholly and setting the sign of the others orders IEEE bit patterns.
uint64_t float_key(uint64_t bits, uint64_t sign, uint64_t infinity) {
  const uint64_t magnitude = bits & (sign - 1);
  if (magnitude > infinity) return (sign << 1) - 1;
  if (magnitude == 0) return sign;
  return (bits & sign) ? (~bits & ((sign << 1) - 1)) : (bits | sign);
}

template <typename T>
uint64_t load_bits(const void* base, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return static_cast<uint64_t>(v);
}

uint64_t load_key(const void* base, int64_t i, int32_t dtype) {
  constexpr uint64_t k64 = uint64_t{1} << 63;
  switch (dtype) {
    case DISC_F16: return float_key(load_bits<uint16_t>(base, i), 0x8000, 0x7C00);
    case DISC_BF16: return float_key(load_bits<uint16_t>(base, i), 0x8000, 0x7F80);
    case DISC_F32: return float_key(load_bits<uint32_t>(base, i), 0x80000000u, 0x7F800000u);
    case DISC_F64: {  // as above, in 64 bits
      const uint64_t bits = load_bits<uint64_t>(base, i), magnitude = bits & ~k64;
      if (magnitude > 0x7FF0000000000000u) return ~uint64_t{0};
      if (magnitude == 0) return k64;
      return (bits & k64) ? ~bits : (bits | k64);
    }
    case DISC_I8: return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(load_bits<uint8_t>(base, i)))) ^ k64;
    case DISC_I16: return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(load_bits<uint16_t>(base, i)))) ^ k64;
    case DISC_I32: return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(load_bits<uint32_t>(base, i)))) ^ k64;
    case DISC_I64: return load_bits<uint64_t>(base, i) ^ k64;
    case DISC_U8: case DISC_BOOL: return load_bits<uint8_t>(base, i);
    case DISC_U16: return load_bits<uint16_t>(base, i);
    case DISC_U32: return load_bits<uint32_t>(base, i);
    default: return load_bits<uint64_t>(base, i);
  }
}

// Lies in the worker's scratch: a kernel allocates nothing, since nobody could catch the failure there.
struct Item {
  uint64_t key;
  int64_t index;
};

// Equal keys by index: then any algorithm is stable, and the order is total.
bool before(const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.index < b.index; }

enum { kDtype, kOuter, kLength, kInner, kDescending, kPayloads, kPayloadSizes };

void copy_element(void* to, int64_t at, const void* from, int64_t index, int64_t size) {
  std::memcpy(static_cast<char*>(to) + at * size, static_cast<const char*>(from) + index * size, static_cast<size_t>(size));
}

void sort_lines(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  const int64_t* s = a->scalars;
  const int64_t length = s[kLength], inner = s[kInner];
  const int32_t dtype = static_cast<int32_t>(s[kDtype]);
  auto* items = static_cast<Item*>(scratch);
  for (int64_t line = begin; line < end; ++line) {
    const int64_t base = line / inner * length * inner + line % inner;
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t key = load_key(a->bufs[0], base + i * inner, dtype);
      items[i] = {s[kDescending] ? ~key : key, i};
    }
    std::sort(items, items + length, before);
    for (int64_t p = -1; p < s[kPayloads]; ++p) {
      const int64_t size = p < 0 ? dtype_size(dtype) : s[kPayloadSizes + p];
      const void* from = a->bufs[2 * (p + 1)];
      void* to = a->bufs[2 * (p + 1) + 1];
      for (int64_t i = 0; i < length; ++i) copy_element(to, base + i * inner, from, base + items[i].index * inner, size);
    }
  }
}

enum { kTopDtype, kTopRows, kTopLength, kTopK };

void topk_rows(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  const int64_t* s = a->scalars;
  const int64_t length = s[kTopLength], k = s[kTopK];
  const int32_t dtype = static_cast<int32_t>(s[kTopDtype]);
  auto* indices = static_cast<int32_t*>(a->bufs[2]);
  auto* items = static_cast<Item*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < length; ++i) items[i] = {~load_key(a->bufs[0], row * length + i, dtype), i};
    std::partial_sort(items, items + k, items + length, before);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t index = items[i].index;
      copy_element(a->bufs[1], row * k + i, a->bufs[0], row * length + index, dtype_size(dtype));
      const int32_t narrow = static_cast<int32_t>(index);
      std::memcpy(indices + row * k + i, &narrow, sizeof(narrow));
    }
  }
}

// Lines that make a chunk worth handing to another thread.
int64_t grain(int64_t length) { return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, length)); }

int32_t launch(disc_context* context, disc_kernel_fn fn, void* const* args, const int64_t* scalars, int64_t lines, int64_t length) {
  const disc_kernel_args a{args, scalars, context->error_cell()};
  int64_t scratch = 0;
  if (__builtin_mul_overflow(length, static_cast<int64_t>(sizeof(Item)), &scratch))
    return context->fail_internally(kResourceExhausted, "sort: lines of " + std::to_string(length) + " elements are too long");
  return context->launch(fn, &a, lines, grain(length), scratch);
}

}  // namespace

// sort: args keys_in, keys_out, (payload_in, payload_out)*; scalars dtype, outer, length, inner, descending (0, 1), payloads, element
// size of each payload. Tensors are [outer, length, inner]; stable; `out` must not overlap `in`.
int32_t library_sort(disc_context* context, void* const* args, const int64_t* s) {
  if (dtype_size(static_cast<int32_t>(s[kDtype])) == 0) return context->fail_internally(kInternal, "sort: unknown dtype");
  if (s[kOuter] <= 0 || s[kInner] <= 0 || s[kLength] <= 0) return 0;
  return launch(context, sort_lines, args, s, s[kOuter] * s[kInner], s[kLength]);
}

// topk: args x, values, indices (i32); scalars dtype, rows, length, k. x is [rows, length], the others [rows, k]: the largest first, the
// lower index first among equals. InvalidArgument if k > length, as TopKV2.
int32_t library_topk(disc_context* context, void* const* args, const int64_t* s) {
  if (dtype_size(static_cast<int32_t>(s[kTopDtype])) == 0) return context->fail_internally(kInternal, "topk: unknown dtype");
  if (s[kTopK] < 0) return context->fail_internally(kInvalidArgument, "Need k >= 0, got " + std::to_string(s[kTopK]));
  if (s[kTopK] > s[kTopLength]) return context->fail_internally(kInvalidArgument, "input must have at least k columns");
  if (s[kTopLength] > INT32_MAX) return context->fail_internally(kInvalidArgument, "topk: more than 2^31-1 columns");
  if (s[kTopRows] <= 0 || s[kTopK] == 0) return 0;
  return launch(context, topk_rows, args, s, s[kTopRows], s[kTopLength]);
}

}  // namespace disc
