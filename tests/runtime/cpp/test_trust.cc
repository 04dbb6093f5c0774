// The trust policy: what is loaded under it, what is refused, and that no bytes of others can do harm.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "crypto.h"
#include "identity.h"
#include "settings.h"
#include "statement.h"
#include "test_main.h"
#include "toy_artifact.h"
#include "trust.h"

using disc_test::Bytes;

namespace {

constexpr double kDay = 86400, kNow = 1800000000;  // 2027-01-15T08:00:00Z

const disc::Crypto& crypto() {
  const disc::Crypto* c = nullptr;
  if (const disc::Status s = disc::find_crypto(&c); !s.ok()) disc_test::fail(__FILE__, __LINE__, s.message);
  return *c;
}

// A key pair of libcrypto, to sign with.
struct Key {
  std::string id;
  std::array<uint8_t, 32> key{};

  explicit Key(const std::string& name) : id(name) {
    std::array<unsigned char, 32> secret{};
    for (size_t i = 0; i < 32; ++i) secret[i] = static_cast<unsigned char>(i * 7 + static_cast<unsigned char>(name.back()));
    pair_ = function<void* (*)(int, void*, const unsigned char*, size_t)>("EVP_PKEY_new_raw_private_key")(1087, nullptr, secret.data(), 32);
    size_t size = 32;
    function<int (*)(void*, unsigned char*, size_t*)>("EVP_PKEY_get_raw_public_key")(pair_, key.data(), &size);
  }
  ~Key() { function<void (*)(void*)>("EVP_PKEY_free")(pair_); }
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;

  Bytes sign(const Bytes& data) const {
    void* context = crypto().digest_new();
    Bytes out(64, '\0');
    size_t size = out.size();
    const int good = function<int (*)(void*, void**, const void*, void*, void*)>("EVP_DigestSignInit")(context, nullptr, nullptr, nullptr, pair_);
    function<int (*)(void*, unsigned char*, size_t*, const unsigned char*, size_t)>("EVP_DigestSign")(
        context, reinterpret_cast<unsigned char*>(out.data()), &size, reinterpret_cast<const unsigned char*>(data.data()), data.size());
    crypto().digest_free(context);
    EXPECT_EQ(good, 1);
    return out;
  }
  disc::TrustedKey trusted() const {
    disc::TrustedKey k;
    k.id = id;
    k.key = key;
    return k;
  }
  // Its table in a trust file.
  Bytes table(const Bytes& more = "") const {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    Bytes text;
    for (size_t i = 0; i < 33; i += 3) {
      const uint32_t bits = static_cast<uint32_t>(key[i]) << 16 | static_cast<uint32_t>(i + 1 < 32 ? key[i + 1] : 0) << 8 | (i + 2 < 32 ? key[i + 2] : 0u);
      for (int k = 3; k >= 0; --k) text += digits[bits >> (6 * k) & 63];
    }
    text.back() = '=';
    return "[[key]]\nid = \"" + id + "\"\npublic = \"" + text + "\"\n" + more;
  }

 private:
  template <typename F>
  static F function(const char* name) {
    static void* library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL) ? dlopen("libcrypto.so.3", RTLD_NOW) : dlopen("libcrypto.so.1.1", RTLD_NOW);
    return reinterpret_cast<F>(dlsym(library, name));
  }
  void* pair_ = nullptr;
};

Bytes varint(uint64_t v) {
  Bytes out;
  for (; v >= 128; v >>= 7) out += static_cast<char>(v | 128);
  return out + static_cast<char>(v);
}
Bytes field(int number, const Bytes& content) { return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(content.size()) + content; }

struct Said {
  std::vector<Bytes> artifacts;
  Bytes key_id = "old", version = "test", request = Bytes(32, 'r');
  std::vector<Bytes> targets = {"x86-64-v2", "x86-64-v3"};
  double not_after = kNow + 10 * kDay;

  Bytes bytes() const {
    Bytes out;
    for (const Bytes& a : artifacts) out += field(1, a);
    out += field(2, request) + field(3, version);
    for (const Bytes& t : targets) out += field(4, t);
    if (not_after != 0) out += field(5, varint(1 << 3) + varint(static_cast<uint64_t>(not_after)));
    return out + field(6, key_id);
  }
};

// Points into the bytes.
disc::Artifact parsed(const Bytes& data) {
  disc::Artifact a;
  if (const disc::Status s = disc::parse_artifact(reinterpret_cast<const uint8_t*>(data.data()), data.size(), &a); !s.ok())
    disc_test::fail(__FILE__, __LINE__, s.message);
  return a;
}

