// Takes the address of every TensorFlow function that the op looks up by name. Bazel links from a static library only what is referenced:
// without this a ModelServer would lack some of them, and `DiscLaunch` would not be registered.
#include "tf_c_api.h"

#define DISC_TF_REFERENCE(result, name, parameters) extern "C" void name();
DISC_TF_FUNCTIONS(DISC_TF_REFERENCE)
#undef DISC_TF_REFERENCE

#define DISC_TF_ADDRESS(result, name, parameters) &::name,
__attribute__((used, visibility("default"))) void (*const disc_tf_references[])() = {DISC_TF_FUNCTIONS(DISC_TF_ADDRESS)};
#undef DISC_TF_ADDRESS
