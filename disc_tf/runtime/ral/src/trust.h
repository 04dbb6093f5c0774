// The trust policy of the process: with a file of keys in force (settings.h), code is loaded only if one of them signed it.
//
// The file is the one that clients use (docs/service.md, signing): what `python -m disc_tf_server.signing trust` prints, read line by line.
// It is TOML, of which only that form is taken; whatever else TOML may say is refused, never guessed. It is read for each load, so that a new key or
// a revocation needs no restart.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "artifact.h"
#include "crypto.h"
#include "status.h"

namespace disc {

struct TrustedKey {
  std::string id;
  std::array<uint8_t, 32> key{};
  std::optional<double> not_before, not_after;  // seconds since 1970
  bool revoked = false;
};

// FAILED_PRECONDITION with file, line and what is wanted there.
Status parse_trust_file(const std::string& text, const std::string& path, std::vector<TrustedKey>* out);
Status read_trust_file(const std::string& path, std::vector<TrustedKey>* out);

// Whether a policy of this file can be in force: the file can be read and libcrypto is there.
Status check_policy(const std::string& path);

// OK if a key of the file signed this code for now; else PERMISSION_DENIED, or FAILED_PRECONDITION where nothing can be checked. Both count.
// identity: of what was checked.
Status check_trust(const Artifact& artifact, const std::string& path, Sha256Digest* identity);
Status check_signature(const Artifact& artifact, const std::vector<TrustedKey>& keys, const std::string& path, double now, Sha256Digest* identity);

int64_t signatures_accepted();
int64_t signatures_refused();

}  // namespace disc
