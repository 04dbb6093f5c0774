// Reader of artefact bytes: the C++ side of disc_tf/runtime/artifact.py. Nothing is read out of bounds and nothing is
// trusted before its checksum and range were checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "status.h"

namespace disc {

constexpr int32_t kMaxRank = 64;

struct TensorSpec {
  std::string name;
  int32_t kind = 0;
  int32_t dtype = 0;
  std::vector<int64_t> dims;
  std::vector<uint8_t> digest;  // empty or 32 bytes
};

struct CheckSpec {
  int32_t code = 0;
  std::string message;
  std::string node;
};

struct SegmentSpec {
  std::vector<uint32_t> inputs, dependences, outputs;
};

struct PreparedSpec {
  std::vector<uint32_t> args;
  std::string layout;
  std::string code_hash;
  bool optional = false;
};

// Points into the bytes that were parsed.
struct TargetCode {
  std::string isa;
  std::vector<std::string> features;
  const uint8_t* image = nullptr;
  size_t image_size = 0;
};

// The value of a const argument inside the artefact: `size` bytes, row-major, at `data` (into the bytes that were parsed).
struct ConstantSpec {
  uint32_t arg = 0;
  const uint8_t* data = nullptr;
  uint64_t size = 0;
};

struct Artifact {
  std::array<uint8_t, 32> digest{};
  std::string compiler_version, name;
  uint32_t abi_version = 0;
  std::vector<TensorSpec> args, results;
  std::vector<CheckSpec> checks;
  std::vector<SegmentSpec> segments;
  std::vector<PreparedSpec> prepared;
  std::vector<TargetCode> targets;
  std::vector<ConstantSpec> constants;
  const uint8_t* kernel_nodes = nullptr;  // the section KMAP, for read_kernel_nodes; points into the bytes that were parsed
  size_t kernel_nodes_size = 0;
  std::string statement, signature;  // of a service, empty if there is none; checked by trust.h, where a policy is set
};

// Bytes of one element, 0 for a code that is not a dtype.
int32_t dtype_size(int32_t dtype);

// Kernel -> the original nodes that it computes, as far as the section is well-formed.
std::map<std::string, std::vector<std::string>> read_kernel_nodes(const uint8_t* data, size_t size);

// An argument as messages name it: constants by their names, inputs also by their place among those that are given.
std::string called(const Artifact& a, size_t arg);

Status parse_artifact(const uint8_t* data, size_t size, Artifact* out);

uint32_t crc32(const uint8_t* data, size_t size, uint32_t crc = 0);

}  // namespace disc