Bytes identity_of(const disc::Artifact& a) {
  disc::Sha256Digest digest{};
  EXPECT(disc::code_identity(a, crypto(), &digest));
  return Bytes(digest.begin(), digest.end());
}

Bytes signed_toy(const Bytes& identity, const Bytes& meta, const Bytes& image, const Bytes& statement, const Bytes& signature) {
  return disc_test::pack({{"META", meta}, {"CODE", disc_test::toy_code(image)}, {"SIGN", disc_test::blob(disc_test::blob(statement) + disc_test::blob(signature))}}, identity);
}

// The toy, signed by `key`; valid now by the machine's own clock.
Bytes good_toy(const Key& key, const Bytes& identity, const Bytes& meta = disc_test::toy_meta({})) {
  const Bytes image = disc_test::toy_image();
  Said said;
  said.not_after = 4e9;
  said.key_id = key.id;
  const Bytes plain = disc_test::pack({{"META", meta}, {"CODE", disc_test::toy_code(image)}}, identity);
  said.artifacts = {Bytes(32, 'o'), identity_of(parsed(plain))};
  return signed_toy(identity, meta, image, said.bytes(), key.sign(said.bytes()));
}

// A trust file that is in force for the time of a test.
struct Policy {
  explicit Policy(const Bytes& text) {
    char name[] = "/tmp/disc_trust_XXXXXX";
    close(mkstemp(name));
    path = name;
    write(text);
    code = disc_set_trust(path.c_str());
  }
  ~Policy() {
    disc_set_trust(nullptr);
    std::filesystem::remove(path);
  }
  void write(const Bytes& text) const { std::ofstream(path, std::ios::binary) << text; }
  std::string path;
  int32_t code = 0;
};

// "" if it loads, else the error.
std::string load(const Bytes& data) {
  if (disc_exec* exec = disc_load(data.data(), data.size())) {
    disc_test::ToyRun run(3, 8, 5);
    const bool right = run.execute(exec) == 0 && run.right();
    disc_close(exec);
    return right ? "" : "wrong results";
  }
  return disc_last_error();
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  disc_test::fail(__FILE__, __LINE__, "'" + text + "' does not say '" + part + "'");
}

}  // namespace

TEST(code_identity_is_that_of_python) {
  // tests/runtime/test_identity.py has the same artefact and the same digest
  disc::Artifact a;
  a.compiler_version = "1";
  a.abi_version = 1;
  a.args.resize(2);
  a.args[0].kind = 0, a.args[0].dtype = 3, a.args[0].dims = {4, -1};
  a.args[1].kind = 2, a.args[1].dtype = 3, a.args[1].dims = {-1, 0};
  a.results.resize(2);
  a.results[0].kind = 2, a.results[0].dtype = 3, a.results[0].dims = {-1};
  a.results[1].kind = 1, a.results[1].dtype = 8;
  a.segments = {{{0, 1}, {}, {0}}, {{1}, {0}, {1}}};
  a.checks = {{3, "message", "n5"}};
  a.prepared = {{{0}, "panels", std::string(32, 'h'), true}};
  a.targets = {{"x86-64-v2", {"sse4_2"}, reinterpret_cast<const uint8_t*>("image"), 5}, {"x86-64-v3", {}, reinterpret_cast<const uint8_t*>("other"), 5}};
  std::string hex;
  for (const char c : identity_of(a)) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<uint8_t>(c));
    hex += two;
  }
  EXPECT_EQ(hex, "a8e0f47daff7786d51606f4a39a993bbe462f3bd3ddfd5c716377c3ef76bf467");
}

