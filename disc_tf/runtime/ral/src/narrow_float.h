// f16 and bf16 to f32 and back, without the instructions that not every CPU has.
#pragma once

#include <cstdint>
#include <cstring>

namespace disc {

inline float bits_to_float(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3FF;
  uint32_t bits = 0;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24
    const float small = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &small, sizeof(bits));
  } else {
    bits = ((exponent == 31 ? 255 : exponent + 112) << 23) | (mantissa << 13);
  }
  return bits_to_float(bits | sign);
}

// To the nearest, ties to even. Integer arithmetic: the caller may flush denormals.
inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and more
  const uint32_t exponent = magnitude >> 23, mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  uint32_t shift = 13, base = 0;
  if (exponent < 113) {  // a denormal of f16
    if (exponent < 102) return sign;
    shift += 113 - exponent;
  } else {
    base = (exponent - 113) << 10;  // the implicit bit adds one
  }
  const uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  const uint32_t up = rest > half || (rest == half && (kept & 1));
  return static_cast<uint16_t>(sign | (base + kept + up));
}

inline float bfloat_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

}  // namespace disc
