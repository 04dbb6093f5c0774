/* A host whose callbacks never leave C: for languages in which a callback may end otherwise than by returning, such as Python, where the
 * handler of a signal may raise as soon as a function begins. What the host needs to know is in a block of words before the run, and what the
 * run made is there when it has returned. The functions below are callbacks of disc_run_options; `user` is the block. */
#ifndef DISC_HOST_H
#define DISC_HOST_H

#include "disc_ral.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DISC_HOST_OPEN = 0, DISC_HOST_MADE, DISC_HOST_VIEW, DISC_HOST_MISFIT };

/* A result. All words have 8 bytes; `*_at` are offsets in bytes from the start of the block. */
typedef struct {
  void* data;     /* out, DISC_HOST_MADE: `given`, or memory for disc_host_claim */
  void* given;    /* in: memory for the result, or null. Its extents are at `dims_at` */
  int64_t dims_at; /* in: where its `rank` extents are. Out: those that came out */
  int64_t rank;   /* in */
  int64_t source; /* out, DISC_HOST_VIEW: the input that the result is a view of */
  int64_t state;  /* out. DISC_HOST_MISFIT: `given` has other extents than came out, which are at `dims_at` now */
} disc_host_result;

/* An input. */
typedef struct {
  void* object;     /* in: what owns its memory, for `keep` and `drop` of disc_host_python */
  int64_t known;    /* in and out: whether `content` is its disc_content_hash */
  uint64_t content;
} disc_host_input;

typedef struct {
  int64_t results_at; /* in: disc_host_result of each */
  int64_t inputs_at;  /* in: disc_host_input of each */
  int64_t num_results; /* in */
  int64_t sent_at;    /* in: room for all results. Out: their indices (int64_t) in the order in which they were complete */
  int64_t num_sent;   /* out */
  void* user;
  void (*told)(void* user, int32_t index); /* told of each complete result on the thread of the run. May be null */
} disc_host;

DISC_EXPORT void* disc_host_alloc_output(void* host, int32_t index, int32_t rank, const int64_t* dims, int64_t bytes);
DISC_EXPORT int32_t disc_host_alias_output(void* host, int32_t index, int32_t input, int32_t rank, const int64_t* dims);
DISC_EXPORT int32_t disc_host_send_output(void* host, int32_t index);
DISC_EXPORT void* disc_host_retain_input(void* host, int32_t index);
DISC_EXPORT void disc_host_release_input(void* object);
DISC_EXPORT uint64_t disc_host_content(void* host, int32_t index, const void* data, int64_t bytes);

/* What of CPython's C API is needed: how objects are counted, and capsules. No Python code runs when a capsule goes, so that none is
 * interrupted there. Set once, before anything below is called. */
typedef struct {
  void (*keep)(void*);                                                   /* Py_IncRef */
  void (*drop)(void*);                                                   /* Py_DecRef */
  int (*lock)(void);                                                     /* PyGILState_Ensure */
  void (*unlock)(int);                                                   /* PyGILState_Release */
  int (*alive)(void);                                                    /* Py_IsInitialized */
  void* (*capsule)(void* p, const char* name, void (*destroy)(void*));   /* PyCapsule_New */
  void* (*pointer)(void* capsule, const char* name);                     /* PyCapsule_GetPointer */
} disc_host_python;
DISC_EXPORT void disc_host_set_python(const disc_host_python* functions);

/* The first four give a capsule (a new reference, null without memory) and are called with the lock of the interpreter. */
/* A copy of a block: freed with the results in it that were not claimed. */
DISC_EXPORT void* disc_host_block(const void* words, int64_t bytes);
/* The memory of result `index`, which is the caller's from now on. */
DISC_EXPORT void* disc_host_claim(void* host, int64_t index);
/* An executable: closed with the capsule. */
DISC_EXPORT void* disc_host_executable(disc_exec* exec);
/* A staged run, as a place (disc_run*) that holds it, null if it could not begin: ended with the capsule, or before by disc_host_end (without
 * the lock). */
DISC_EXPORT void* disc_host_run(disc_exec* exec, const disc_run_options* options);
/* disc_run_advance on a thread of its own, which is waited for (without the lock): `told` is then called on a thread on which the interpreter
 * handles no signals. */
DISC_EXPORT int32_t disc_host_advance(disc_run* run, int32_t* remaining);
/* Ends the run in a place of disc_host_run; FAILED_PRECONDITION as disc_run_end, 0 if it has ended before. */
DISC_EXPORT int32_t disc_host_end(void* place);

#ifdef __cplusplus
}
#endif
#endif
