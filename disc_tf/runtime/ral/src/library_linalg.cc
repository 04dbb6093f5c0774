// Dense linear algebra on batches of small and middle-sized row-major matrices, f32 and f64: one matrix a task, sums in a fixed order.
//
// Nothing here fails on account of data: zero pivots are passed over (lu) or divided by (solves).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "artifact.h"
#include "disc_ral.h"
#include "library.h"
#include "run.h"

namespace disc {
namespace {

enum { kDtype, kBatch, kN, kSides, kLower, kTranspose };

constexpr int kLanes = 8;

// Eight running sums, added up in a fixed tree: the compiler may keep them in vectors without changing the result.
template <typename T>
T dot(const T* a, const T* b, int64_t n) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  for (int k = 0; i < n; ++i, ++k) lanes[k] += a[i] * b[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// y -= f * x
template <typename T>
void subtract_scaled(T* y, const T* x, T f, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] -= f * x[i];
}

template <typename T>
void cholesky_one(const T* a, T* l, int64_t n) {
  std::fill(l, l + n * n, T(0));
  for (int64_t i = 0; i < n; ++i) {
    T* row = l + i * n;
    for (int64_t j = 0; j < i; ++j) row[j] = (a[i * n + j] - dot(row, l + j * n, j)) / l[j * n + j];
    const T pivot = a[i * n + i] - dot(row, row, i);
    if (pivot <= T(0)) {  // a NaN goes on, as in Eigen
      for (int64_t k = 0; k < n; ++k) std::fill_n(l + k * n, k + 1, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    row[i] = std::sqrt(pivot);
  }
}

template <typename T>
bool lu_one(T* a, int32_t* order, int64_t n) {
  bool odd = false;
  for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  for (int64_t k = 0; k < n; ++k) {
    int64_t p = k;
    T best = T(-1);
    for (int64_t i = k; i < n; ++i) {
      const T magnitude = std::abs(a[i * n + k]);
      if (magnitude > best) best = magnitude, p = i;
    }
    if (a[p * n + k] == T(0)) continue;
    if (p != k) {
      std::swap_ranges(a + k * n, a + (k + 1) * n, a + p * n);
      std::swap(order[k], order[p]);
      odd = !odd;
    }
    for (int64_t i = k + 1; i < n; ++i) {
      const T f = a[i * n + k] /= a[k * n + k];
      subtract_scaled(a + i * n + k + 1, a + k * n + k + 1, f, n - k - 1);
    }
  }
  return odd;
}

// Solves with the lower or upper triangle of a (or of its transpose), in place; `unit`: its diagonal counts as ones.
template <typename T>
void solve_one(const T* a, T* x, int64_t n, int64_t sides, bool lower, bool transpose, bool unit) {
  if (transpose) lower = !lower;
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = lower ? step : n - 1 - step;
    T* row = x + i * sides;
    const int64_t from = lower ? 0 : i + 1, to = lower ? i : n;  // solved so far
    if (!transpose) {
      if (sides == 1) {
        row[0] -= dot(a + i * n + from, x + from, to - from);
      } else {
        for (int64_t j = from; j < to; ++j) subtract_scaled(row, x + j * sides, a[i * n + j], sides);
      }
    }
    if (!unit)
      for (int64_t c = 0; c < sides; ++c) row[c] /= a[i * n + i];
    if (transpose) {  // what is still to be solved: row i of a is column i of the transpose
      const int64_t begin = lower ? i + 1 : 0, end = lower ? n : i;
      if (sides == 1) {
        subtract_scaled(x + begin, a + i * n + begin, row[0], end - begin);
      } else {
        for (int64_t j = begin; j < end; ++j) subtract_scaled(x + j * sides, row, a[i * n + j], sides);
      }
    }
  }
}

template <typename T>
T* matrix(void* base, int64_t index, int64_t elements) {
  return static_cast<T*>(base) + index * elements;
}

template <typename T>
void cholesky_batch(const disc_kernel_args* k, int64_t begin, int64_t end, void*) {
  const int64_t n = k->scalars[kN];
  for (int64_t m = begin; m < end; ++m)
    cholesky_one(matrix<const T>(k->bufs[0], m, n * n), matrix<T>(k->bufs[1], m, n * n), n);
}

template <typename T>
void lu_batch(const disc_kernel_args* k, int64_t begin, int64_t end, void*) {
  const int64_t n = k->scalars[kN];
  for (int64_t m = begin; m < end; ++m) {
    T* lu = matrix<T>(k->bufs[1], m, n * n);
    std::copy_n(matrix<const T>(k->bufs[0], m, n * n), n * n, lu);
    static_cast<uint8_t*>(k->bufs[3])[m] = lu_one(lu, matrix<int32_t>(k->bufs[2], m, n), n);
  }
}

// Rows are taken in `order`, which is checked: it may come from anywhere.
int64_t row_of(const int32_t* order, int64_t i, int64_t n) { return std::clamp<int64_t>(order[i], 0, n - 1); }

template <typename T>
void lu_solve_batch(const disc_kernel_args* k, int64_t begin, int64_t end, void* scratch) {
  const int64_t n = k->scalars[kN], sides = k->scalars[kSides];
  const size_t row_bytes = static_cast<size_t>(sides) * sizeof(T);
  for (int64_t m = begin; m < end; ++m) {
    const T* lu = matrix<const T>(k->bufs[0], m, n * n);
    const int32_t* order = matrix<const int32_t>(k->bufs[1], m, n);
    const T* b = matrix<const T>(k->bufs[2], m, n * sides);
    T* x = matrix<T>(k->bufs[3], m, n * sides);
    if (k->scalars[kTranspose]) {
      T* y = static_cast<T*>(scratch);
      std::copy_n(b, n * sides, y);
      solve_one(lu, y, n, sides, false, true, false);
      solve_one(lu, y, n, sides, true, true, true);
      for (int64_t i = 0; i < n; ++i) std::memcpy(x + row_of(order, i, n) * sides, y + i * sides, row_bytes);
    } else {
      for (int64_t i = 0; i < n; ++i) std::memcpy(x + i * sides, b + row_of(order, i, n) * sides, row_bytes);
      solve_one(lu, x, n, sides, true, false, true);
      solve_one(lu, x, n, sides, false, false, false);
    }
  }
}

template <typename T>
void triangular_batch(const disc_kernel_args* k, int64_t begin, int64_t end, void*) {
  const int64_t n = k->scalars[kN], sides = k->scalars[kSides];
  for (int64_t m = begin; m < end; ++m) {
    T* x = matrix<T>(k->bufs[2], m, n * sides);
    std::copy_n(matrix<const T>(k->bufs[1], m, n * sides), n * sides, x);
    solve_one(matrix<const T>(k->bufs[0], m, n * n), x, n, sides, k->scalars[kLower] != 0, k->scalars[kTranspose] != 0, false);
  }
}

// `work`: operations of one matrix; `scratch`: elements that a worker needs.
int32_t launch(disc_context* context, disc_kernel_fn f32, disc_kernel_fn f64, void* const* args, const int64_t* s, double work,
               double scratch) {
  const bool wide = s[kDtype] == DISC_F64;
  if (!wide && s[kDtype] != DISC_F32) return context->fail_internally(kInternal, "linear algebra: f32 and f64 only");
  if (s[kBatch] <= 0 || s[kN] < 0) return 0;
  if (scratch > 1e15) return context->fail_internally(kResourceExhausted, "linear algebra: matrices are too large");
  const disc_kernel_args a{args, s, context->error_cell()};
  const auto grain = static_cast<int64_t>(std::max(1.0, 65536.0 / std::max(1.0, work)));
  return context->launch(wide ? f64 : f32, &a, s[kBatch], grain, static_cast<int64_t>(scratch) * (wide ? 8 : 4));
}

double cube(const int64_t* s) { return static_cast<double>(s[kN]) * static_cast<double>(s[kN]) * static_cast<double>(s[kN]); }

double square(const int64_t* s) { return static_cast<double>(s[kN]) * static_cast<double>(s[kN]); }

}  // namespace

// All: scalars dtype, batch, n, right sides, lower (0, 1), transpose (0, 1); matrices are [batch, n, n], right sides [batch, n, sides].

// cholesky: args a, l. Reads the lower triangle only; without a factor (a pivot that is not positive) l has NaN in its lower triangle.
int32_t library_cholesky(disc_context* context, void* const* args, const int64_t* s) {
  return launch(context, cholesky_batch<float>, cholesky_batch<double>, args, s, cube(s), 0);
}

// lu: args a, lu, order (i32[batch, n]), odd (bool[batch]): row i of L U is row order[i] of a; odd: an odd number of exchanges.
int32_t library_lu(disc_context* context, void* const* args, const int64_t* s) {
  return launch(context, lu_batch<float>, lu_batch<double>, args, s, cube(s), 0);
}

// lu_solve: args lu, order, b, x.
int32_t library_lu_solve(disc_context* context, void* const* args, const int64_t* s) {
  const auto sides = static_cast<double>(s[kSides]);
  const double scratch = s[kTranspose] ? static_cast<double>(s[kN]) * sides : 0;
  return launch(context, lu_solve_batch<float>, lu_solve_batch<double>, args, s, square(s) * sides, scratch);
}

// triangular_solve: args a, b, x.
int32_t library_triangular_solve(disc_context* context, void* const* args, const int64_t* s) {
  return launch(context, triangular_batch<float>, triangular_batch<double>, args, s, square(s) * static_cast<double>(s[kSides]), 0);
}

}  // namespace disc
