/* Public C API of libdisc_ral: load an artefact, ask for its signature, run it. No TensorFlow, no Python.
 *
 * Functions that return int32_t give 0 (OK) or a TensorFlow status code; code, message and original node of the
 * latest failure on the calling thread are had from disc_last_error*(). All functions are thread-safe; one disc_run is
 * to be used by one thread at a time. DiscLaunch's library exports the same functions, see disc_ral_get.
 */
#ifndef DISC_RAL_H_
#define DISC_RAL_H_

#include <stddef.h>
#include <stdint.h>

#include "disc_ral_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DISC_EXPORT __attribute__((visibility("default")))
#define DISC_RAL_API_VERSION 1u

enum { DISC_COPY = -1 }; /* of alias_output */
enum { DISC_KIND_CONST = 0, DISC_KIND_HOST = 1, DISC_KIND_DEVICE = 2 };
enum {
  DISC_F16 = 1, DISC_BF16, DISC_F32, DISC_F64, DISC_I8, DISC_I16, DISC_I32, DISC_I64,
  DISC_U8, DISC_U16, DISC_U32, DISC_U64, DISC_BOOL
};

typedef struct disc_exec disc_exec; /* a loaded executable (a reference to it) */
typedef struct disc_run disc_run;   /* a run whose inputs arrive one by one */

typedef struct {
  const char* name;
  int32_t kind; /* arguments: DISC_KIND_*; results: DISC_KIND_HOST or DISC_KIND_DEVICE */
  int32_t dtype;
  int32_t rank;
  const int64_t* dims;   /* -1: unknown */
  const uint8_t* digest; /* 32 bytes or null */
} disc_tensor_info;

typedef struct {
  uint32_t struct_size;
  int32_t max_threads; /* threads of this run, its caller included; 0: no cap */
  void* user;          /* first argument of the callbacks */
  /* Memory for result `index`: `bytes` bytes (not null unless bytes is 0); null: no memory. */
  void* (*alloc_output)(void* user, int32_t index, int32_t rank, const int64_t* dims, int64_t bytes);
  /* Result `index` is input `input` with these dims. May be null, or return DISC_COPY: then the RAL copies into alloc_output's memory. */
  int32_t (*alias_output)(void* user, int32_t index, int32_t input, int32_t rank, const int64_t* dims);
  /* Result `index` is complete. May be null. */
  int32_t (*send_output)(void* user, int32_t index);
  /* Keeps the buffer of input `index` alive and unchanged until release_input(handle), on any thread. May be null: packed
   * constants made of inputs without digest are then made again for each run. */
  void* (*retain_input)(void* user, int32_t index);
  void (*release_input)(void* handle);
  /* disc_content_hash of input `index`, an argument with a digest that is not bound; called for each packed constant of each run, so the host
   * remembers it as long as the input has the very buffer that it was made of, which it keeps for that. May be null: then digests are believed,
   * and other contents than theirs may be answered with what was packed of theirs. */
  uint64_t (*content)(void* user, int32_t index, const void* data, int64_t bytes);
} disc_run_options;

/* Loads an artefact: checks it, picks the code for this CPU. Equal artefacts share one loaded image. Null on failure. */
DISC_EXPORT disc_exec* disc_load(const void* artifact, size_t size);
/* Loads a stand-alone file (`.disc`): an artefact that holds the values of its constants. The file is mapped, not read: its pages are shared
 * by all processes. Replace it by renaming a new file over it, never by writing into it. Works for a file without constants, too. */
DISC_EXPORT disc_exec* disc_load_file(const char* path);
/* 1 if the file has the value of argument `index`: then it is given to every run, and none may be set. */
DISC_EXPORT int32_t disc_arg_bound(const disc_exec* exec, int32_t index);
/* Drops the reference; the code is unloaded after the last run in it has ended. */
DISC_EXPORT void disc_close(disc_exec* exec);