TEST(statements_and_their_times) {
  const Key old("old"), other("other");
  const Bytes bytes = disc_test::toy_artifact("id");
  const disc::Artifact toy = parsed(bytes);
  disc::TrustedKey key = old.trusted(), second = other.trusted();
  key.not_before = kNow;
  key.not_after = kNow + 100 * kDay;
  const auto check = [&](const Said& said, double now, const Key& by = Key("old")) {
    disc::Artifact a = toy;
    a.statement = said.bytes();
    a.signature = by.sign(a.statement);
    disc::Sha256Digest identity{};
    const disc::Status s = disc::check_signature(a, {second, key}, "FILE", now, &identity);
    EXPECT(s.ok() || s.code == disc::kPermissionDenied);
    return s.message;
  };
  Said said;
  said.artifacts = {Bytes(32, 'o'), identity_of(toy)};
  EXPECT_EQ(check(said, kNow), "");
  // at the borders, with the five minutes that clocks may differ
  EXPECT_EQ(check(said, kNow - 300), "");
  says(check(said, kNow - 301), "not valid yet");
  EXPECT_EQ(check(said, kNow + 10 * kDay + 300), "");
  says(check(said, kNow + 10 * kDay + 301), "the signature of key 'old' has expired");
  said.not_after = kNow + 200 * kDay;
  EXPECT_EQ(check(said, kNow + 100 * kDay + 300), "");
  says(check(said, kNow + 100 * kDay + 301), "key 'old' has expired");
  said.not_after = 0;
  says(check(said, kNow), "has expired");
  said.not_after = kNow + kDay;
  // both keys of an overlap
  said.key_id = "other";
  EXPECT_EQ(check(said, kNow, Key("other")), "");
  says(check(said, kNow), "signature of key 'other' is wrong");
  said.key_id = "third'\n\xff";
  says(check(said, kNow), "signed with key 'third??" "?', which is not in the trust file FILE");
  said.key_id = "old";
  key.revoked = true;
  says(check(said, kNow), "revoked");
  key.revoked = false;
  said.version = "2";
  says(check(said, kNow), "is for compiler '2', not 'test'");
  said.version = "test";
  said.targets = {"x86-64-v3"};
  says(check(said, kNow), "other instruction sets than 'x86-64-v2'");
  said.targets = {"x86-64-v2"};
  said.artifacts.pop_back();
  says(check(said, kNow), "for other code");
  said.artifacts = {identity_of(toy).substr(0, 31)};
  says(check(said, kNow), "for other code");
}

TEST(forged_signatures_are_refused) {
  const Key old("old");
  const Bytes bytes = disc_test::toy_artifact("id");
  disc::Artifact a = parsed(bytes);
  Said said;
  said.artifacts = {identity_of(a)};
  const Bytes statement = said.bytes(), signature = old.sign(statement);
  const auto good = [&](const Bytes& text, const Bytes& by) {
    a.statement = text;
    a.signature = by;
    disc::Sha256Digest identity{};
    return disc::check_signature(a, {old.trusted()}, "FILE", kNow, &identity).ok();
  };
  EXPECT(good(statement, signature));
  for (size_t bit = 0; bit < 8 * signature.size(); ++bit) {
    Bytes bad = signature;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT(!good(statement, bad));
  }
  for (size_t bit = 0; bit < 8 * statement.size(); ++bit) {
    Bytes bad = statement;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT(!good(bad, signature));
  }
  for (size_t n = 0; n < 70; ++n)
    if (n != 64) EXPECT(!good(statement, (signature + signature).substr(0, n)));
  EXPECT(!good("", signature));
}

TEST(statements_are_read_strictly_and_never_out_of_bounds) {
  Said said;
  said.artifacts = {Bytes(32, 'a'), Bytes(32, 'b')};
  const Bytes good = said.bytes();
  disc::Statement s;
  EXPECT(disc::parse_statement(good, &s));
  EXPECT_EQ(s.artifacts.size(), 2u);
  EXPECT_EQ(s.not_after, kNow + 10 * kDay);
  EXPECT_EQ(s.targets[1], "x86-64-v3");
  // what is not known is skipped, what is said twice is not taken
  EXPECT(disc::parse_statement(good + field(9, "new") + varint(10 << 3) + varint(~uint64_t{0}) + varint(11 << 3 | 1) + Bytes(8, 'x') + varint(12 << 3 | 5) + Bytes(4, 'x'), &s));
  EXPECT_EQ(s.key_id, "old");
  for (const Bytes& bad : {good + field(6, "new"), good + field(5, ""), good + field(3, ""), good + varint(13 << 3 | 3), good + Bytes(1, '\0'), good + varint(2 << 3) + varint(1),
                           good + varint(9 << 3 | 2) + varint(~uint64_t{0}), good + Bytes(11, '\xff'), Bytes(disc::kMaxStatement + 1, '\0')})
    EXPECT(!disc::parse_statement(bad, &s));
  for (size_t n = 1; n < good.size(); ++n) {
    disc::parse_statement(good.substr(0, n), &s);
    EXPECT(s.artifacts.size() <= 2);
  }
  std::mt19937 rng(3);
  int read = 0;
  for (int i = 0; i < 50000; ++i) {
    Bytes data = good;
    for (int k = 1 + static_cast<int>(rng() % 4); k > 0; --k) data[rng() % data.size()] = static_cast<char>(rng());
    if (rng() % 4 == 0) data.resize(rng() % data.size());
    data.shrink_to_fit();
    read += disc::parse_statement(data, &s);
  }
  EXPECT(read > 1000 && read < 49000);
}

