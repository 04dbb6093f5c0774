// The floating-point mode of kernels, as TensorFlow's: denormals flushed (FTZ, DAZ), round to nearest, no traps.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace disc {

constexpr uint32_t kKernelMxcsr = 0x9FC0;  // FTZ | all exceptions masked | DAZ, rounding bits 0

inline void set_kernel_float_mode() { _mm_setcsr(kKernelMxcsr); }

// Sets the mode for a scope on the calling thread and puts back what was there.
class FloatMode {
 public:
  FloatMode() : saved_(_mm_getcsr()) { set_kernel_float_mode(); }
  ~FloatMode() { _mm_setcsr(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint32_t saved_;
};

}  // namespace disc
