#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "library.h"
#include "run.h"
#include "test_main.h"
#include "toy_artifact.h"

namespace {

// A context to call library functions in.
struct Context {
  Context() {
    const std::string data = disc_test::toy_artifact("library");
    std::shared_ptr<disc::Executable> e;
    const disc::Status s = disc::Executable::load(reinterpret_cast<const uint8_t*>(data.data()), data.size(), &e);
    if (!s.ok()) disc_test::fail(__FILE__, __LINE__, s.message);
    run = std::make_unique<disc_context>(e, nullptr);
  }
  std::unique_ptr<disc_context> run;
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

template <typename T>
std::vector<T> sorted(int32_t dtype, std::vector<T> in, bool descending, std::vector<int32_t>* order = nullptr) {
  Context c;
  std::vector<T> out(in.size());
  std::vector<int32_t> index(in.size()), moved(in.size());
  for (size_t i = 0; i < in.size(); ++i) index[i] = static_cast<int32_t>(i);
  void* args[] = {in.data(), out.data(), index.data(), moved.data()};
  const int64_t scalars[] = {dtype, 1, static_cast<int64_t>(in.size()), 1, descending, 1, 4};
  EXPECT_EQ(c.run->dispatch("sort", args, scalars), 0);
  if (order) *order = moved;
  return out;
}

}  // namespace

TEST(sort_floats_with_special_values) {
  std::vector<int32_t> order;
  const std::vector<float> in{2.0f, kNan, -0.0f, -kInf, 0.0f, kInf, -1.5f, kNan, 1e-40f};
  const std::vector<float> up = sorted<float>(DISC_F32, in, false, &order);
  EXPECT(up[0] == -kInf && up[1] == -1.5f && up[4] == 1e-40f && up[5] == 2.0f && up[6] == kInf && std::isnan(up[7]) && std::isnan(up[8]));
  EXPECT(order[2] == 2 && order[3] == 4 && order[7] == 1 && order[8] == 7);  // stable: -0 and +0, the NaNs
  sorted<float>(DISC_F32, in, true, &order);
  EXPECT(order[0] == 1 && order[1] == 7 && order[2] == 5 && order[8] == 3);
  const double big = 1e300;
  EXPECT(sorted<double>(DISC_F64, {big, -big, std::nan(""), 0.0}, false)[0] == -big);
  // f16: 1.0, -2.0, inf, 0.5
  EXPECT(sorted<uint16_t>(DISC_F16, {0x3C00, 0xC000, 0x7C00, 0x3800}, false) == (std::vector<uint16_t>{0xC000, 0x3800, 0x3C00, 0x7C00}));
  // bf16: 1.0, -2.0, inf, 0.5
  EXPECT(sorted<uint16_t>(DISC_BF16, {0x3F80, 0xC000, 0x7F80, 0x3F00}, false) == (std::vector<uint16_t>{0xC000, 0x3F00, 0x3F80, 0x7F80}));
}

TEST(sort_integers) {
  EXPECT(sorted<int8_t>(DISC_I8, {5, -128, 127, 0}, false) == (std::vector<int8_t>{-128, 0, 5, 127}));
  EXPECT(sorted<int16_t>(DISC_I16, {5, -300, 300}, true) == (std::vector<int16_t>{300, 5, -300}));
  EXPECT(sorted<int32_t>(DISC_I32, {INT32_MAX, INT32_MIN, -1}, false) == (std::vector<int32_t>{INT32_MIN, -1, INT32_MAX}));
  EXPECT(sorted<int64_t>(DISC_I64, {INT64_MAX, INT64_MIN, -1}, false) == (std::vector<int64_t>{INT64_MIN, -1, INT64_MAX}));
  EXPECT(sorted<uint8_t>(DISC_U8, {200, 3, 255}, false) == (std::vector<uint8_t>{3, 200, 255}));
  EXPECT(sorted<uint64_t>(DISC_U64, {~uint64_t{0}, 3, 0}, false) == (std::vector<uint64_t>{0, 3, ~uint64_t{0}}));
  EXPECT(sorted<int32_t>(DISC_I32, {}, false).empty());
}

TEST(sort_along_a_middle_dimension) {
  Context c;
  std::vector<int32_t> in{3, 30, 1, 10, 2, 20, 9, 90, 8, 80, 7, 70}, out(12);  // [2, 3, 2]
  void* args[] = {in.data(), out.data()};
  const int64_t scalars[] = {DISC_I32, 2, 3, 2, 0, 0};
  EXPECT_EQ(c.run->dispatch("sort", args, scalars), 0);
  EXPECT(out == (std::vector<int32_t>{1, 10, 2, 20, 3, 30, 7, 70, 8, 80, 9, 90}));
}

TEST(topk_takes_the_lower_index_first) {
  Context c;
  std::vector<float> in{1, 5, 5, 0, kNan, 2, 2, 2, 2, 2};
  std::vector<float> values(6);
  std::vector<int32_t> indices(6);
  void* args[] = {in.data(), values.data(), indices.data()};
  const int64_t scalars[] = {DISC_F32, 2, 5, 3};
  EXPECT_EQ(c.run->dispatch("topk", args, scalars), 0);
  EXPECT(indices == (std::vector<int32_t>{4, 1, 2, 0, 1, 2}));
  EXPECT(values[1] == 5 && values[3] == 2);
  const int64_t too_many[] = {DISC_F32, 2, 5, 6};
  EXPECT_EQ(c.run->dispatch("topk", args, too_many), 3);
}

TEST(unknown_library_function) {
  Context c;
  EXPECT_EQ(c.run->dispatch("no such thing", nullptr, nullptr), static_cast<int32_t>(disc::kUnimplemented));
}

TEST(linear_algebra) {
  Context c;
  // Rows in an order that needs pivoting, twice; right sides of two columns.
  std::vector<double> a{0, 2, 1, 1, 0, 0, 0, 0, 4, 1, 0, 0, 0, 1, 0, 0, 0, 1}, lu(18), b{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, x(12);
  std::vector<int32_t> order(6);
  std::vector<uint8_t> odd(2);
  const int64_t s[] = {DISC_F64, 2, 3, 2, 0, 0};
  void* factor[] = {a.data(), lu.data(), order.data(), odd.data()};
  EXPECT_EQ(c.run->dispatch("lu", factor, s), 0);
  EXPECT(odd[0] == 1 && odd[1] == 0 && order == (std::vector<int32_t>{1, 0, 2, 0, 1, 2}));
  void* solve[] = {lu.data(), order.data(), b.data(), x.data()};
  EXPECT_EQ(c.run->dispatch("lu_solve", solve, s), 0);
  EXPECT(x[0] == 3 && x[1] == 4 && x[4] == 1.25 && x[5] == 1.5 && x[2] == (1 - 1.25) / 2 && x[6] == 1 && x[11] == 6);
  const int64_t transposed[] = {DISC_F64, 2, 3, 2, 0, 1};
  EXPECT_EQ(c.run->dispatch("lu_solve", solve, transposed), 0);
  EXPECT(x[0] == 1.5 && x[1] == 2 && x[2] == 1 && x[3] == 2);  // a^T x = b: row 1 of a^T is 2 x0 = 3 ...
  // Orders that are no rows stay inside of the matrix.
  order = {-7, 99, 1 << 30, 0, 1, 2};
  EXPECT_EQ(c.run->dispatch("lu_solve", solve, s), 0);
  EXPECT_EQ(c.run->dispatch("lu_solve", solve, transposed), 0);
}

TEST(cholesky_and_triangles) {
  Context c;
  std::vector<float> a{4, kNan, 2, 5, -1, 0, 0, 1}, l(8, 7.0f), b{2, 6, 1, 1}, x(4);
  const int64_t s[] = {DISC_F32, 2, 2, 1, 1, 0};
  void* factor[] = {a.data(), l.data()};
  EXPECT_EQ(c.run->dispatch("cholesky", factor, s), 0);  // the upper triangle is not read; the second matrix has no factor
  EXPECT(l[0] == 2 && l[1] == 0 && l[2] == 1 && l[3] == 2 && std::isnan(l[4]) && l[5] == 0 && std::isnan(l[6]) && std::isnan(l[7]));
  void* solve[] = {l.data(), b.data(), x.data()};
  EXPECT_EQ(c.run->dispatch("triangular_solve", solve, s), 0);
  EXPECT(x[0] == 1 && x[1] == 2.5f);
  const int64_t transposed[] = {DISC_F32, 1, 2, 1, 1, 1};
  EXPECT_EQ(c.run->dispatch("triangular_solve", solve, transposed), 0);
  EXPECT(x[1] == 3 && x[0] == -0.5f);
  for (const int64_t n : {0, 1}) {
    const int64_t none[] = {DISC_F32, n, 0, 3, 1, 0};
    EXPECT_EQ(c.run->dispatch("cholesky", factor, none), 0);
    EXPECT_EQ(c.run->dispatch("triangular_solve", solve, none), 0);
  }
  const int64_t wrong[] = {DISC_I32, 1, 2, 1, 1, 0};
  EXPECT_EQ(c.run->dispatch("cholesky", factor, wrong), static_cast<int32_t>(disc::kInternal));
}