DISC_EXPORT int32_t disc_num_args(const disc_exec* exec);
DISC_EXPORT int32_t disc_num_results(const disc_exec* exec);
DISC_EXPORT int32_t disc_arg(const disc_exec* exec, int32_t index, disc_tensor_info* out);
DISC_EXPORT int32_t disc_result(const disc_exec* exec, int32_t index, disc_tensor_info* out);
DISC_EXPORT const char* disc_isa(const disc_exec* exec);
/* How the image was loaded: "memfd", "file" or "mmap". */
DISC_EXPORT const char* disc_loader(const disc_exec* exec);

/* Runs with all inputs there (disc_num_args of them, in order; those of bound arguments are not looked at). */
DISC_EXPORT int32_t disc_execute(disc_exec* exec, const disc_memref* inputs, const disc_run_options* options);

/* Staged run. A result is sent (send_output, on the thread that is in disc_run_advance) when it is complete and every check before it
 * has passed. Its memory may be read by the run until that ends: it must not be changed before. */
DISC_EXPORT disc_run* disc_run_begin(disc_exec* exec, const disc_run_options* options);
/* Gives input `index`; its data must stay until disc_run_end. */
DISC_EXPORT int32_t disc_run_set_input(disc_run* run, int32_t index, const disc_memref* value);
/* Runs all segments that are ready; *remaining (may be null) is the number of segments that still wait. */
DISC_EXPORT int32_t disc_run_advance(disc_run* run, int32_t* remaining);
/* Ends the run and frees it; FAILED_PRECONDITION if a segment never got its inputs. */
DISC_EXPORT int32_t disc_run_end(disc_run* run);

/* 64 bits for telling contents apart (not for keeping forgers out). */
DISC_EXPORT uint64_t disc_content_hash(const void* data, int64_t bytes);

/* Threads for the process, callers included; 0: back to DISC_TF_NUM_THREADS, else CPU affinity and cgroup quota. */
DISC_EXPORT int32_t disc_set_num_threads(int32_t threads);
DISC_EXPORT int32_t disc_num_threads(void);
/* Highest ISA that later loads may pick: "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-vnni-bf16", "native"; null: back to
   DISC_TF_TARGET. */
DISC_EXPORT int32_t disc_set_target(const char* isa);
/* The best ISA that this machine and its operating system can run. */
DISC_EXPORT const char* disc_host_isa(void);
/* How later loads get code into memory: "auto", "memfd", "file", "mmap"; null: back to DISC_TF_LOADER. */
DISC_EXPORT int32_t disc_set_loader(const char* loader);

/* Packed constants of 64 KiB and more are shared with the other processes of this host through files in `directory` (made with mode 0700 if
 * its parent is there), instead of being packed in this process's memory; "": not shared, null: back to DISC_TF_PACKS. limit_bytes: what all packs in there may
 * take, 0 for no limit. Fails, and changes nothing, if the directory cannot be used: not made, others may write into it, not on a local file
 * system. What was packed before stays where it is. Later failures fail no run: they are counted, and explained by disc_packs_problem. */
DISC_EXPORT int32_t disc_share_packs(const char* directory, int64_t limit_bytes);
/* The directory in force, "" if none. Lives until the thread asks again. */
DISC_EXPORT const char* disc_packs_directory(void);
/* Why a packed constant was not shared, the latest reason since the directory was chosen; "": none. Lives until the thread asks again. */
DISC_EXPORT const char* disc_packs_problem(void);

/* From now on code is loaded only if a key of `file` signed it (docs/service.md, signing); "": any code is, null: back to DISC_TF_TRUST. The
 * file is read again for each load. What is loaded stays. Fails if the file or libcrypto cannot be used; the policy is in force all the same, and
 * loads fail until it can be: PERMISSION_DENIED is code that is not trusted, FAILED_PRECONDITION a policy that cannot be asked. */
DISC_EXPORT int32_t disc_set_trust(const char* file);
/* The file in force, "" if none. Lives until the thread asks again. */
DISC_EXPORT const char* disc_trust_file(void);

/* Counters since the start, -1 for an unknown name: images_loaded, images_live, runs, parallel_launches, kernels (calls of
 * parallel_for), prepared_built, prepared_live_bytes (without mapped ones), packs_loaded, packs_written, packs_refused (files that were there but not
 * taken), packs_unwritten, packs_mapped_bytes, signatures_accepted and signatures_refused (loads under a trust policy), arena_in_use_bytes,
 * arena_kept_bytes, arena_peak_bytes, worker_threads. */
