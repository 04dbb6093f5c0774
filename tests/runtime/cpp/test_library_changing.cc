// Data that changes while a library function reads it, as a variable does that another op assigns to. Here it lies in a buffer that the function
// itself writes, so that the change comes at the same place every time. Nothing may leave a buffer, and results stay in range.
#include <algorithm>
#include <cstring>
#include <vector>

#include "library.h"
#include "library_context.h"

namespace {

using disc_test::LibraryContext;

constexpr int64_t kPoison = -7;  // what no function writes

TEST(fill_rows_counts_and_places_the_same_rows) {
  LibraryContext c;
  constexpr int64_t rows = 6, n = 5, most = n + rows;
  const int64_t own[n] = {-1, 0, 0, 0, 5};  // the first one stops the fast way before it writes
  int64_t value = 5;                        // also the default value, and the last row: entries would move there
  std::vector<int64_t> values(n, value), out(most + 4, kPoison), filled(most + 4, kPoison), reverse(n), starts(rows);
  std::vector<uint8_t> empty(rows);
  int64_t count = 0;
  int64_t* indices = filled.data() + 3;  // where the empty rows 1 to 4 go
  std::copy_n(own, n, indices);
  void* args[] = {indices, values.data(), &value, out.data(), filled.data(), empty.data(), reverse.data(), &count, starts.data()};
  const int64_t scalars[] = {DISC_I64, n, 1, rows, 1};
  EXPECT_EQ(c.run->dispatch("fill_rows", args, scalars), 0);
  EXPECT_EQ(count, int64_t{8});
  EXPECT((reverse == std::vector<int64_t>{0, 0, 1, 2, 7}));
  EXPECT((std::vector<int64_t>(out.begin(), out.begin() + count) == std::vector<int64_t>{0, 0, 0, 1, 2, 3, 4, 5}));
  for (size_t i = most; i < out.size(); ++i) {
    EXPECT_EQ(out[i], kPoison);
    EXPECT_EQ(filled[i], kPoison);
  }
}

TEST(partition_leaves_no_row_unwritten) {
  LibraryContext c;
  const int32_t own[] = {0, 0, 0, 1};
  std::vector<int64_t> order(4, kPoison), counts(2), work(2);
  std::memcpy(work.data(), own, sizeof(own));  // the ids become {0, 0, 3, 0}: three of part 0, none of part 1
  void* args[] = {work.data(), order.data(), counts.data(), work.data()};
  const int64_t scalars[] = {4, 2};
  EXPECT_EQ(c.run->dispatch("partition", args, scalars), 0);
  EXPECT((counts == std::vector<int64_t>{3, 1}));
  for (const int64_t row : order) EXPECT(row >= 0 && row < 4);
}

TEST(nonzero_leaves_no_position_unwritten) {
  LibraryContext c;
  constexpr int64_t total = 16;
  std::vector<int64_t> indices(total, kPoison), work(2);
  std::memset(indices.data(), 1, total);  // the mask: most of it is false once positions are written over it
  int64_t count = -1;
  void* args[] = {indices.data(), indices.data(), &count, work.data()};
  const int64_t scalars[] = {total, 1, total};
  EXPECT_EQ(c.run->dispatch("nonzero", args, scalars), 0);
  EXPECT_EQ(count, total);
  for (const int64_t at : indices) EXPECT(at >= 0 && at < total);
}

}  // namespace
