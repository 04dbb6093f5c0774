// What a signature says of an artefact: the C++ side of disc_tf/runtime/identity.py, equal in every bit.
#pragma once

#include "artifact.h"
#include "crypto.h"

namespace disc {

// SHA-256 over all that runs: not over names, messages and digests of constants, which a client fills in. False if libcrypto fails.
bool code_identity(const Artifact& artifact, const Crypto& crypto, Sha256Digest* out);

}  // namespace disc
