#include "identity.h"

#include <string>
#include <vector>

namespace disc {
namespace {

constexpr const char* kKinds[] = {"const", "host", "device"};
constexpr const char* kDtypes[] = {"", "f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"};

// Numbers are 8 bytes, texts and lists are preceded by their length.
class Encoder {
 public:
  explicit Encoder(const Crypto& crypto) : hash_(crypto) {}
  void raw(const void* data, size_t size) { hash_.add(data, size); }
  void number(int64_t v) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(v) >> (8 * i));
    raw(bytes, sizeof(bytes));
  }
  void size(size_t n) { number(static_cast<int64_t>(n)); }
  void text(const std::string& t) {
    size(t.size());
    raw(t.data(), t.size());
  }
  template <typename T, typename F>
  void list(const std::vector<T>& items, F item) {
    size(items.size());
    for (const T& x : items) item(x);
  }
  template <typename T>
  void numbers(const std::vector<T>& values) {
    list(values, [&](T v) { number(static_cast<int64_t>(v)); });
  }
  bool finish(Sha256Digest* out) { return hash_.finish(out); }

 private:
  Sha256 hash_;
};

}  // namespace

bool code_identity(const Artifact& a, const Crypto& crypto, Sha256Digest* out) {
  static constexpr char kDomain[] = "disc_tf.code_identity.v1";
  Encoder e(crypto);
  e.raw(kDomain, sizeof(kDomain));  // with its zero
  e.text(a.compiler_version);
  e.number(a.abi_version);
  e.list(a.args, [&](const TensorSpec& x) {
    e.text(kKinds[x.kind]);
    e.text(kDtypes[x.dtype]);
    e.numbers(x.dims);
  });
  e.list(a.results, [&](const TensorSpec& r) {
    e.text(kDtypes[r.dtype]);
    e.numbers(r.dims);
    e.number(r.kind == 1);
  });
  e.list(a.checks, [&](const CheckSpec& c) { e.number(c.code); });
  e.list(a.segments, [&](const SegmentSpec& s) {
    e.numbers(s.inputs);
    e.numbers(s.dependences);
    e.numbers(s.outputs);
  });
  e.list(a.prepared, [&](const PreparedSpec& p) {
    e.numbers(p.args);
    e.text(p.layout);
    e.text(p.code_hash);
    e.number(p.optional);
  });
  e.list(a.targets, [&](const TargetCode& t) {
    e.text(t.isa);
    e.list(t.features, [&](const std::string& f) { e.text(f); });
    e.size(t.image_size);
    e.raw(t.image, t.image_size);
  });
  return e.finish(out);
}

}  // namespace disc