DISC_EXPORT int64_t disc_counter(const char* name);
/* Gives arena memory that is not in use back to the system. */
DISC_EXPORT void disc_trim(void);

/* What runs of the process do, and when. level 1: launches of kernels; 2: all events; 0: stop; -1: stop and forget. A start forgets what was
 * recorded before; runs under way at a start are not recorded. Code that the compiler's `profile` option made launches every kernel
 * through the runtime; other code calls small ones itself, and they are part of the segment's time. RESOURCE_EXHAUSTED: no memory. */
DISC_EXPORT int32_t disc_profile(int32_t level);
enum {
  DISC_EVENT_RUN = 1, /* segments that were ready; first: those that still wait */
  DISC_EVENT_SEGMENT, /* first: its index */
  DISC_EVENT_KERNEL,  /* a launch. name: symbol, "" for a part of a library function; first: tasks, second: threads that it may use */
  DISC_EVENT_CHUNK,   /* what one thread does of a launch on several. name: the kernel's; [first, second): the tasks */
  DISC_EVENT_LIBRARY, /* name: the function */
  DISC_EVENT_ARENA,   /* memory for intermediate results. first: slot, second: bytes */
  DISC_EVENT_PREPARE, /* a packed constant is looked for. first: its index; second: 1 if it was made or read from a file, 0 if it was there */
  DISC_EVENT_OUTPUT,  /* the host makes memory for a result. name: the result; first: its index */
  DISC_EVENT_SEND,    /* the host takes a result. name: the result; first: its index */
  DISC_EVENT_EXTENT   /* no time: dim `axis` of an argument that is no constant, at the start of a run. first: argument, second: extent */
};
typedef struct {
  uint32_t struct_size;
  int32_t kind;           /* DISC_EVENT_*; 0: it is being written */
  int32_t thread;         /* the operating system's number */
  int32_t axis;           /* of DISC_EVENT_EXTENT */
  int64_t run;            /* numbered in the process */
  const char* executable; /* the artefact's name */
  const char* name;
  int64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
  int64_t processor_ns;     /* of a launch that one thread ran: its processor time; else 0 */
  int64_t first, second;
} disc_event;
/* Gives event `index` (0 <= index < count), in order of completion, and always returns the count. Names live until the next start. */
DISC_EXPORT int64_t disc_profile_event(int64_t index, disc_event* out);
/* Events for which there was no room (2^20 are kept). */
DISC_EXPORT int64_t disc_profile_dropped(void);

DISC_EXPORT int32_t disc_last_error_code(void);
DISC_EXPORT const char* disc_last_error(void);
DISC_EXPORT const char* disc_last_error_node(void);

/* The functions above as a table. libdisc_ral and the op library each hold a copy of the RAL; whichever is loaded second
 * takes the table of the first, so that a process has one thread pool, one arena and one cache of packed constants. */
typedef struct {
  uint32_t struct_size;
  uint32_t api_version;
  disc_exec* (*load)(const void*, size_t);
  void (*close)(disc_exec*);
  int32_t (*num_args)(const disc_exec*);
  int32_t (*num_results)(const disc_exec*);
  int32_t (*arg)(const disc_exec*, int32_t, disc_tensor_info*);
  int32_t (*result)(const disc_exec*, int32_t, disc_tensor_info*);
  int32_t (*execute)(disc_exec*, const disc_memref*, const disc_run_options*);
  int32_t (*last_error_code)(void);
  const char* (*last_error)(void);
  const char* (*last_error_node)(void);
  const char* (*trust_file)(void);
  uint64_t (*content_hash)(const void*, int64_t);
} disc_ral_functions;
/* Null if this library does not serve `api_version`. */
DISC_EXPORT const disc_ral_functions* disc_ral_get(uint32_t api_version);

#ifdef __cplusplus
}
#endif

#endif /* DISC_RAL_H_ */
