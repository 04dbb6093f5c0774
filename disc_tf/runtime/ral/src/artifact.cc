#include "artifact.h"

#include <cstring>
#include <set>

#include "disc_ral.h"
#include "disc_ral_abi.h"

namespace disc {
namespace {

constexpr size_t kHeaderSize = 64, kEntrySize = 32, kMaxSections = 256;
constexpr uint32_t kFormatVersion = 1, kFlagRequired = 1, kFlagBulk = 2;
constexpr size_t kConstantAlignment = 64;
constexpr int32_t kLastDtype = 13;

Status corrupt(const std::string& what) { return Status(kDataLoss, "artefact: " + what); }

// A cursor over bytes. After the first read out of bounds it stays failed and gives zeros, so that callers may check once
// a record; lists check their length against what is left before anything is allocated.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : p_(data), end_(data + size) {}
  bool failed() const { return failed_; }
  size_t left() const { return static_cast<size_t>(end_ - p_); }

  const uint8_t* take(size_t n) {
    if (failed_ || n > left()) {
      failed_ = true;
      return nullptr;
    }
    const uint8_t* at = p_;
    p_ += n;
    return at;
  }
  template <typename T>
  T number() {
    T v = 0;
    if (const uint8_t* at = take(sizeof(T))) std::memcpy(&v, at, sizeof(T));
    return v;
  }
  uint8_t u8() { return number<uint8_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  std::string text() {
    const uint32_t n = u32();
    const uint8_t* at = take(n);
    return at ? std::string(reinterpret_cast<const char*>(at), n) : std::string();
  }
  Reader record() {
    const uint32_t n = u32();
    const uint8_t* at = take(n);
    Reader r(at ? at : end_, at ? n : 0);
    r.failed_ = !at;
    return r;
  }
  template <typename F>
  void list(size_t least, F item) {
    const uint32_t n = u32();
    if (failed_ || n > left() / least) {
      failed_ = true;
      return;
    }
    for (uint32_t i = 0; i < n && !failed_; ++i) item();
  }
  // A list of records; a record that is too short fails the whole.
  template <typename F>
  void records(F item) {
    list(4, [&] {
      Reader r = record();
      if (!r.failed()) item(r);
      failed_ = failed_ || r.failed();
    });
  }
  std::vector<uint32_t> indices() {
    std::vector<uint32_t> v;
    list(4, [&] { v.push_back(u32()); });
    return v;
  }

 private:
  const uint8_t* p_;
  const uint8_t* end_;
  bool failed_ = false;
};

void read_dims(Reader& r, TensorSpec* t) {
  r.list(8, [&] { t->dims.push_back(r.number<int64_t>()); });
}

Status read_meta(Reader section, Artifact* a) {
  Reader m = section.record();
  a->compiler_version = m.text();
  a->abi_version = m.u32();
  a->name = m.text();
  m.records([&](Reader& r) {
    TensorSpec t;
    t.name = r.text();
    t.kind = r.u8();
    t.dtype = r.u8();
    read_dims(r, &t);
    const std::string digest = r.text();
    t.digest.assign(digest.begin(), digest.end());
    a->args.push_back(std::move(t));
  });
  m.records([&](Reader& r) {
    TensorSpec t;
    t.name = r.text();
    t.dtype = r.u8();
    t.kind = r.u8() ? 1 : 2;
    read_dims(r, &t);
    a->results.push_back(std::move(t));
  });
  m.records([&](Reader& r) {
    CheckSpec c;
    c.code = r.number<int32_t>();
    c.message = r.text();
    c.node = r.text();
    a->checks.push_back(std::move(c));
  });
  m.records([&](Reader& r) {
    SegmentSpec s;
    s.inputs = r.indices();
    s.dependences = r.indices();
    s.outputs = r.indices();
    a->segments.push_back(std::move(s));
  });
  m.records([&](Reader& r) {
    PreparedSpec p;
    p.args = r.indices();
    p.layout = r.text();
    p.code_hash = r.text();
    p.optional = r.u8() != 0;
    a->prepared.push_back(std::move(p));
  });
  return m.failed() ? corrupt("the META section is cut short") : Status();
}

Status read_code(const uint8_t* data, size_t size, Artifact* a) {
  Reader section(data, size);
  Reader head = section.record();
  TargetCode t;
  t.isa = head.text();
  head.list(4, [&] { t.features.push_back(head.text()); });
  const uint32_t n = section.u32();
  t.image = section.take(n);
  t.image_size = n;
  if (head.failed() || section.failed()) return corrupt("a CODE section is cut short");
  a->targets.push_back(std::move(t));
  return Status();
}

// The table of constants; their bytes lie in the artefact, 64-byte aligned. They are not read here: pages come from the file when
// they are used.
Status read_constants(const uint8_t* data, size_t size, const uint8_t* whole, size_t whole_size, Artifact* a) {
  Reader section(data, size);
  bool inside = true;
  section.records([&](Reader& r) {
    ConstantSpec c;
    c.arg = r.u32();
    const uint64_t offset = r.number<uint64_t>();
    c.size = r.number<uint64_t>();
    inside = inside && offset <= whole_size && c.size <= whole_size - offset && offset % kConstantAlignment == 0;
    c.data = inside ? whole + offset : nullptr;
    a->constants.push_back(c);
  });
  if (section.failed()) return corrupt("the table of constants is cut short");
  return inside ? Status() : corrupt("a constant lies outside");
}

Status read_signature(Reader section, Artifact* a) {
  Reader r = section.record();
  a->statement = r.text();
  a->signature = r.text();
  return r.failed() || a->statement.empty() || a->signature.empty() ? corrupt("the signature is cut short") : Status();
}

Status check_constants(const Artifact& a) {
  std::set<uint32_t> seen;
  for (const ConstantSpec& c : a.constants) {
    if (c.arg >= a.args.size() || !seen.insert(c.arg).second) return corrupt("a constant of argument " + std::to_string(c.arg) + " is out of place");
    const TensorSpec& t = a.args[c.arg];
    uint64_t want = static_cast<uint64_t>(dtype_size(t.dtype));
    for (int64_t d : t.dims)
      if (d < 0 || __builtin_mul_overflow(want, static_cast<uint64_t>(d), &want)) return corrupt("constant " + t.name + " has no fixed size");
    if (t.kind != 0 || t.digest.empty() || want != c.size) return corrupt("constant " + t.name + " does not fit its argument");
  }
  return Status();
}

Status check_indices(const std::string& what, const std::vector<uint32_t>& values, size_t limit) {
  std::set<uint32_t> seen;
  for (uint32_t v : values) {
    if (v >= limit) return corrupt(what + ": index " + std::to_string(v) + " is not below " + std::to_string(limit));
    if (!seen.insert(v).second) return corrupt(what + ": index " + std::to_string(v) + " occurs twice");
  }
  return Status();
}

Status check_tensor(const std::string& what, const TensorSpec& t) {
  if (dtype_size(t.dtype) == 0) return corrupt(what + ": unknown dtype code " + std::to_string(t.dtype));
  if (t.dims.size() > static_cast<size_t>(kMaxRank)) return corrupt(what + ": rank is too high");
  for (int64_t d : t.dims)
    if (d < -1) return corrupt(what + ": negative dim");
  if (t.kind < 0 || t.kind > 2) return corrupt(what + ": unknown kind " + std::to_string(t.kind));
  if (!t.digest.empty() && t.digest.size() != 32) return corrupt(what + ": digest is not 32 bytes");
  return Status();
}

#define DISC_RETURN_IF_ERROR(expr)       \
  do {                                   \
    Status status_ = (expr);             \
    if (!status_.ok()) return status_;   \
  } while (0)

Status check(const Artifact& a) {
  for (size_t i = 0; i < a.args.size(); ++i)
    DISC_RETURN_IF_ERROR(check_tensor("argument " + std::to_string(i) + " (" + a.args[i].name + ")", a.args[i]));
  for (size_t i = 0; i < a.results.size(); ++i)
    DISC_RETURN_IF_ERROR(check_tensor("result " + std::to_string(i) + " (" + a.results[i].name + ")", a.results[i]));
  for (const CheckSpec& c : a.checks)
    if (c.code < 1 || c.code > 16) return corrupt("check of " + c.node + ": unknown status code");
  if (a.segments.empty()) return corrupt("there is no segment");
  std::vector<uint32_t> sent;
  for (size_t i = 0; i < a.segments.size(); ++i) {
    const SegmentSpec& s = a.segments[i];
    const std::string what = "segment " + std::to_string(i);
    DISC_RETURN_IF_ERROR(check_indices(what + " inputs", s.inputs, a.args.size()));
    DISC_RETURN_IF_ERROR(check_indices(what + " dependences", s.dependences, i));
    sent.insert(sent.end(), s.outputs.begin(), s.outputs.end());
  }
  DISC_RETURN_IF_ERROR(check_indices("segment outputs", sent, a.results.size()));
  if (sent.size() != a.results.size()) return corrupt("a result is sent by no segment");
  for (size_t i = 0; i < a.prepared.size(); ++i) {
    const std::string what = "prepared entry " + std::to_string(i);
    DISC_RETURN_IF_ERROR(check_indices(what, a.prepared[i].args, a.args.size()));
    for (uint32_t j : a.prepared[i].args)
      if (a.args[j].kind != 0) return corrupt(what + ": argument " + a.args[j].name + " is not const");
  }
  if (a.targets.empty()) return corrupt("there is no code");
  return Status();
}

}  // namespace

int32_t dtype_size(int32_t dtype) {
  static constexpr int32_t kSizes[kLastDtype + 1] = {0, 2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return dtype < 1 || dtype > kLastDtype ? 0 : kSizes[dtype];
}

uint32_t crc32(const uint8_t* data, size_t size, uint32_t crc) {
  // Slicing by 8: an artefact of 4 MiB is checked in about 2 ms.
  using Tables = std::array<std::array<uint32_t, 256>, 8>;
  static const Tables& t = *[] {
    auto* tables = new Tables;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) ? 0xEDB88320u : 0);
      (*tables)[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (int k = 1; k < 8; ++k) (*tables)[k][i] = ((*tables)[k - 1][i] >> 8) ^ (*tables)[0][(*tables)[k - 1][i] & 255];
    return tables;
  }();
  crc = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint32_t a, b;
    std::memcpy(&a, data, 4);
    std::memcpy(&b, data + 4, 4);
    a ^= crc;
    crc = t[7][a & 255] ^ t[6][(a >> 8) & 255] ^ t[5][(a >> 16) & 255] ^ t[4][a >> 24] ^ t[3][b & 255] ^
          t[2][(b >> 8) & 255] ^ t[1][(b >> 16) & 255] ^ t[0][b >> 24];
  }
  for (; size > 0; ++data, --size) crc = t[0][(crc ^ *data) & 255] ^ (crc >> 8);
  return ~crc;
}

