#include "library.h"

#include <cstring>

namespace disc {
namespace {

struct Entry {
  const char* name;
  LibraryFunction fn;
};

constexpr Entry kFunctions[] = {
    {"cholesky", library_cholesky},
    {"combined_nms", library_combined_nms},
    {"fill_rows", library_fill_rows},
    {"lu", library_lu},
    {"lu_solve", library_lu_solve},
    {"nms", library_nms},
    {"nonzero", library_nonzero},
    {"partition", library_partition},
    {"search", library_search},
    {"sort", library_sort},
    {"topk", library_topk},
    {"triangular_solve", library_triangular_solve},
    {"unique", library_unique},
};

}  // namespace

LibraryFunction find_library_function(const char* name) {
  for (const Entry& e : kFunctions)
    if (std::strcmp(e.name, name) == 0) return e.fn;
  return nullptr;
}

}  // namespace disc
