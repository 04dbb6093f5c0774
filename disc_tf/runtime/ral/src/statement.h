// Reader of what a service signs: the message Statement of proto/disc_tf/v1/optimizer.proto in protobuf's wire format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace disc {

constexpr size_t kMaxStatement = 1 << 20;

struct Statement {
  std::vector<std::string> artifacts;  // code identities
  std::string request, compiler_version, key_id;
  std::vector<std::string> targets;
  bool has_not_after = false;
  double not_after = 0;  // seconds since 1970
};

// False unless it is well-formed: no field that must be there once is there twice, nothing is cut off. Unknown fields are skipped.
bool parse_statement(const std::string& bytes, Statement* out);

}  // namespace disc
