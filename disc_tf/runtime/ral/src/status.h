// Status codes (TensorFlow's) and the value that carries a failure through the RAL.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace disc {

enum Code : int32_t {
  kOk = 0,
  kInvalidArgument = 3,
  kNotFound = 5,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kDataLoss = 15,
};

struct Status {
  int32_t code = kOk;
  std::string message;
  std::string node;

  Status() = default;
  Status(int32_t c, std::string m, std::string n = {}) : code(c), message(std::move(m)), node(std::move(n)) {}
  bool ok() const { return code == kOk; }
};

// The calling thread's latest failure; returns its code.
int32_t set_last_error(const Status& status);
const Status& last_error();

}  // namespace disc