std::map<std::string, std::vector<std::string>> read_kernel_nodes(const uint8_t* data, size_t size) {
  std::map<std::string, std::vector<std::string>> found;
  if (!data) return found;
  Reader section(data, size);
  section.records([&](Reader& r) {
    const std::string kernel = r.text();
    std::vector<std::string> nodes;
    r.list(4, [&] { nodes.push_back(r.text()); });
    if (!r.failed()) found[kernel] = std::move(nodes);
  });
  return found;
}

std::string called(const Artifact& a, size_t arg) {
  const TensorSpec& spec = a.args[arg];
  if (spec.kind == DISC_KIND_CONST) return "constant " + spec.name;
  size_t position = 0, inputs = 0;
  for (size_t i = 0; i < a.args.size(); ++i) {
    if (a.args[i].kind == DISC_KIND_CONST) continue;
    ++inputs;
    if (i <= arg) ++position;
  }
  const std::string of = inputs > 1 ? " (" + std::to_string(position) + " of " + std::to_string(inputs) + ")" : "";
  return "input " + spec.name + of;
}

namespace {

// What was written by a version that this one does not know.
Status newer(const std::string& what, const std::string& made_by = "") {
  return Status(kUnimplemented, "artefact: a newer disc_tf" + (made_by.empty() ? "" : " (" + made_by + ")") + " made it: " + what +
                                    "; upgrade disc-tf here, or optimize the model again with this version");
}

}  // namespace

