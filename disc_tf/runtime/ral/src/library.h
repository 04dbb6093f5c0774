// Library functions: what compiled code calls by name through disc_api::dispatch instead of emitting it.
//
// To add one: write it in a file library_<family>.cc, list it in library.cc, describe its arguments at its definition.
#pragma once

#include <cstdint>

#include "disc_ral_abi.h"

namespace disc {

// Gives 0 or a status code; what else it wants to say it records with disc_context::fail_internally.
using LibraryFunction = int32_t (*)(disc_context*, void* const* args, const int64_t* scalars);

LibraryFunction find_library_function(const char* name);

// Element i of data, as it is now. Another op of the graph may assign to a variable while its old contents are read, so that two reads of
// an element may differ: one that a bound depends on is read once, by this, and what was tested is what is used.
template <typename T>
T read_once(const T* data, int64_t i) {
  return *static_cast<const volatile T*>(data + i);
}

// library_sparse.cc
int32_t library_fill_rows(disc_context*, void* const* args, const int64_t* scalars);

// library_linalg.cc
int32_t library_cholesky(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_lu(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_lu_solve(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_triangular_solve(disc_context*, void* const* args, const int64_t* scalars);

// library_nms.cc
int32_t library_combined_nms(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_nms(disc_context*, void* const* args, const int64_t* scalars);

// library_sort.cc
int32_t library_sort(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_topk(disc_context*, void* const* args, const int64_t* scalars);

// library_data.cc
int32_t library_nonzero(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_partition(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_search(disc_context*, void* const* args, const int64_t* scalars);
int32_t library_unique(disc_context*, void* const* args, const int64_t* scalars);

}  // namespace disc
