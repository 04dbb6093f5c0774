#include "crypto.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

namespace disc {
namespace {

constexpr int kEd25519 = 1087;  // EVP_PKEY_ED25519
// Local: its names must not become anybody else's. Deep: TensorFlow exports BoringSSL's functions under the same names, and in a program that is
// linked with TensorFlow libcrypto would call those instead of its own, and crash.
#if defined(RTLD_DEEPBIND) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr int kHow = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#else
constexpr int kHow = RTLD_NOW | RTLD_LOCAL;  // sanitizers refuse it
#endif
constexpr const char* kLibraries[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

// RFC 8032, section 7.1, test 3.
constexpr uint8_t kKey[32] = {0xfc, 0x51, 0xcd, 0x8e, 0x62, 0x18, 0xa1, 0xa3, 0x8d, 0xa4, 0x7e, 0xd0, 0x02, 0x30, 0xf0, 0x58,
                              0x08, 0x16, 0xed, 0x13, 0xba, 0x33, 0x03, 0xac, 0x5d, 0xeb, 0x91, 0x15, 0x48, 0x90, 0x80, 0x25};
constexpr uint8_t kSignature[64] = {0x62, 0x91, 0xd6, 0x57, 0xde, 0xec, 0x24, 0x02, 0x48, 0x27, 0xe6, 0x9c, 0x3a, 0xbe, 0x01, 0xa3,
                                    0x0c, 0xe5, 0x48, 0xa2, 0x84, 0x74, 0x3a, 0x44, 0x5e, 0x36, 0x80, 0xd7, 0xdb, 0x5a, 0xc3, 0xac,
                                    0x18, 0xff, 0x9b, 0x53, 0x8d, 0x16, 0xf2, 0x90, 0xae, 0x67, 0xf7, 0x60, 0x98, 0x4d, 0xc6, 0x59,
                                    0x4a, 0x7c, 0x15, 0xe9, 0x71, 0x6e, 0xd2, 0x8d, 0xc0, 0x27, 0xbe, 0xce, 0xea, 0x1e, 0xc4, 0x0a};
constexpr uint8_t kMessage[2] = {0xaf, 0x82};
// SHA-256 of "abc".
constexpr Sha256Digest kAbc = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                               0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};

template <typename F>
bool find(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

bool bind(void* library, Crypto* c) {
  return find(library, "EVP_MD_CTX_new", &c->digest_new) && find(library, "EVP_MD_CTX_free", &c->digest_free) &&
         find(library, "EVP_sha256", &c->sha256) && find(library, "EVP_DigestInit_ex", &c->digest_init) &&
         find(library, "EVP_DigestUpdate", &c->digest_update) && find(library, "EVP_DigestFinal_ex", &c->digest_final) &&
         find(library, "EVP_PKEY_new_raw_public_key", &c->public_key) && find(library, "EVP_PKEY_free", &c->key_free) &&
         find(library, "EVP_DigestVerifyInit", &c->verify_init) && find(library, "EVP_DigestVerify", &c->verify_once) &&
         find(library, "ERR_clear_error", &c->clear_errors);
}

// A library that always says yes, never, or is another one's symbols under these names must not decide what code runs.
bool knows_answers(const Crypto& c) {
  Sha256 hash(c);
  hash.add("ab", 2);
  hash.add("c", 1);
  Sha256Digest digest{};
  if (!hash.finish(&digest) || digest != kAbc) return false;
  uint8_t wrong[sizeof(kSignature)];
  std::copy(std::begin(kSignature), std::end(kSignature), wrong);
  wrong[40] ^= 4;
  return c.verify(kKey, kSignature, kMessage, sizeof(kMessage)) && !c.verify(kKey, wrong, kMessage, sizeof(kMessage)) &&
         !c.verify(kKey, kSignature, kMessage, 1);
}

struct Found {
  Crypto crypto{};
  Status status;
};

Found* load() {
  auto* found = new Found;
  std::string tried;
  for (const char* name : kLibraries) {
    if (!tried.empty()) tried += "; ";
    void* library = dlopen(name, kHow);  // never closed
    if (!library) {
      const char* why = dlerror();
      tried += why ? why : name;
    } else if (!bind(library, &found->crypto)) {
      tried += std::string(name) + " lacks functions of OpenSSL 1.1.1";
    } else if (!knows_answers(found->crypto)) {
      tried += std::string(name) + " does not verify Ed25519 (is it in FIPS mode?)";
    } else {
      return found;
    }
  }
  found->status = Status(kFailedPrecondition,
                         "a trust policy needs OpenSSL's libcrypto.so.3 or libcrypto.so.1.1 (Debian, Ubuntu: libssl3; RHEL: openssl-libs): " + tried);
  return found;
}

}  // namespace

Status find_crypto(const Crypto** out) {
  static const Found* found = load();
  *out = &found->crypto;
  return found->status;
}

bool Crypto::verify(const uint8_t* key, const uint8_t* signature, const void* data, size_t size) const {
  void* parsed = public_key(kEd25519, nullptr, key, 32);
  void* context = parsed ? digest_new() : nullptr;
  const bool good = context && verify_init(context, nullptr, nullptr, nullptr, parsed) == 1 &&
                    verify_once(context, signature, 64, static_cast<const unsigned char*>(data), size) == 1;
  if (context) digest_free(context);
  if (parsed) key_free(parsed);
  if (!good) clear_errors();  // the thread's queue of errors is the host's
  return good;
}

Sha256::Sha256(const Crypto& crypto)
    : crypto_(crypto), context_(crypto.digest_new()), good_(context_ && crypto.digest_init(context_, crypto.sha256(), nullptr) == 1) {}

Sha256::~Sha256() {
  if (context_) crypto_.digest_free(context_);
  if (!good_) crypto_.clear_errors();
}

void Sha256::add(const void* data, size_t size) { good_ = good_ && (size == 0 || crypto_.digest_update(context_, data, size) == 1); }

bool Sha256::finish(Sha256Digest* out) {
  unsigned int size = 0;
  good_ = good_ && crypto_.digest_final(context_, out->data(), &size) == 1 && size == out->size();
  return good_;
}

}  // namespace disc