Status parse_artifact(const uint8_t* data, size_t size, Artifact* out) {
  *out = Artifact();
  if (size >= 8 && std::memcmp(data, "DISCTF\0", 7) == 0 && data[7] > 1)
    return newer("its layout is " + std::to_string(data[7]) + ", this library reads 1");
  if (size < kHeaderSize || std::memcmp(data, "DISCTF\0\1", 8) != 0)
    return Status(kInvalidArgument, "artefact: these bytes are not a disc_tf artefact (wrong magic number)");
  Reader h(data + 8, kHeaderSize - 8);
  const uint32_t version = h.u32();
  const uint32_t count = h.u32();
  const uint64_t total = h.number<uint64_t>();
  std::memcpy(out->digest.data(), h.take(32), 32);
  const uint32_t crc = h.u32();
  if (version > kFormatVersion)
    return newer("its format is " + std::to_string(version) + ", this library reads " + std::to_string(kFormatVersion));
  if (version != kFormatVersion) return corrupt("there is no format " + std::to_string(version));
  if (total != size) return corrupt("truncated or padded (" + std::to_string(size) + " of " + std::to_string(total) + " bytes)");
  if (count > kMaxSections || kHeaderSize + count * kEntrySize > size) return corrupt("the section table does not fit");
  std::vector<uint8_t> head(data, data + kHeaderSize + count * kEntrySize);
  std::memset(head.data() + kHeaderSize - 8, 0, 4);
  if (crc32(head.data(), head.size()) != crc) return corrupt("the header's checksum does not match");

  int metas = 0, signatures = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Reader e(data + kHeaderSize + i * kEntrySize, kEntrySize);
    const std::string tag(reinterpret_cast<const char*>(e.take(4)), 4);
    const uint32_t section_crc = e.u32();
    const uint64_t offset = e.number<uint64_t>(), length = e.number<uint64_t>();
    const uint32_t flags = e.u32();
    if (offset < head.size() || offset > size || length > size - offset) return corrupt("section " + tag + " lies outside");
    const bool known = tag == "META" || tag == "CODE" || tag == "CNST" || tag == "SIGN";
    if ((known || !(flags & kFlagBulk)) && crc32(data + offset, length) != section_crc) return corrupt("section " + tag + ": checksum does not match");
    if (tag == "META") {
      if (++metas > 1) return corrupt("more than one META section");
      DISC_RETURN_IF_ERROR(read_meta(Reader(data + offset, length), out));
    } else if (tag == "CODE") {
      DISC_RETURN_IF_ERROR(read_code(data + offset, length, out));
    } else if (tag == "CNST") {
      DISC_RETURN_IF_ERROR(read_constants(data + offset, length, data, size, out));
    } else if (tag == "SIGN") {
      if (++signatures > 1) return corrupt("more than one signature");
      DISC_RETURN_IF_ERROR(read_signature(Reader(data + offset, length), out));
    } else if (tag == "KMAP") {
      out->kernel_nodes = data + offset;
      out->kernel_nodes_size = length;
    } else if (flags & kFlagRequired) {
      return newer("its section " + tag + " is required, and not known to this library", out->compiler_version);
    }
  }
  if (metas != 1) return corrupt("the META section is missing");
  if (out->abi_version > DISC_ABI_VERSION)
    return newer("its runtime ABI is " + std::to_string(out->abi_version) + ", this library has " + std::to_string(DISC_ABI_VERSION),
                 out->compiler_version);
  if (out->abi_version == 0) return corrupt("there is no runtime ABI 0");
  DISC_RETURN_IF_ERROR(check(*out));
  return check_constants(*out);
}

}  // namespace disc