TEST(trust_files_are_read_line_by_line) {
  const Key a("a"), b("b");
  const auto read = [](const Bytes& text, std::vector<disc::TrustedKey>* keys) { return disc::parse_trust_file(text, "FILE", keys).message; };
  std::vector<disc::TrustedKey> keys;
  EXPECT_EQ(read("# a comment\r\n\r\n  " + a.table("not_before = 2026-11-01T00:00:00Z   # the first day\nnot_after=2027-05-01T01:30:00.5+01:30\nrevoked = false") + "\n\n" +
                     b.table("\trevoked = true # since today"),
                 &keys), "");
  EXPECT_EQ(keys.size(), 2u);
  EXPECT(keys[0].id == "a" && keys[0].key == a.key && !keys[0].revoked && keys[1].revoked && !keys[1].not_after);
  EXPECT_EQ(*keys[0].not_before, 1793491200.0);
  EXPECT_EQ(*keys[0].not_after, 1809129600.5);
  EXPECT_EQ(read(a.table("not_before = 2000-02-29T23:59:59Z"), &keys), "");
  EXPECT_EQ(*keys[0].not_before, 951868799.0);
  const std::vector<std::pair<Bytes, std::string>> bad = {
      {"", "no key in it"},
      {"# only a comment", "no key in it"},
      {"id = \"a\"", "line 1: a [[key]] is wanted first"},
      {"[key]", "a [[key]] is wanted first"},
      {"[[key]]", "no id or no public"},
      {a.table() + a.table(), "occurs twice"},
      {a.table("id = \"b\""), "line 4: id occurs twice"},
      {a.table("colour = 1"), "only [[key]], id"},
      {a.table("[table]"), "only [[key]], id"},
      {a.table("revoked = yes"), "true or false"},
      {a.table("revoked = true false"), "true or false"},
      {a.table("revoked"), "true or false"},
      {a.table("not_after = 2027-05-01T00:00:00"), "with its zone"},
      {a.table("not_after = 2027-05-01"), "with its zone"},
      {a.table("not_after = 2027-02-29T00:00:00Z"), "with its zone"},
      {a.table("not_after = 2027-13-01T00:00:00Z"), "with its zone"},
      {a.table("not_after = \"2027-05-01T00:00:00Z\""), "with its zone"},
      {a.table("not_after = 2027-05-01T00:00:00.Z"), "with its zone"},
      {a.table("not_after = 2027-05-01T00:00:00+1:00"), "with its zone"},
      {a.table("not_before = 2027-05-01T00:00:00Z\nnot_after = 2027-05-01T00:00:00Z"), "ends before it begins"},
      {"[[key]]\nid = 'a'", "in double quotes"},
      {"[[key]]\nid = \"\"", "1 to 64"},
      {"[[key]]\nid = \"" + Bytes(65, 'a') + "\"", "1 to 64"},
      {"[[key]]\nid = \"a\\u0041\"", "1 to 64"},
      {"[[key]]\nid = \"a\" \"b\"", "1 to 64"},
      {"[[key]]\nid = \"\"\"a\"\"\"", "1 to 64"},
      {"[[key]]\npublic = \"" + Bytes(43, 'A') + "\"", "32 bytes in base64"},
      {"[[key]]\npublic = \"" + Bytes(44, 'A') + "\"", "32 bytes in base64"},
      {"[[key]]\npublic = \"" + Bytes(42, 'A') + "-=\"", "32 bytes in base64"},
  };
  for (const auto& [text, part] : bad) says(read(text, &keys), part);
  std::mt19937 rng(4);
  const Bytes good = a.table("not_before = 2026-11-01T00:00:00Z\n") + b.table();
  for (int i = 0; i < 20000; ++i) {
    Bytes text = good;
    for (int k = 1 + static_cast<int>(rng() % 4); k > 0; --k) text[rng() % text.size()] = static_cast<char>(rng());
    text.resize(rng() % 3 ? text.size() : rng() % text.size());
    read(text, &keys);
  }
}

