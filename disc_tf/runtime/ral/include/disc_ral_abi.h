/* The contract between a compiled executable and the RAL (runtime abstraction layer).
 *
 * C, fixed layout, little-endian 64-bit. Both structs carry their size, so that fields may be appended:
 * an executable must look at `struct_size` before it uses a field that came after version 1.
 * Status codes are TensorFlow's (0 OK, 3 INVALID_ARGUMENT, 8 RESOURCE_EXHAUSTED, 11 OUT_OF_RANGE, 13 INTERNAL ...).
 */
#ifndef DISC_RAL_ABI_H_
#define DISC_RAL_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DISC_ABI_VERSION 1u
#define DISC_QUERY_SYMBOL "disc_executable_query"
/* Initial content of the error cell: no check has failed. */
#define DISC_NO_ERROR INT64_MAX

typedef struct disc_context disc_context; /* one run */

/* A dense row-major tensor. `data` may be null when there are no elements; alignment is that of the element. */
typedef struct {
  void* data;
  int64_t rank;
  const int64_t* dims;
} disc_memref;

/* What a kernel sees. `err` is the run's error cell, see disc_api::error_cell. */
typedef struct {
  void* const* bufs;
  const int64_t* scalars;
  int64_t* err;
} disc_kernel_args;

/* Runs tasks [begin, end). The result must not depend on how [0, tasks) is split into such calls.
 * `scratch` is 64-byte aligned, private to the calling thread for this call, uninitialised.
 * Runs with FTZ and DAZ set and round-to-nearest. */
typedef void (*disc_kernel_fn)(const disc_kernel_args*, int64_t begin, int64_t end, void* scratch);

/* RAL -> executable. Functions that return int32_t give 0 or a status code; after a non-zero code the failure is
 * already recorded in the run and the segment should return that code. All are to be called on the thread that runs
 * the segment, never from a kernel. */
typedef struct {
  uint32_t struct_size;
  uint32_t abi_version;
  /* The input; null if it is not there (which is recorded as INTERNAL: a segment reads only inputs of its mask). */
  const disc_memref* (*recv_input)(disc_context*, int32_t index);
  /* Memory for output `index`; null after a failure. With zero elements the result is not null but not usable. */
  void* (*alloc_output)(disc_context*, int32_t index, int32_t rank, const int64_t* dims);
  /* Output `index` is input `input` seen with other dims (same dtype and element count); no copy is made. */
  int32_t (*alias_output)(disc_context*, int32_t index, int32_t input, int32_t rank, const int64_t* dims);
  /* The output is complete. Refused while the error cell holds a failed check. */
  int32_t (*send_output)(disc_context*, int32_t index);
  /* 64-byte aligned, uninitialised, lives until the run ends. Negative `bytes` means that the size computation
   * overflowed: RESOURCE_EXHAUSTED. The same slot asked again gives the same memory if that is large enough. */
  void* (*arena)(disc_context*, int32_t slot, int64_t bytes);
  /* Runs the kernel over [0, tasks), in chunks of at least `grain` tasks; with tasks <= grain on the calling thread.
   * Returns after all tasks are done; non-zero if the error cell is set then or scratch could not be had. */
  int32_t (*parallel_for)(disc_context*, disc_kernel_fn, const disc_kernel_args*, int64_t tasks, int64_t grain,
                          int64_t scratch_bytes);
  /* Calls a library function of the RAL by name (see library.cc for the names and their arguments). */
  int32_t (*dispatch)(disc_context*, const char* name, void* const* args, const int64_t* scalars);
  /* Records a failure. With check_id >= 0 code, message and node come from the artefact's check table
   * (`code` counts if it is not 0); of several failures the lowest check_id is reported. */
  void (*fail)(disc_context*, int32_t code, int32_t check_id);
  /* Packed constant `index`: built by disc_executable::prepare at first use, then shared by the whole process.
   * Null after a failure. For an entry marked `optional` it may also be null, without a failure, when its inputs
   * change so often that packing does not pay: the executable then uses its unpacked variant. */
  const void* (*prepared)(disc_context*, int32_t index);
  /* Memory for packed constant `index`, 64-byte aligned; only inside prepare(index), once. */
  void* (*prepare_alloc)(disc_context*, int32_t index, int64_t bytes);
  /* The run's error cell, to be put into disc_kernel_args::err. A kernel whose check fails stores
   * atomic_umin(*cell, check_id). */
  int64_t* (*error_cell)(disc_context*);
} disc_api;

/* Executable -> RAL, filled by disc_executable_query. */
typedef struct {
  uint32_t struct_size; /* in: room that the RAL gave; out: what the executable filled */
  uint32_t abi_version;
  /* Builds packed constant `index` (null if n_prepared is 0). Returns 0 or a status code. */
  int32_t (*prepare)(disc_context*, const disc_api*, int32_t index);
  int32_t n_segments;
  int32_t n_prepared;
  /* Runs segment `index`; the RAL calls it once, after its inputs and the segments that it depends on. */
  int32_t (*segment)(disc_context*, const disc_api*, int32_t index);
} disc_executable;

/* The only exported symbol of an executable. Returns 0, or non-zero if it cannot serve `max_abi`. */
typedef int32_t (*disc_executable_query_fn)(uint32_t max_abi, disc_executable* out);

#ifdef __cplusplus
}
#endif

#endif /* DISC_RAL_ABI_H_ */
