// fill_rows: the entries of a sparse tensor grouped by row, with a default entry in each row that has none.
//
// Row numbers are data: those out of range are dropped, so that whatever they are no access leaves a buffer. They may change meanwhile
// (library.h: read_once): each is read once, or by both of two passes of which the second starts anew.

#include <algorithm>
#include <cstring>

#include "artifact.h"
#include "disc_ral.h"
#include "library.h"
#include "run.h"

namespace disc {
namespace {

enum { kDtype, kEntries, kRank, kRows, kWantReverse };
enum { kIndices, kValues, kDefault, kOutIndices, kOutValues, kEmpty, kReverse, kCount, kStarts };

// Rows in ascending order, as they nearly always come: one pass. The number of entries written, -1 where the order is another one.
template <typename T>
int64_t fill_sorted_rows(void* const* args, const int64_t* s) {
  const int64_t n = s[kEntries], rank = s[kRank], rows = s[kRows];
  const auto* indices = static_cast<const int64_t*>(args[kIndices]);
  const auto* values = static_cast<const T*>(args[kValues]);
  auto* out = static_cast<int64_t*>(args[kOutIndices]);
  auto* filled = static_cast<T*>(args[kOutValues]);
  auto* empty = static_cast<uint8_t*>(args[kEmpty]);
  auto* reverse = static_cast<int64_t*>(args[kReverse]);
  int64_t at = 0, next = 0;  // rows before `next` are done
  const auto fill_to = [&](int64_t row) {
    for (; next < row; ++next, ++at) {
      empty[next] = 1;
      out[at * rank] = next;
      for (int64_t k = 1; k < rank; ++k) out[at * rank + k] = 0;
      std::memcpy(filled + at, args[kDefault], sizeof(T));
    }
  };
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = read_once(indices, i * rank);
    if (row != next - 1 || row < 0) {
      if (row < next || row >= rows) return -1;
      fill_to(row);
      empty[row] = 0;
      next = row + 1;
    }
    out[at * rank] = row;
    for (int64_t k = 1; k < rank; ++k) out[at * rank + k] = indices[i * rank + k];
    filled[at] = values[i];
    if (s[kWantReverse]) reverse[i] = at;
    ++at;
  }
  fill_to(rows);
  return at;
}

template <typename T>
int64_t fill_rows(void* const* args, const int64_t* s) {
  if (s[kRank] > 0) {
    const int64_t done = fill_sorted_rows<T>(args, s);
    if (done >= 0) return done;
  }
  const int64_t n = s[kEntries], rank = s[kRank], rows = s[kRows];
  const auto* indices = static_cast<const int64_t*>(args[kIndices]);
  const auto* values = static_cast<const T*>(args[kValues]);
  auto* out = static_cast<int64_t*>(args[kOutIndices]);
  auto* filled = static_cast<T*>(args[kOutValues]);
  auto* empty = static_cast<uint8_t*>(args[kEmpty]);
  auto* reverse = static_cast<int64_t*>(args[kReverse]);
  auto* starts = static_cast<int64_t*>(args[kStarts]);  // of each row: first its number of entries, then where the next one goes
  std::fill_n(starts, rows, int64_t{0});
  for (int64_t i = 0; i < n; ++i) {  // `reverse` keeps the row, or -1, until it is known where the entry goes
    const int64_t row = rank > 0 ? read_once(indices, i * rank) : -1;
    const bool inside = row >= 0 && row < rows;
    reverse[i] = inside ? row : -1;
    if (inside) ++starts[row];
  }
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t own = starts[row];
    empty[row] = own == 0;
    starts[row] = at;
    if (own == 0) {
      if (rank > 0) out[at * rank] = row;
      for (int64_t k = 1; k < rank; ++k) out[at * rank + k] = 0;
      std::memcpy(filled + at, args[kDefault], sizeof(T));
    }
    at += std::max<int64_t>(own, 1);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = reverse[i];
    if (row < 0) {
      reverse[i] = 0;
      continue;
    }
    const int64_t to = starts[row]++;
    out[to * rank] = row;
    for (int64_t k = 1; k < rank; ++k) out[to * rank + k] = indices[i * rank + k];
    filled[to] = values[i];
    reverse[i] = to;
  }
  return at;
}

}  // namespace

// fill_rows: args indices i64[n, rank], values[n], default[], out_indices i64[n + rows, rank], out_values[n + rows], empty bool[rows],
// reverse i64[n], count i64[], starts i64[rows] (scratch); scalars dtype of the values, n, rank, rows, whether reverse is wanted. Entries
// keep their order within a row; those of rows out of range are left out (reverse 0).
int32_t library_fill_rows(disc_context* context, void* const* args, const int64_t* s) {
  if (s[kEntries] < 0 || s[kRank] < 0 || s[kRows] < 0) return context->fail_internally(kInternal, "fill_rows: a negative size");
  int64_t count = 0;
  switch (dtype_size(static_cast<int32_t>(s[kDtype]))) {
    case 1: count = fill_rows<uint8_t>(args, s); break;
    case 2: count = fill_rows<uint16_t>(args, s); break;
    case 4: count = fill_rows<uint32_t>(args, s); break;
    case 8: count = fill_rows<uint64_t>(args, s); break;
    default: return context->fail_internally(kInternal, "fill_rows: unknown dtype");
  }
  std::memcpy(args[kCount], &count, sizeof(count));
  return 0;
}

}  // namespace disc
