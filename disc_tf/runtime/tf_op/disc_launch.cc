// The TensorFlow op DiscLaunch: runs the executable that it carries on its inputs.
//
//   DiscLaunch(constants: Tconst, host_args: Thost, args: Targs) -> (host_results: Thostout, results: Tout)
//
// Stateless and thread-safe; may run inside grappler, where a kernel has no session, no function library and no step: it asks its context
// for inputs and outputs only.

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "disc_ral.h"
#include "disc_weight.h"
#include "tf_c_api.h"

namespace {

constexpr char kOpName[] = "DiscLaunch";
constexpr int64_t kMaxAbi = DISC_ABI_VERSION;

struct StatusDeleter {
  void operator()(TF_Status* s) const { TF_DeleteStatus(s); }
};
using StatusPtr = std::unique_ptr<TF_Status, StatusDeleter>;
struct TensorDeleter {
  void operator()(TF_Tensor* t) const { TF_DeleteTensor(t); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, TensorDeleter>;

bool ok(const StatusPtr& s) { return TF_GetCode(s.get()) == TF_OK; }

// The RAL of this process: that of libdisc_ral.so if it was loaded first (by disc_tf.runtime), so that both share one thread pool, one
// arena and one cache of packed constants; else the copy in this library, which disc_tf.runtime then uses.
const disc_ral_functions& ral() {
  static const disc_ral_functions* functions = [] {
    if (void* lib = dlopen("libdisc_ral.so", RTLD_NOW | RTLD_NOLOAD)) {
      using Get = const disc_ral_functions* (*)(uint32_t);
      if (auto get = reinterpret_cast<Get>(dlsym(lib, "disc_ral_get")))
        if (const disc_ral_functions* f = get(DISC_RAL_API_VERSION); f && f->struct_size >= sizeof(disc_ral_functions)) return f;
    }
    return disc_ral_get(DISC_RAL_API_VERSION);
  }();
  return *functions;
}

TF_DataType tf_dtype(int32_t dtype) {
  static constexpr TF_DataType kTypes[] = {TF_HALF, TF_BFLOAT16, TF_FLOAT, TF_DOUBLE, TF_INT8,   TF_INT16, TF_INT32,
                                           TF_INT64, TF_UINT8,   TF_UINT16, TF_UINT32, TF_UINT64, TF_BOOL};
  return kTypes[dtype - 1];
}

// The integer type with the same bits: executables know no quantized types.
TF_DataType storage_of(TF_DataType type) {
  switch (type) {
    case TF_QINT8: return TF_INT8;
    case TF_QUINT8: return TF_UINT8;
    case TF_QINT16: return TF_INT16;
    case TF_QUINT16: return TF_UINT16;
    case TF_QINT32: return TF_INT32;
    default: return type;
  }
}

// The node's view of an executable: which input is which argument.
struct Kernel {
  disc_exec* exec = nullptr;
  std::vector<int32_t> input_of_arg;      // TF input index, by argument
  std::vector<int32_t> output_of_result;  // TF output index, by result
  std::vector<TF_DataType> result_types;  // by result

  // The latest buffer of each constant argument that was hashed. It is kept, so that no other contents come to lie at its address.
  struct Hashed {
    TensorPtr buffer;
    uint64_t hash = 0;
  };
  mutable std::mutex hashed_mutex;
  mutable std::vector<Hashed> hashed;  // by argument

  Kernel() = default;
  ~Kernel() {
    if (exec) ral().close(exec);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
};

// ------------------------------------------------------------------------------------------------------- construction

struct Failure {
  TF_Code code = TF_OK;
  std::string message;
  explicit operator bool() const { return code != TF_OK; }
};

Failure attr_failure(const char* attr, const StatusPtr& s) {
  return {TF_GetCode(s.get()), std::string(kOpName) + ": attribute " + attr + ": " + TF_Message(s.get())};
}

Failure type_list(TF_OpKernelConstruction* ctx, const char* attr, std::vector<TF_DataType>* types) {
  const StatusPtr s(TF_NewStatus());
  int32_t count = 0, total = 0;
  TF_OpKernelConstruction_GetAttrSize(ctx, attr, &count, &total, s.get());
  if (!ok(s)) return attr_failure(attr, s);
  types->resize(static_cast<size_t>(count > 0 ? count : 0));
  if (types->empty()) return {};
  TF_OpKernelConstruction_GetAttrTypeList(ctx, attr, types->data(), count, s.get());
  return ok(s) ? Failure{} : attr_failure(attr, s);
}

Failure load(TF_OpKernelConstruction* ctx, Kernel* kernel) {
  const StatusPtr s(TF_NewStatus());
  int64_t abi = 0;
  TF_OpKernelConstruction_GetAttrInt64(ctx, "abi", &abi, s.get());
  if (!ok(s)) return attr_failure("abi", s);
  if (abi < 1 || abi > kMaxAbi)
    return {TF_INVALID_ARGUMENT, std::string(kOpName) + ": the node was made for runtime ABI " + std::to_string(abi) + ", this op library serves 1 to " +
                                     std::to_string(kMaxAbi) + "; upgrade disc-tf here, or optimize the model again with this version"};
  int32_t list_size = 0, size = 0;
  TF_OpKernelConstruction_GetAttrSize(ctx, "executable", &list_size, &size, s.get());
  if (!ok(s)) return attr_failure("executable", s);
  std::vector<char> bytes(static_cast<size_t>(size > 0 ? size : 0));
  if (!bytes.empty()) TF_OpKernelConstruction_GetAttrString(ctx, "executable", bytes.data(), bytes.size(), s.get());
  if (!ok(s)) return attr_failure("executable", s);
  kernel->exec = ral().load(bytes.data(), bytes.size());
  if (!kernel->exec) {
    const TF_StringView name = TF_OpKernelConstruction_GetName(ctx);
    return {static_cast<TF_Code>(ral().last_error_code()), std::string(kOpName) + " " + std::string(name.data, name.len) + ": " + ral().last_error()};
  }
  return {};
}

// Matches the node's lists against the signature: arguments are grouped by kind, results by host, each group in its order.
Failure match(const std::vector<std::vector<TF_DataType>>& lists, const std::vector<disc_tensor_info>& signature, int first_kind, const char* what,
              std::vector<int32_t>* position) {
  position->assign(signature.size(), 0);
  int32_t base = 0;
  for (size_t l = 0; l < lists.size(); ++l) {
    size_t n = 0;
    for (size_t i = 0; i < signature.size(); ++i) {
      if (signature[i].kind != first_kind + static_cast<int>(l)) continue;
      if (n >= lists[l].size() || storage_of(lists[l][n]) != tf_dtype(signature[i].dtype))
        return {TF_INVALID_ARGUMENT, std::string(kOpName) + ": the node's " + what + " types do not fit its executable at " + signature[i].name};
      (*position)[i] = base + static_cast<int32_t>(n++);
    }
    if (n != lists[l].size())
      return {TF_INVALID_ARGUMENT, std::string(kOpName) + ": the node has " + std::to_string(lists[l].size()) + " " + what + " in list " + std::to_string(l) +
                                       ", its executable " + std::to_string(n)};
    base += static_cast<int32_t>(n);
  }
  return {};
}

Failure construct(TF_OpKernelConstruction* ctx, Kernel* kernel) {
  if (Failure f = load(ctx, kernel)) return f;
  std::vector<std::vector<TF_DataType>> ins(3), outs(2);
  static constexpr const char* kIn[] = {"Tconst", "Thost", "Targs"};
  static constexpr const char* kOut[] = {"Thostout", "Tout"};
  for (size_t i = 0; i < ins.size(); ++i)
    if (Failure f = type_list(ctx, kIn[i], &ins[i])) return f;
  for (size_t i = 0; i < outs.size(); ++i)
    if (Failure f = type_list(ctx, kOut[i], &outs[i])) return f;
  std::vector<disc_tensor_info> args(static_cast<size_t>(ral().num_args(kernel->exec)));
  kernel->hashed.resize(args.size());
  std::vector<disc_tensor_info> results(static_cast<size_t>(ral().num_results(kernel->exec)));
  for (size_t i = 0; i < args.size(); ++i) ral().arg(kernel->exec, static_cast<int32_t>(i), &args[i]);
  for (size_t i = 0; i < results.size(); ++i) ral().result(kernel->exec, static_cast<int32_t>(i), &results[i]);
  if (Failure f = match(ins, args, DISC_KIND_CONST, "inputs", &kernel->input_of_arg)) return f;
  if (Failure f = match(outs, results, DISC_KIND_HOST, "outputs", &kernel->output_of_result)) return f;
  std::vector<TF_DataType> types = outs[0];
  types.insert(types.end(), outs[1].begin(), outs[1].end());
  for (const int32_t output : kernel->output_of_result) kernel->result_types.push_back(types[static_cast<size_t>(output)]);
  return {};
}

void* create(TF_OpKernelConstruction* ctx) {
  auto kernel = std::make_unique<Kernel>();
  if (const Failure f = construct(ctx, kernel.get())) {
    const StatusPtr s(TF_NewStatus());
    TF_SetStatus(s.get(), f.code, f.message.c_str());
    TF_OpKernelConstruction_Failure(ctx, s.get());
    return nullptr;
  }
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// ------------------------------------------------------------------------------------------------------------- a call

// What the RAL's callbacks work on. `status` keeps the first failure that TensorFlow reported.
struct Call {
  const Kernel* kernel;
  TF_OpKernelContext* ctx;
  StatusPtr status{TF_NewStatus()};
  std::vector<TensorPtr> inputs;  // by argument
};

void* alloc_output(void* user, int32_t index, int32_t rank, const int64_t* dims, int64_t bytes) {
  Call& call = *static_cast<Call*>(user);
  const TensorPtr t(TF_AllocateOutput(call.ctx, call.kernel->output_of_result[index], call.kernel->result_types[index], dims, rank,
                                      static_cast<size_t>(bytes), call.status.get()));
  return t && ok(call.status) ? TF_TensorData(t.get()) : nullptr;  // the context keeps the tensor
}

int32_t alias_output(void* user, int32_t index, int32_t input, int32_t rank, const int64_t* dims) {
  Call& call = *static_cast<Call*>(user);
  const TF_DataType type = call.kernel->result_types[index];
  const int64_t none = 0;
  const TensorPtr view(TF_AllocateTensor(type, &none, 1, 0));
  if (!view) return TF_RESOURCE_EXHAUSTED;
  TF_TensorBitcastFrom(call.inputs[input].get(), type, view.get(), dims, rank, call.status.get());
  if (ok(call.status)) TF_SetOutput(call.ctx, call.kernel->output_of_result[index], view.get(), call.status.get());
  return TF_GetCode(call.status.get());
}

void* retain_input(void* user, int32_t index) {
  Call& call = *static_cast<Call*>(user);
  TF_Tensor* t = nullptr;
  const StatusPtr s(TF_NewStatus());
  TF_GetInput(call.ctx, call.kernel->input_of_arg[index], &t, s.get());  // a second reference to the buffer
  return t;
}

void release_input(void* handle) { TF_DeleteTensor(static_cast<TF_Tensor*>(handle)); }

// One thread hashes, the others that want the same wait. A tensor of no bytes has no address to be known by.
uint64_t content(void* user, int32_t index, const void* data, int64_t bytes) {
  Call& call = *static_cast<Call*>(user);
  const std::lock_guard<std::mutex> lock(call.kernel->hashed_mutex);
  Kernel::Hashed& known = call.kernel->hashed[static_cast<size_t>(index)];
  if (known.buffer && bytes > 0 && TF_TensorData(known.buffer.get()) == data) return known.hash;
  const uint64_t hash = ral().content_hash(data, bytes);
  known.buffer.reset(static_cast<TF_Tensor*>(retain_input(user, index)));
  known.hash = hash;
  return hash;
}

bool read_inputs(Call* call, std::vector<disc_memref>* memrefs, std::vector<int64_t>* dims) {
  const size_t n = call->kernel->input_of_arg.size();
  call->inputs.resize(n);
  memrefs->resize(n);
  std::vector<size_t> at(n);
  for (size_t i = 0; i < n; ++i) {
    TF_Tensor* t = nullptr;
    TF_GetInput(call->ctx, call->kernel->input_of_arg[i], &t, call->status.get());
    if (!ok(call->status)) return false;
    call->inputs[i].reset(t);
    const int rank = TF_NumDims(t);
    (*memrefs)[i].data = TF_TensorData(t);
    (*memrefs)[i].rank = rank;
    at[i] = dims->size();
    for (int d = 0; d < rank; ++d) dims->push_back(TF_Dim(t, d));
  }
  for (size_t i = 0; i < n; ++i) (*memrefs)[i].dims = dims->data() + at[i];
  return true;
}

void compute(void* user, TF_OpKernelContext* ctx) {
  Call call;
  call.kernel = static_cast<const Kernel*>(user);
  call.ctx = ctx;
  std::vector<disc_memref> inputs;
  std::vector<int64_t> dims;
  if (!read_inputs(&call, &inputs, &dims)) {
    TF_OpKernelContext_Failure(ctx, call.status.get());
    return;
  }
  disc_run_options options{};
  options.struct_size = sizeof(options);
  options.user = &call;
  options.alloc_output = alloc_output;
  options.alias_output = alias_output;
  options.retain_input = retain_input;
  options.release_input = release_input;
  options.content = content;
  const int32_t code = ral().execute(call.kernel->exec, inputs.data(), &options);
  if (code == 0) return;
  if (ok(call.status)) {  // ours, not TensorFlow's
    std::string message = ral().last_error();
    if (const char* node = ral().last_error_node(); *node) message += std::string(" [[original node: ") + node + "]]";
    TF_SetStatus(call.status.get(), static_cast<TF_Code>(code), message.c_str());
  }
  TF_OpKernelContext_Failure(ctx, call.status.get());
}

// ------------------------------------------------------------------------------------------------------- registration

// List attributes cannot be read in a shape function of the C API: unknown here, `_output_shapes` keeps Python's static shapes.
void unknown_shapes(TF_ShapeInferenceContext* ctx, TF_Status* status) { TF_ShapeInferenceContextSetUnknownShape(ctx, status); }

// A second registration under the name (another copy of this library) would end the process.
bool already_registered(TF_Status* status) {
  using Kernels = TF_Buffer* (*)(const char*, TF_Status*);
  const auto kernels = reinterpret_cast<Kernels>(tensorflow_function("TF_GetRegisteredKernelsForOp"));
  if (!kernels) return false;
  TF_Buffer* list = kernels(kOpName, status);
  const bool any = list && list->length > 0;
  if (list) TF_DeleteBuffer(list);
  return any;
}

void register_op(TF_Status* status) {
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(kOpName);
  for (const char* attr : {"Tconst: list(type) >= 0", "Thost: list(type) >= 0", "Targs: list(type) >= 0", "Thostout: list(type) >= 0",
                           "Tout: list(type) >= 0", "executable: string", "original: func", "nodes: string = ''", "abi: int = 1"})
    TF_OpDefinitionBuilderAddAttr(op, attr);
  for (const char* input : {"constants: Tconst", "host_args: Thost", "args: Targs"}) TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : {"host_results: Thostout", "results: Tout"}) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, unknown_shapes);
  TF_RegisterOpDefinition(op, status);
}

void register_kernel(TF_Status* status) {
  TF_KernelBuilder* kernel = TF_NewKernelBuilder(kOpName, "CPU", create, compute, destroy);
  TF_KernelBuilder_HostMemory(kernel, "host_args");
  TF_KernelBuilder_HostMemory(kernel, "host_results");
  TF_RegisterKernelBuilder(kOpName, kernel, status);
}

__attribute__((constructor)) void register_disc_launch() {
  if (const char* missing = bind_tensorflow()) {
    std::fprintf(stderr, "disc_tf: DiscLaunch was not registered: no TensorFlow of 2.16 to 2.21 in this process (%s not found)\n", missing);
    return;
  }
  const StatusPtr s(TF_NewStatus());
  if (already_registered(s.get())) return;
  TF_SetStatus(s.get(), TF_OK, "");
  register_op(s.get());
  if (ok(s)) register_kernel(s.get());
  if (ok(s)) register_disc_weight(s.get());
  if (!ok(s)) std::fprintf(stderr, "disc_tf: DiscLaunch could not be registered: %s\n", TF_Message(s.get()));
}

}  // namespace
