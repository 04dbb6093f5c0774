#include "statement.h"

namespace disc {
namespace {

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

class Wire {
 public:
  Wire(const char* data, size_t size) : p_(data), end_(data + size) {}
  explicit Wire(const std::string& s) : Wire(s.data(), s.size()) {}
  bool done() const { return p_ == end_; }

  bool varint(uint64_t* out) {
    *out = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (p_ == end_) return false;
      const auto byte = static_cast<uint8_t>(*p_++);
      if (shift == 63 && byte > 1) return false;
      *out |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool bytes(std::string* out) {
    uint64_t n = 0;
    if (!varint(&n) || n > static_cast<size_t>(end_ - p_)) return false;
    out->assign(p_, static_cast<size_t>(n));
    p_ += n;
    return true;
  }
  bool tag(uint64_t* field, int* kind) {
    uint64_t v = 0;
    if (!varint(&v) || v > UINT32_MAX) return false;
    *field = v >> 3;
    *kind = static_cast<int>(v & 7);
    return *field != 0;
  }
  bool skip(int kind) {
    uint64_t ignored = 0;
    std::string text;
    switch (kind) {
      case kVarint: return varint(&ignored);
      case kBytes: return bytes(&text);
      case kFixed64: return jump(8);
      case kFixed32: return jump(4);
      default: return false;  // groups
    }
  }

 private:
  bool jump(size_t n) {
    if (n > static_cast<size_t>(end_ - p_)) return false;
    p_ += n;
    return true;
  }
  const char* p_;
  const char* end_;
};

// google.protobuf.Timestamp
bool parse_time(const std::string& bytes, double* out) {
  Wire w(bytes);
  uint64_t value[3] = {0, 0, 0};
  bool seen[3] = {false, false, false};
  while (!w.done()) {
    uint64_t field = 0;
    int kind = 0;
    if (!w.tag(&field, &kind)) return false;
    if (field > 2) {
      if (!w.skip(kind)) return false;
      continue;
    }
    if (kind != kVarint || seen[field] || !w.varint(&value[field])) return false;
    seen[field] = true;
  }
  if (value[2] > 999999999) return false;  // negative ones, too
  *out = static_cast<double>(static_cast<int64_t>(value[1])) + static_cast<double>(value[2]) / 1e9;
  return true;
}

}  // namespace

bool parse_statement(const std::string& bytes, Statement* out) {
  *out = Statement();
  if (bytes.size() > kMaxStatement) return false;
  Wire w(bytes);
  bool seen[7] = {};
  while (!w.done()) {
    uint64_t field = 0;
    int kind = 0;
    if (!w.tag(&field, &kind)) return false;
    if (field > 6) {
      if (!w.skip(kind)) return false;
      continue;
    }
    const bool repeated = field == 1 || field == 4;
    std::string value;
    if (kind != kBytes || (seen[field] && !repeated) || !w.bytes(&value)) return false;
    seen[field] = true;
    switch (field) {
      case 1: out->artifacts.push_back(std::move(value)); break;
      case 2: out->request = std::move(value); break;
      case 3: out->compiler_version = std::move(value); break;
      case 4: out->targets.push_back(std::move(value)); break;
      case 5:
        if (!parse_time(value, &out->not_after)) return false;
        out->has_not_after = true;
        break;
      default: out->key_id = std::move(value);
    }
  }
  return true;
}

}  // namespace disc
