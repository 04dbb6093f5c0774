// SHA-256 and Ed25519 of the system's libcrypto (OpenSSL 1.1.1 or 3), loaded when a trust policy first needs them: a process without a
// policy never looks for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "status.h"

namespace disc {

using Sha256Digest = std::array<uint8_t, 32>;

// The functions of libcrypto, by its own declarations.
struct Crypto {
  void* (*digest_new)();
  void (*digest_free)(void*);
  const void* (*sha256)();
  int (*digest_init)(void*, const void* kind, void* engine);
  int (*digest_update)(void*, const void* data, size_t size);
  int (*digest_final)(void*, unsigned char* out, unsigned int* size);
  void* (*public_key)(int type, void* engine, const unsigned char* key, size_t size);
  void (*key_free)(void*);
  int (*verify_init)(void*, void** context, const void* kind, void* engine, void* key);
  int (*verify_once)(void*, const unsigned char* signature, size_t signature_size, const unsigned char* data, size_t size);
  void (*clear_errors)();

  // True only for a valid signature (64 bytes) of `key` (32 bytes).
  bool verify(const uint8_t* key, const uint8_t* signature, const void* data, size_t size) const;
};

// Loads it once; a failure says what to install. It has passed known answers when it is given.
Status find_crypto(const Crypto** out);

// A digest in pieces. After a failure of libcrypto `finish` is false.
class Sha256 {
 public:
  explicit Sha256(const Crypto& crypto);
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, size_t size);
  bool finish(Sha256Digest* out);

 private:
  const Crypto& crypto_;
  void* context_;
  bool good_;
};

}  // namespace disc
