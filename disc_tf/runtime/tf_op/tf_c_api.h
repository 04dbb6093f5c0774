// The part of TensorFlow's C API that DiscLaunch uses, declared here so that building needs no TensorFlow.
//
// From tensorflow/c/{kernels,ops,tf_tensor,tf_status,tf_datatype,c_api}.h (Apache-2.0), unchanged from 2.16 to 2.21; what is newer than
// 2.16 must not be listed here. Each function is a pointer of its name that `bind_tensorflow` sets when the library is loaded: left to the
// dynamic linker, the symbols would be found only where TensorFlow's libraries are in the global scope, and Python's of 2.16 to 2.20 are not.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_Tensor TF_Tensor;
typedef struct TSL_Status TF_Status;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef enum TF_Code {
  TF_OK = 0,
  TF_INVALID_ARGUMENT = 3,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_INTERNAL = 13,
} TF_Code;
typedef enum TF_DataType {
  TF_FLOAT = 1, TF_DOUBLE = 2, TF_INT32 = 3, TF_UINT8 = 4, TF_INT16 = 5, TF_INT8 = 6, TF_INT64 = 9, TF_BOOL = 10,
  TF_QINT8 = 11, TF_QUINT8 = 12, TF_QINT32 = 13, TF_BFLOAT16 = 14, TF_QINT16 = 15, TF_QUINT16 = 16, TF_UINT16 = 17, TF_HALF = 19,
  TF_UINT32 = 22, TF_UINT64 = 23,
} TF_DataType;
typedef struct TF_StringView {
  const char* data;
  size_t len;
} TF_StringView;
typedef struct TF_Buffer {
  const void* data;
  size_t length;
  void (*data_deallocator)(void* data, size_t length);
} TF_Buffer;

// X(result, name, (parameters))
#define DISC_TF_FUNCTIONS(X)                                                                                                              \
  X(TF_Status*, TF_NewStatus, ())                                                                                                         \
  X(void, TF_DeleteStatus, (TF_Status*))                                                                                                  \
  X(void, TF_SetStatus, (TF_Status*, TF_Code, const char* message))                                                                       \
  X(TF_Code, TF_GetCode, (const TF_Status*))                                                                                              \
  X(const char*, TF_Message, (const TF_Status*))                                                                                          \
  X(void, TF_DeleteBuffer, (TF_Buffer*))                                                                                                  \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char* op_name))                                                            \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                                                 \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char* spec))                                                     \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char* spec))                                                    \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char* spec))                                                   \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))    \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                                               \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                                           \
  X(TF_KernelBuilder*, TF_NewKernelBuilder, (const char* op_name, const char* device_name, void* (*create)(TF_OpKernelConstruction*),     \
    void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)))                                                                 \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char* arg_name))                                                         \
  X(void, TF_RegisterKernelBuilder, (const char* kernel_name, TF_KernelBuilder*, TF_Status*))                                             \
  X(void, TF_OpKernelConstruction_GetAttrSize, (TF_OpKernelConstruction*, const char* attr, int32_t* list_size, int32_t* total_size,      \
    TF_Status*))                                                                                                                          \
  X(void, TF_OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char* attr, char* value, size_t max_length,             \
    TF_Status*))                                                                                                                          \
  X(void, TF_OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char* attr, int64_t* value, TF_Status*))                 \
  X(void, TF_OpKernelConstruction_GetAttrTypeList, (TF_OpKernelConstruction*, const char* attr, TF_DataType* values, int max,             \
    TF_Status*))                                                                                                                          \
  X(void, TF_OpKernelConstruction_GetAttrType, (TF_OpKernelConstruction*, const char* attr, TF_DataType*, TF_Status*))                    \
  X(void, TF_OpKernelConstruction_GetAttrInt64List, (TF_OpKernelConstruction*, const char* attr, int64_t* values, int max, TF_Status*))   \
  X(TF_StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                                                           \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                                        \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                                                  \
  X(void, TF_GetInput, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))                                                         \
  X(void, TF_SetOutput, (TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*))                                                   \
  X(TF_Tensor*, TF_AllocateOutput, (TF_OpKernelContext*, int index, TF_DataType, const int64_t* dims, int num_dims, size_t bytes,         \
    TF_Status*))                                                                                                                          \
  X(TF_Tensor*, TF_AllocateTensor, (TF_DataType, const int64_t* dims, int num_dims, size_t bytes))                                        \
  X(TF_Tensor*, TF_NewTensor, (TF_DataType, const int64_t* dims, int num_dims, void* data, size_t bytes,                                  \
    void (*release)(void* data, size_t bytes, void* arg), void* arg))                                                                     \
  X(size_t, TF_DataTypeSize, (TF_DataType))                                                                                               \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                                                                  \
  X(int, TF_NumDims, (const TF_Tensor*))                                                                                                  \
  X(int64_t, TF_Dim, (const TF_Tensor*, int dim))                                                                                         \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                                                             \
  X(size_t, TF_TensorByteSize, (const TF_Tensor*))                                                                                        \
  X(void, TF_TensorBitcastFrom, (const TF_Tensor* from, TF_DataType, TF_Tensor* to, const int64_t* dims, int num_dims, TF_Status*))

// In a namespace: a variable of the global one has the symbol of TensorFlow's function, which a program with both linked into it would call.
namespace disc_tf_functions {
#define DISC_TF_DECLARE(result, name, parameters) extern result(*name) parameters;
DISC_TF_FUNCTIONS(DISC_TF_DECLARE)
#undef DISC_TF_DECLARE
}  // namespace disc_tf_functions
using namespace disc_tf_functions;

// Sets all of the above; null, or the name of a function that this process's TensorFlow does not have.
const char* bind_tensorflow();

// A function of the TensorFlow of this process by name, null if it has none.
void* tensorflow_function(const char* name);
