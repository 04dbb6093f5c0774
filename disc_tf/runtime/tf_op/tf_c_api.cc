#include "tf_c_api.h"

#include <dlfcn.h>

namespace disc_tf_functions {
#define DISC_TF_DEFINE(result, name, parameters) result(*name) parameters = nullptr;
DISC_TF_FUNCTIONS(DISC_TF_DEFINE)
#undef DISC_TF_DEFINE
}  // namespace disc_tf_functions

void* tensorflow_function(const char* name) {
  // The library of the C API in every wheel and C++ package since 2.0. It is in the process already; it is never loaded from here.
  static void* const library = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  void* found = library ? dlsym(library, name) : nullptr;
  return found ? found : dlsym(RTLD_DEFAULT, name);  // a program with TensorFlow linked into it
}

const char* bind_tensorflow() {
#define DISC_TF_BIND(result, name, parameters) \
  if (!(name = reinterpret_cast<result(*) parameters>(tensorflow_function(#name)))) return #name;
  DISC_TF_FUNCTIONS(DISC_TF_BIND)
#undef DISC_TF_BIND
  return nullptr;
}
