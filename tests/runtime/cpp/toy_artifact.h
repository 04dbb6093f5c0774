// The toy executable (toy.cc) as artefact bytes. A writer of the format of its own: that it and Python's agree with the RAL's reader
// is part of the test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "artifact.h"
#include "disc_ral.h"

namespace disc_test {

using Bytes = std::string;

template <typename T>
Bytes number(T v) {
  return Bytes(reinterpret_cast<const char*>(&v), sizeof(T));
}
inline Bytes blob(const Bytes& b) { return number<uint32_t>(static_cast<uint32_t>(b.size())) + b; }
inline Bytes list(const std::vector<Bytes>& items) {
  Bytes out = number<uint32_t>(static_cast<uint32_t>(items.size()));
  for (const Bytes& i : items) out += i;
  return out;
}
inline Bytes indices(const std::vector<uint32_t>& v) {
  std::vector<Bytes> items;
  for (uint32_t i : v) items.push_back(number(i));
  return list(items);
}
inline Bytes dims(const std::vector<int64_t>& v) {
  std::vector<Bytes> items;
  for (int64_t i : v) items.push_back(number(i));
  return list(items);
}
inline Bytes arg(const Bytes& name, uint8_t kind, uint8_t dtype, const std::vector<int64_t>& d, const Bytes& digest = {}) {
  return blob(blob(name) + number(kind) + number(dtype) + dims(d) + blob(digest));
}
inline Bytes result(const Bytes& name, uint8_t dtype, uint8_t host, const std::vector<int64_t>& d) {
  return blob(blob(name) + number(dtype) + number(host) + dims(d));
}
inline Bytes check(int32_t code, const Bytes& message, const Bytes& node) { return blob(number(code) + blob(message) + blob(node)); }

inline Bytes toy_image() {
  std::ifstream in(TOY_IMAGE, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

// Sets the checksums of header and sections; `count` sections.
inline void seal(Bytes* data) {
  auto* p = reinterpret_cast<uint8_t*>(data->data());
  uint32_t count = 0;
  std::memcpy(&count, p + 12, 4);
  count = static_cast<uint32_t>(std::min<size_t>(count, (data->size() - 64) / 32));
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t offset = 0, size = 0;
    std::memcpy(&offset, p + 64 + 32 * i + 8, 8);
    std::memcpy(&size, p + 64 + 32 * i + 16, 8);
    if (offset > data->size() || size > data->size() - offset) continue;
    const uint32_t crc = disc::crc32(p + offset, size);
    std::memcpy(p + 64 + 32 * i + 4, &crc, 4);
  }
  std::memset(p + 56, 0, 4);
  const uint32_t crc = disc::crc32(p, 64 + 32 * count);
  std::memcpy(p + 56, &crc, 4);
}

inline Bytes pack(const std::vector<std::pair<Bytes, Bytes>>& sections, const Bytes& identity) {
  Bytes table, body;
  const size_t start = 64 + 32 * sections.size();
  for (const auto& [tag, payload] : sections) {
    table += tag + number<uint32_t>(0) + number<uint64_t>(start + body.size()) + number<uint64_t>(payload.size()) +
             number<uint64_t>(tag == "DATA" ? 2 : 1);
    body += payload;
  }
  Bytes digest = identity;
  digest.resize(32);
  Bytes data = Bytes("DISCTF\0\1", 8) + number<uint32_t>(1) + number<uint32_t>(static_cast<uint32_t>(sections.size())) +
               number<uint64_t>(start + body.size()) + digest + number<uint64_t>(0) + table + body;
  seal(&data);
  return data;
}

// `identity` stands for the digest of the contents: equal ones share an image. A 32-byte `w_digest` makes w's content known.
inline Bytes toy_meta(const Bytes& w_digest, int64_t w_size = -1) {
  return blob(
      blob("test") + number<uint32_t>(1) + blob("toy") +
      list({arg("w", 0, 3, {w_size}, w_digest), arg("x", 2, 3, {-1, -1}), arg("n", 1, 8, {})}) +
      list({result("y", 3, 0, {-1, -1}), result("flat", 3, 0, {-1}), result("filled", 3, 1, {-1})}) +
      list({check(3, "w and x do not fit", "scale/Mul"), check(11, "666 is not allowed", "scale/Assert"),
            check(3, "777 is not allowed", "scale/Assert_1"), check(3, "n must not be negative", "fill/Fill")}) +
      list({blob(indices({0, 1}) + indices({}) + indices({0, 1})), blob(indices({2}) + indices({0}) + indices({2}))}) +
      list({blob(indices({0}) + blob("double") + blob("") + number<uint8_t>(0))}));
}
inline Bytes toy_code(const Bytes& image) { return blob(blob("x86-64-v2") + list({blob("sse4_2")})) + blob(image); }
inline Bytes toy_artifact(const Bytes& identity, const Bytes& w_digest = {}, const Bytes& image = toy_image()) {
  return pack({{"META", toy_meta(w_digest)}, {"CODE", toy_code(image)}}, identity);
}

// A stand-alone file of the toy: it has w.
inline Bytes toy_file(const Bytes& identity, const std::vector<float>& w, uint64_t shift = 0) {
  const Bytes meta = toy_meta(Bytes(32, 'w'), static_cast<int64_t>(w.size())), code = toy_code(toy_image());
  const uint64_t size = 4 * w.size(), start = 64 + 32 * 4 + meta.size() + code.size() + 28;
  const uint64_t offset = (start + 63) / 64 * 64;
  const Bytes table = list({blob(number<uint32_t>(0) + number<uint64_t>(offset + shift) + number<uint64_t>(size))});
  const Bytes data = Bytes(offset - start, '\0') + Bytes(reinterpret_cast<const char*>(w.data()), size);
  return pack({{"META", meta}, {"CODE", code}, {"CNST", table}, {"DATA", data}}, identity);
}

// A run of the toy with results in vectors.
struct ToyRun {
  std::vector<float> w, x;
  int64_t rows = 0, columns = 0, n = 0, w_size = 0;
  std::vector<float> results[3];
  int max_threads = 0;
  bool retain = true;

  ToyRun(int64_t r, int64_t c, int64_t count, float base = 1.0f) : w(static_cast<size_t>(c)), x(static_cast<size_t>(r * c)), rows(r), columns(c), n(count), w_size(c) {
    for (size_t i = 0; i < w.size(); ++i) w[i] = base + static_cast<float>(i % 13);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 601) - 300.0f;
  }

  int32_t execute(disc_exec* exec) {
    const int64_t x_dims[] = {rows, columns};
    const disc_memref inputs[] = {{w.data(), 1, &w_size}, {x.data(), 2, x_dims}, {&n, 0, nullptr}};
    disc_run_options o{};
    o.struct_size = sizeof(o);
    o.user = this;
    o.max_threads = max_threads;
    o.alloc_output = [](void* user, int32_t i, int32_t, const int64_t*, int64_t bytes) -> void* {
      auto& v = static_cast<ToyRun*>(user)->results[i];
      v.assign(static_cast<size_t>(bytes) / 4, -1.0f);
      return v.data();
    };
    if (retain) {
      o.retain_input = [](void* user, int32_t) -> void* { return new std::vector<float>(static_cast<ToyRun*>(user)->w); };
      o.release_input = [](void* handle) { delete static_cast<std::vector<float>*>(handle); };
    }
    return disc_execute(exec, inputs, &o);
  }

  bool right() const {
    if (results[0].size() != x.size() || results[1] != x || results[2].size() != static_cast<size_t>(n)) return false;
    for (size_t i = 0; i < x.size(); ++i)
      if (results[0][i] != x[i] * (2.0f * w[i % static_cast<size_t>(columns)])) return false;
    return true;
  }
};

}  // namespace disc_test
