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

// The buffers of a call, and the two things that are written: an entry at a place, or a row's default.
template <typename T>
struct Entries {
  Entries(void* const* args, const int64_t* s)
      : n(s[kEntries]),
        rank(s[kRank]),
        rows(s[kRows]),
        indices(static_cast<const int64_t*>(args[kIndices])),
        values(static_cast<const T*>(args[kValues])),
        fallback(args[kDefault]),
        out(static_cast<int64_t*>(args[kOutIndices])),
        filled(static_cast<T*>(args[kOutValues])),
        empty(static_cast<uint8_t*>(args[kEmpty])),
        reverse(static_cast<int64_t*>(args[kReverse])) {}

  void put(int64_t at, int64_t row, int64_t i) const {
    if (rank > 0) out[at * rank] = row;
    for (int64_t k = 1; k < rank; ++k) out[at * rank + k] = indices[i * rank + k];
    filled[at] = values[i];
  }
  void put_default(int64_t at, int64_t row) const {
    if (rank > 0) out[at * rank] = row;
    for (int64_t k = 1; k < rank; ++k) out[at * rank + k] = 0;
    std::memcpy(filled + at, fallback, sizeof(T));
  }

  const int64_t n, rank, rows;
  const int64_t* indices;
  const T* values;
  const void* fallback;
  int64_t* out;
  T* filled;
  uint8_t* empty;
  int64_t* reverse;
};

// Rows in ascending order, as they nearly always come: one pass. The number of entries written, -1 where the order is another one.
template <typename T>
int64_t fill_sorted_rows(const Entries<T>& e, bool want_reverse) {
  int64_t at = 0, next = 0;  // rows before `next` are done
  const auto fill_to = [&](int64_t row) {
    for (; next < row; ++next, ++at) {
      e.empty[next] = 1;
      e.put_default(at, next);
    }
  };
  for (int64_t i = 0; i < e.n; ++i) {
    const int64_t row = read_once(e.indices, i * e.rank);
    if (row != next - 1 || row < 0) {
      if (row < next || row >= e.rows) return -1;
      fill_to(row);
      e.empty[row] = 0;
      next = row + 1;
    }
    e.put(at, row, i);
    if (want_reverse) e.reverse[i] = at;
    ++at;
  }
  fill_to(e.rows);
  return at;
}

template <typename T>
int64_t fill_rows(void* const* args, const int64_t* s) {
  const Entries<T> e(args, s);
  if (e.rank > 0) {
    const int64_t done = fill_sorted_rows(e, s[kWantReverse] != 0);
    if (done >= 0) return done;
  }
  auto* starts = static_cast<int64_t*>(args[kStarts]);  // of each row: first its number of entries, then where the next one goes
  std::fill_n(starts, e.rows, int64_t{0});
  for (int64_t i = 0; i < e.n; ++i) {  // `reverse` keeps the row, or -1, until it is known where the entry goes
    const int64_t row = e.rank > 0 ? read_once(e.indices, i * e.rank) : -1;
    const bool inside = row >= 0 && row < e.rows;
    e.reverse[i] = inside ? row : -1;
    if (inside) ++starts[row];
  }
  int64_t at = 0;
  for (int64_t row = 0; row < e.rows; ++row) {
    const int64_t own = starts[row];
    e.empty[row] = own == 0;
    starts[row] = at;
    if (own == 0) e.put_default(at, row);
    at += std::max<int64_t>(own, 1);
  }
  for (int64_t i = 0; i < e.n; ++i) {
    const int64_t row = e.reverse[i];
    if (row >= 0) {
      e.reverse[i] = starts[row]++;
      e.put(e.reverse[i], row, i);
    } else {
      e.reverse[i] = 0;
    }
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