TEST(loads_under_a_policy) {
  const Key old("old"), other("other");
  const Bytes unsigned_toy = disc_test::toy_artifact("plain"), good = good_toy(old, "good");
  EXPECT_EQ(load(good), "");  // without a policy a signature means nothing
  EXPECT_EQ(disc_trust_file(), std::string());
  const int64_t accepted = disc_counter("signatures_accepted"), refused = disc_counter("signatures_refused");
  EXPECT_EQ(accepted + refused, 0);
  Policy policy(old.table());
  EXPECT_EQ(policy.code, 0);
  EXPECT_EQ(disc_trust_file(), policy.path);
  EXPECT_EQ(load(good), "");
  says(load(unsigned_toy), "toy: the code is not signed, but the trust file " + policy.path);
  EXPECT_EQ(disc_last_error_code(), 7);
  says(load(good_toy(other, "theirs")), "signed with key 'other', which is not in the trust file");
  EXPECT_EQ(disc_counter("signatures_accepted"), 1);
  EXPECT_EQ(disc_counter("signatures_refused"), 2);
  // the file is read for each load: a new key, a revocation, no file
  policy.write(old.table("revoked = true\n") + other.table());
  EXPECT_EQ(load(good_toy(other, "theirs")), "");
  says(load(good), "revoked");
  policy.write(old.table() + "nonsense");
  says(load(good), "line 4: only [[key]]");
  EXPECT_EQ(disc_last_error_code(), 9);
  policy.write(old.table());
  chmod(policy.path.c_str(), 0666);
  says(load(good), "everybody may write into it");
  std::filesystem::remove(policy.path);
  says(load(good), "No such file");
  // a policy that cannot be asked is in force
  EXPECT(disc_set_trust("/nowhere/trust.toml") == 9);
  EXPECT_EQ(disc_trust_file(), std::string("/nowhere/trust.toml"));
  says(load(good), "trust file /nowhere/trust.toml: No such file");
  EXPECT(disc_set_trust("/tmp") == 9);
  says(load(good), "not a regular file");
  EXPECT_EQ(disc_set_trust(""), 0);
  EXPECT_EQ(load(unsigned_toy), "");
}

TEST(what_was_changed_after_it_was_signed_is_refused) {
  const Key old("old");
  const Policy policy(old.table());
  const Bytes good = good_toy(old, "good");
  const Bytes identity = identity_of(parsed(good));
  EXPECT_EQ(load(good), "");
  std::mt19937 rng(5);
  int same = 0, other = 0;
  // every kind of place: header, table, names, structure, code, statement; checksums are made right again
  for (int i = 0; i < 4000; ++i) {
    Bytes bad = good;
    const size_t at = i % 2 ? 64 + rng() % (bad.size() - 64) : 64 + 3 * 32 + rng() % 600;
    bad[at] = static_cast<char>(bad[at] ^ 1 << rng() % 8);
    disc_test::seal(&bad);
    disc::Artifact a;
    if (!disc::parse_artifact(reinterpret_cast<const uint8_t*>(bad.data()), bad.size(), &a).ok()) continue;
    const bool unchanged = a.statement == parsed(good).statement && a.signature == parsed(good).signature && identity_of(a) == identity;
    disc_exec* exec = disc_load(bad.data(), bad.size());
    EXPECT_EQ(exec != nullptr, unchanged);  // names and messages are nobody's word
    ++(unchanged ? same : other);
    if (exec) disc_close(exec);
  }
  EXPECT(same > 50 && other > 500);
}

TEST(a_copied_header_digest_gets_nobody_elses_code) {
  const Key old("old");
  const Bytes image = disc_test::toy_image();
  Bytes evil = image;
  const size_t at = evil.find("x86");  // any byte will do that code does not run over
  evil[at == Bytes::npos ? evil.size() - 1 : at] ^= 1;
  const Bytes good = good_toy(old, "equal");
  const Bytes bad = disc_test::pack({{"META", disc_test::toy_meta({})}, {"CODE", disc_test::toy_code(evil)}}, "equal");
  EXPECT(parsed(good).digest == parsed(bad).digest);
  disc_exec* first = disc_load(bad.data(), bad.size());
  EXPECT(first);
  const int64_t images = disc_counter("images_loaded");
  const Policy policy(old.table());
  disc_exec* second = disc_load(good.data(), good.size());
  EXPECT(second);
  EXPECT_EQ(disc_counter("images_loaded"), images + 1);  // not the one that was there under this digest
  disc_close(second);
  disc_close(first);
}

TEST(threads_that_load_at_once_under_a_policy) {
  const Key old("old");
  const Policy policy(old.table());
  const Bytes good = good_toy(old, "at once"), bad = disc_test::toy_artifact("at once, unsigned");
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        if (load(good).empty() && load(bad).find("not signed") != std::string::npos) ++right;
        if (i % 8 == 0) disc_set_trust(policy.path.c_str());
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right.load(), 100);
}
