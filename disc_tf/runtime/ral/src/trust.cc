#include "trust.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "file.h"
#include "identity.h"
#include "statement.h"

namespace disc {
namespace {

constexpr double kClockSkew = 300;  // seconds that the clocks of two machines may differ, as in disc_tf/remote/trust.py
constexpr size_t kMaxFile = 1 << 20;

std::atomic<int64_t> g_accepted{0}, g_refused{0};

// Text of others in a message of ours.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, 64)) out += c >= 0x20 && c < 0x7f && c != '\'' ? c : '?';
  return out + "'";
}

Status denied(const std::string& why) { return Status(kPermissionDenied, why); }

Status read_all(const std::string& path, std::string* out) {
  const auto wrong = [&](const std::string& why) { return Status(kFailedPrecondition, "trust file " + path + ": " + why); };
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return wrong(std::strerror(errno));
  struct stat st{};
  if (fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) return wrong("not a regular file");
  if (st.st_mode & S_IWOTH) return wrong("everybody may write into it: chmod o-w " + path);
  for (;;) {
    char piece[4096];
    const ssize_t n = ::read(fd.get(), piece, sizeof(piece));
    if (n == 0) return Status();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return wrong(std::strerror(errno));
    if (out->size() + static_cast<size_t>(n) > kMaxFile) return wrong("too long for a file of keys");
    out->append(piece, static_cast<size_t>(n));
  }
}

Status no_signature(const std::string& path) {
  return denied("the code is not signed, but the trust file " + path +
                " is in force: have a service that signs compile it (disc-tf optimize --remote), or take the code out (disc-tf restore)");
}

}  // namespace

Status read_trust_file(const std::string& path, std::vector<TrustedKey>* out) {
  std::string text;
  if (Status s = read_all(path, &text); !s.ok()) return s;
  return parse_trust_file(text, path, out);
}

Status check_policy(const std::string& path) {
  std::vector<TrustedKey> keys;
  if (Status s = read_trust_file(path, &keys); !s.ok()) return s;
  const Crypto* crypto = nullptr;
  return find_crypto(&crypto);
}

Status check_signature(const Artifact& a, const std::vector<TrustedKey>& keys, const std::string& path, double now, Sha256Digest* identity) {
  const Crypto* crypto = nullptr;
  if (Status s = find_crypto(&crypto); !s.ok()) return s;
  if (a.statement.empty() || a.signature.empty()) return no_signature(path);
  Statement said;
  if (!parse_statement(a.statement, &said)) return denied("the statement of its signature cannot be read: it was damaged, or made by something else");
  const auto key = std::find_if(keys.begin(), keys.end(), [&](const TrustedKey& k) { return k.id == said.key_id; });
  if (key == keys.end())
    return denied("signed with key " + quoted(said.key_id) + ", which is not in the trust file " + path + ": get a newer trust file, or compile again");
  const std::string name = quoted(key->id);
  if (key->revoked) return denied("signed with key " + name + ", which the trust file " + path + " says is revoked: compile again");
  if (key->not_before && now < *key->not_before - kClockSkew) return denied("key " + name + " is not valid yet (is this machine's clock right?)");
  if (key->not_after && now > *key->not_after + kClockSkew) return denied("key " + name + " has expired: get a newer trust file, and compile again");
  const auto* signature = reinterpret_cast<const uint8_t*>(a.signature.data());
  if (a.signature.size() != 64 || !crypto->verify(key->key.data(), signature, a.statement.data(), a.statement.size()))
    return denied("the signature of key " + name + " is wrong: it was changed, or made by somebody else");
  // from here on the statement is the service's
  if (!said.has_not_after || now > said.not_after + kClockSkew)
    return denied("the signature of key " + name + " has expired: compile again, or look at this machine's clock");
  if (!code_identity(a, *crypto, identity)) return Status(kInternal, "libcrypto could not make a SHA-256 digest");
  const std::string mine(identity->begin(), identity->end());
  if (std::find(said.artifacts.begin(), said.artifacts.end(), mine) == said.artifacts.end())
    return denied("the signature of key " + name + " is for other code: this code was changed after it was signed");
  if (said.compiler_version != a.compiler_version)
    return denied("the signature of key " + name + " is for compiler " + quoted(said.compiler_version) + ", not " + quoted(a.compiler_version));
  for (const TargetCode& t : a.targets)
    if (std::find(said.targets.begin(), said.targets.end(), t.isa) == said.targets.end())
      return denied("the signature of key " + name + " is for other instruction sets than " + quoted(t.isa));
  return Status();
}

Status check_trust(const Artifact& a, const std::string& path, Sha256Digest* identity) {
  std::vector<TrustedKey> keys;
  Status status = read_trust_file(path, &keys);
  if (status.ok()) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    status = check_signature(a, keys, path, now, identity);
  }
  (status.ok() ? g_accepted : g_refused).fetch_add(1, std::memory_order_relaxed);
  return status;
}

int64_t signatures_accepted() { return g_accepted.load(std::memory_order_relaxed); }
int64_t signatures_refused() { return g_refused.load(std::memory_order_relaxed); }

}  // namespace disc
