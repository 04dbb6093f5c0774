// A hand-written executable for the runtime's tests: what codegen would emit, without a compiler of ours. No libc, no relocations.
//
//   args     0 w    const  f32 [-1]      one element a column, or one for all (general: stride 0)
//            1 x    device f32 [-1,-1]
//            2 n    host   i64 []
//   prepared 0 packed = 2 * w
//   segment 0 {w, x}: y = x * packed[column], flat = x seen as [-1]
//   segment 1 {n} after 0: filled = n times x[0,0] * 0.1 (through the arena), segment 0's x is kept by the RAL
//   checks   0 w's length fits x (host), 1 x == 666 (kernel), 2 x == 777 (kernel), 3 n >= 0 (host)
#include "disc_ral_abi.h"

namespace {

void report(int64_t* err, int64_t check) {
  int64_t now = __atomic_load_n(err, __ATOMIC_RELAXED);
  while (check < now && !__atomic_compare_exchange_n(err, &now, check, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void pack_kernel(const disc_kernel_args* a, int64_t begin, int64_t end, void*) {
  const auto* w = static_cast<const float*>(a->bufs[0]);
  auto* out = static_cast<float*>(a->bufs[1]);
  for (int64_t i = begin; i < end; ++i) out[i] = 2.0f * w[i];
}

// Rows of x: goes through scratch, so that threads which share it are found out.
void scale_kernel(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  const auto* x = static_cast<const float*>(a->bufs[0]);
  const auto* packed = static_cast<const float*>(a->bufs[1]);
  auto* y = static_cast<float*>(a->bufs[2]);
  auto* row = static_cast<float*>(scratch);
  const int64_t columns = a->scalars[0], stride = a->scalars[1];
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float v = x[r * columns + c];
      if (v == 666.0f) report(a->err, 1);
      if (v == 777.0f) report(a->err, 2);
      row[c] = v * packed[c * stride];
    }
    for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = row[c];
  }
}

int32_t prepare(disc_context* c, const disc_api* api, int32_t index) {
  const disc_memref* w = api->recv_input(c, 0);
  if (!w) return 13;
  void* out = api->prepare_alloc(c, index, w->dims[0] * 4);
  if (!out) return 8;
  void* bufs[] = {w->data, out};
  const disc_kernel_args args = {bufs, nullptr, api->error_cell(c)};
  return api->parallel_for(c, pack_kernel, &args, w->dims[0], 64, 0);
}

int32_t scale(disc_context* c, const disc_api* api) {
  const disc_memref* w = api->recv_input(c, 0);
  const disc_memref* x = api->recv_input(c, 1);
  if (!w || !x) return 13;
  const int64_t rows = x->dims[0], columns = x->dims[1];
  if (w->dims[0] != 1 && w->dims[0] != columns) {
    api->fail(c, 0, 0);
    return 3;
  }
  const void* packed = api->prepared(c, 0);
  if (!packed) return 13;
  void* y = api->alloc_output(c, 0, 2, x->dims);
  if (!y) return 8;
  void* bufs[] = {x->data, const_cast<void*>(packed), y};
  const int64_t scalars[] = {columns, w->dims[0] == 1 ? 0 : 1};
  const disc_kernel_args args = {bufs, scalars, api->error_cell(c)};
  if (int32_t rc = api->parallel_for(c, scale_kernel, &args, rows, 4, columns * 4)) return rc;
  if (int32_t rc = api->send_output(c, 0)) return rc;
  const int64_t count = rows * columns;
  if (int32_t rc = api->alias_output(c, 1, 1, 1, &count)) return rc;
  return api->send_output(c, 1);
}

int32_t fill(disc_context* c, const disc_api* api) {
  const disc_memref* x = api->recv_input(c, 1);
  const disc_memref* n = api->recv_input(c, 2);
  if (!x || !n) return 13;
  const int64_t count = *static_cast<const int64_t*>(n->data);
  if (count < 0) {
    api->fail(c, 0, 3);
    return 3;
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(count, int64_t{4}, &bytes)) bytes = -1;
  auto* temp = static_cast<float*>(api->arena(c, 0, bytes));
  if (!temp) return 8;
  auto* out = static_cast<float*>(api->alloc_output(c, 2, 1, &count));
  if (!out) return 8;
  const bool empty = x->dims[0] == 0 || x->dims[1] == 0;
  volatile float first = empty ? 0.0f : *static_cast<const float*>(x->data);
  for (int64_t i = 0; i < count; ++i) temp[i] = first * 0.1f;
  for (int64_t i = 0; i < count; ++i) out[i] = temp[i];
  return api->send_output(c, 2);
}

int32_t segment(disc_context* c, const disc_api* api, int32_t index) { return index == 0 ? scale(c, api) : fill(c, api); }

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t disc_executable_query(uint32_t max_abi, disc_executable* out) {
  if (max_abi < 1) return 12;
  out->struct_size = sizeof(disc_executable);
  out->abi_version = 1;
  out->prepare = prepare;
  out->n_segments = 2;
  out->n_prepared = 1;
  out->segment = segment;
  return 0;
}
