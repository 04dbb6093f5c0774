/* Runs a stand-alone model (.disc) from C: no Python, no TensorFlow.
 *
 *   cc -std=c11 -I disc_tf/runtime/ral/include examples/c/run_model.c -o run_model -L DIR -ldisc_ral -Wl,-rpath,DIR
 *   ./run_model model.disc                              the signature, and a run on zeros with every unknown extent 1
 *   ./run_model model.disc ids=2x7:ids.bin mask=2x7     extents and raw row-major bytes of inputs; without a file: zeros
 *
 * DIR is where libdisc_ral.so lies: beside the installed Python package disc_tf.runtime, or build/runtime. Inputs are given one by one, in
 * the order of the command line, and each output is printed when it is complete.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disc_ral.h"

enum { kMaxRank = 64 };

static const char* const kNames[] = {"?",   "f16", "bf16", "f32", "f64", "i8",  "i16",
                                     "i32", "i64", "u8",   "u16", "u32", "u64", "bool"};
static const int64_t kSizes[] = {0, 2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

typedef struct {
  void* data;
  int64_t bytes;
  int64_t dims[kMaxRank];
} tensor;

typedef struct {
  disc_exec* exec;
  tensor* results;
} model_run;

static int fail(const char* what) {
  fprintf(stderr, "run_model: %s\n", what);
  return 1;
}

/* What the runtime says of the latest failure on this thread. */
static int fail_disc(const char* what) {
  const char* node = disc_last_error_node();
  fprintf(stderr, "run_model: %s: %s (code %" PRId32 ")%s%s\n", what, disc_last_error(), disc_last_error_code(), *node ? " at " : "", node);
  return 1;
}

static void print_type(const disc_tensor_info* t) {
  printf("%s %s[", t->name, kNames[t->dtype]);
  for (int32_t i = 0; i < t->rank; ++i) {
    if (t->dims[i] < 0)
      printf(i ? ",?" : "?");
    else
      printf(i ? ",%" PRId64 : "%" PRId64, t->dims[i]);
  }
  printf("]");
}

static double element(const disc_tensor_info* t, const void* data, int64_t i) {
  switch (t->dtype) {
    case DISC_F32: return ((const float*)data)[i];
    case DISC_F64: return ((const double*)data)[i];
    case DISC_I8: return ((const int8_t*)data)[i];
    case DISC_I16: return ((const int16_t*)data)[i];
    case DISC_I32: return ((const int32_t*)data)[i];
    case DISC_I64: return (double)((const int64_t*)data)[i];
    case DISC_U16: return ((const uint16_t*)data)[i];
    case DISC_U32: return ((const uint32_t*)data)[i];
    case DISC_U64: return (double)((const uint64_t*)data)[i];
    case DISC_U8:
    case DISC_BOOL: return ((const uint8_t*)data)[i];
    default: return ((const uint16_t*)data)[i]; /* f16, bf16: the bits */
  }
}

/* ---- what the runtime calls ---------------------------------------------------------------------------------------- */

static void* alloc_output(void* user, int32_t index, int32_t rank, const int64_t* dims, int64_t bytes) {
  tensor* t = &((model_run*)user)->results[index];
  memcpy(t->dims, dims, (size_t)rank * sizeof *dims);
  t->bytes = bytes;
  t->data = malloc(bytes ? (size_t)bytes : 1);
  return t->data;
}

/* The result is complete. The run may still read it: it must not be changed before disc_run_end. */
static int32_t send_output(void* user, int32_t index) {
  const model_run* run = user;
  const tensor* t = &run->results[index];
  disc_tensor_info info;
  if (disc_result(run->exec, index, &info) != 0) return disc_last_error_code();
  info.dims = t->dims;
  print_type(&info);
  const int64_t n = t->bytes / kSizes[info.dtype];
  for (int64_t i = 0; i < n && i < 8; ++i) printf(" %.6g", element(&info, t->data, i));
  printf(n > 8 ? " ...\n" : "\n");
  return 0;
}

/* ---- inputs -------------------------------------------------------------------------------------------------------- */

