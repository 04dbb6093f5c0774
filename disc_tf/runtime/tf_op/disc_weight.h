// Registers the op DiscWeight (see disc_weight.cc). TensorFlow's functions must be bound.
#pragma once

#include "tf_c_api.h"

void register_disc_weight(TF_Status* status);
