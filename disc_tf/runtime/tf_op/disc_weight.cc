// The TensorFlow op DiscWeight: a constant whose bytes lie in a file of their own, mapped and never copied.
//
//   DiscWeight() -> (value: dtype)        attrs: path, dims, bytes
//
// Stateful in TensorFlow's terms, so that no optimiser evaluates it and copies the content back into the graph.

#include "disc_weight.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr char kOpName[] = "DiscWeight";

// A read-only mapping of a whole file; shared with the tensors that look into it.
struct Mapping {
  void* data = nullptr;
  size_t size = 0;
  Mapping() = default;
  ~Mapping() {
    if (data) munmap(data, size);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

struct Weight {
  std::shared_ptr<Mapping> mapping;
  TF_DataType dtype = TF_FLOAT;
  std::vector<int64_t> dims;
};

struct StatusDeleter {
  void operator()(TF_Status* s) const { TF_DeleteStatus(s); }
};
using StatusPtr = std::unique_ptr<TF_Status, StatusDeleter>;

bool ok(const StatusPtr& s) { return TF_GetCode(s.get()) == TF_OK; }

std::string text_attr(TF_OpKernelConstruction* ctx, const char* name, TF_Status* s) {
  int32_t list = 0, total = 0;
  TF_OpKernelConstruction_GetAttrSize(ctx, name, &list, &total, s);
  if (TF_GetCode(s) != TF_OK || total <= 0) return {};
  std::string text(static_cast<size_t>(total), '\0');
  TF_OpKernelConstruction_GetAttrString(ctx, name, text.data(), text.size(), s);
  return text;
}

// Maps the file; an empty string, or what is wrong.
std::string map_file(const std::string& path, int64_t bytes, Mapping* mapping) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "cannot open the weights " + path + ": " + std::strerror(errno) + "; they belong beside the optimised graph";
  struct stat st;
  std::string problem;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    problem = path + " is not a regular file";
  } else if (st.st_size != bytes) {
    problem = path + " has " + std::to_string(st.st_size) + " bytes, the graph expects " + std::to_string(bytes);
  } else {
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      problem = "cannot map " + path + ": " + std::strerror(errno);
    } else {
      mapping->data = data;
      mapping->size = static_cast<size_t>(bytes);
    }
  }
  close(fd);
  return problem;
}

void* create(TF_OpKernelConstruction* ctx) {
  const StatusPtr s(TF_NewStatus());
  auto weight = std::make_unique<Weight>();
  const std::string path = text_attr(ctx, "path", s.get());
  int64_t bytes = 0;
  int32_t rank = 0, total = 0;
  if (ok(s)) TF_OpKernelConstruction_GetAttrInt64(ctx, "bytes", &bytes, s.get());
  if (ok(s)) TF_OpKernelConstruction_GetAttrType(ctx, "dtype", &weight->dtype, s.get());
  if (ok(s)) TF_OpKernelConstruction_GetAttrSize(ctx, "dims", &rank, &total, s.get());
  if (ok(s) && rank > 0) {
    weight->dims.resize(static_cast<size_t>(rank));
    TF_OpKernelConstruction_GetAttrInt64List(ctx, "dims", weight->dims.data(), rank, s.get());
  }
  if (ok(s)) {
    // The product must be the file's size: TensorFlow would read beyond the mapping otherwise.
    int64_t expected = static_cast<int64_t>(TF_DataTypeSize(weight->dtype));
    bool fits = expected > 0 && bytes > 0;
    for (const int64_t d : weight->dims) fits = fits && d >= 0 && !__builtin_mul_overflow(expected, d, &expected);
    weight->mapping = std::make_shared<Mapping>();
    std::string problem = fits && expected == bytes ? "" : "dims, dtype and bytes of the weight do not agree";
    if (problem.empty()) problem = map_file(path, bytes, weight->mapping.get());
    if (!problem.empty()) TF_SetStatus(s.get(), TF_INVALID_ARGUMENT, (std::string(kOpName) + ": " + problem).c_str());
  }
  if (ok(s)) return weight.release();
  TF_OpKernelConstruction_Failure(ctx, s.get());
  return nullptr;
}

void release_mapping(void*, size_t, void* held) { delete static_cast<std::shared_ptr<Mapping>*>(held); }

void compute(void* user, TF_OpKernelContext* ctx) {
  const Weight& weight = *static_cast<const Weight*>(user);
  const StatusPtr s(TF_NewStatus());
  auto* held = new std::shared_ptr<Mapping>(weight.mapping);
  TF_Tensor* t = TF_NewTensor(weight.dtype, weight.dims.data(), static_cast<int>(weight.dims.size()), weight.mapping->data,
                              weight.mapping->size, release_mapping, held);
  if (!t) {
    delete held;
    TF_SetStatus(s.get(), TF_INTERNAL, "DiscWeight: TensorFlow made no tensor");
  } else {
    TF_SetOutput(ctx, 0, t, s.get());
    TF_DeleteTensor(t);
  }
  if (!ok(s)) TF_OpKernelContext_Failure(ctx, s.get());
}

void destroy(void* user) { delete static_cast<Weight*>(user); }

// The C API cannot read lists in a shape function: `_output_shapes` keeps Python's static shapes.
void unknown_shape(TF_ShapeInferenceContext* ctx, TF_Status* status) { TF_ShapeInferenceContextSetUnknownShape(ctx, status); }

}  // namespace

void register_disc_weight(TF_Status* status) {
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(kOpName);
  for (const char* attr : {"dtype: type", "dims: list(int) >= 0", "bytes: int", "path: string"}) TF_OpDefinitionBuilderAddAttr(op, attr);
  TF_OpDefinitionBuilderAddOutput(op, "value: dtype");
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, unknown_shape);
  TF_RegisterOpDefinition(op, status);
  if (TF_GetCode(status) == TF_OK) TF_RegisterKernelBuilder(kOpName, TF_NewKernelBuilder(kOpName, "CPU", create, compute, destroy), status);
}