/* "2x7:file" or "2x7" or ":file" or "" for an input of that type; 0 if it is filled. */
static int make_input(const disc_tensor_info* t, const char* text, tensor* out) {
  int64_t count = 1;
  const char* at = text;
  for (int32_t i = 0; i < t->rank; ++i) {
    out->dims[i] = t->dims[i] < 0 ? 1 : t->dims[i];
    if (*at && *at != ':') {
      char* end = NULL;
      out->dims[i] = strtoll(at, &end, 10);
      if (end == at || out->dims[i] < 0) return fail("extents are written as 2x7");
      at = *end == 'x' ? end + 1 : end;
    }
    count *= out->dims[i];
  }
  out->bytes = count * kSizes[t->dtype];
  out->data = calloc(out->bytes ? (size_t)out->bytes : 1, 1);
  if (!out->data) return fail("out of memory");
  if (!*at) return 0;
  if (*at != ':') return fail("more extents than the input has");
  FILE* f = fopen(at + 1, "rb");
  if (!f) return fail("cannot open an input's file");
  const size_t got = fread(out->data, 1, (size_t)out->bytes, f);
  const int more = fgetc(f) != EOF;
  fclose(f);
  return got == (size_t)out->bytes && !more ? 0 : fail("an input's file has another size than its extents");
}

static int32_t find_input(const disc_exec* exec, const char* name, size_t length) {
  disc_tensor_info t;
  for (int32_t i = 0; i < disc_num_args(exec); ++i)
    if (!disc_arg_bound(exec, i) && disc_arg(exec, i, &t) == 0 && strlen(t.name) == length && strncmp(t.name, name, length) == 0) return i;
  return -1;
}

static int give(disc_exec* exec, disc_run* run, int32_t index, const char* text, tensor* inputs) {
  disc_tensor_info t;
  if (disc_arg(exec, index, &t) != 0) return fail_disc("argument");
  if (make_input(&t, text, &inputs[index]) != 0) return 1;
  const disc_memref value = {inputs[index].data, t.rank, inputs[index].dims};
  if (disc_run_set_input(run, index, &value) != 0) return fail_disc(t.name);
  if (disc_run_advance(run, NULL) != 0) return fail_disc("run");
  return 0;
}

static int execute(disc_exec* exec, int count, char** texts) {
  const int32_t n_args = disc_num_args(exec), n_results = disc_num_results(exec);
  tensor* inputs = calloc((size_t)n_args + 1, sizeof *inputs);
  tensor* results = calloc((size_t)n_results + 1, sizeof *results);
  if (!inputs || !results) return fail("out of memory");
  model_run state = {exec, results};
  disc_run_options options = {.struct_size = sizeof options, .user = &state, .alloc_output = alloc_output, .send_output = send_output};
  disc_run* run = disc_run_begin(exec, &options);
  if (!run) return fail_disc("run");
  int rc = disc_run_advance(run, NULL) == 0 ? 0 : fail_disc("run");
  for (int i = 0; i < count && rc == 0; ++i) {
    const char* equals = strchr(texts[i], '=');
    const int32_t index = equals ? find_input(exec, texts[i], (size_t)(equals - texts[i])) : -1;
    rc = index < 0 ? fail("inputs are given as NAME=EXTENTS:FILE") : give(exec, run, index, equals + 1, inputs);
  }
  for (int32_t i = 0; i < n_args && rc == 0; ++i)
    if (!disc_arg_bound(exec, i) && !inputs[i].data) rc = give(exec, run, i, "", inputs);
  if (disc_run_end(run) != 0 && rc == 0) rc = fail_disc("run");
  for (int32_t i = 0; i < n_args; ++i) free(inputs[i].data);
  for (int32_t i = 0; i < n_results; ++i) free(results[i].data);
  free(inputs);
  free(results);
  return rc;
}

int main(int argc, char** argv) {
  if (argc < 2) return fail("usage: run_model MODEL.disc [NAME=EXTENTS[:FILE] ...]");
  disc_exec* exec = disc_load_file(argv[1]);
  if (!exec) return fail_disc("load");
  printf("code for %s\n", disc_isa(exec));
  disc_tensor_info t;
  for (int32_t i = 0; i < disc_num_args(exec); ++i)
    if (!disc_arg_bound(exec, i) && disc_arg(exec, i, &t) == 0) {
      printf("input ");
      print_type(&t);
      printf("\n");
    }
  const int rc = execute(exec, argc - 2, argv + 2);
  disc_close(exec);
  return rc;
}
