// The directory of packed constants: what is taken from it, what is refused, how it is written.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "pack_file.h"
#include "packs.h"
#include "test_main.h"
#include "toy_artifact.h"

namespace fs = std::filesystem;
using disc_test::ToyRun;

namespace {

constexpr int64_t kColumns = 32768;  // w has 128 KiB

// A directory that is shared for the time of a test.
struct Directory {
  explicit Directory(int64_t limit = 0) {
    char name[] = "/tmp/disc_packs_XXXXXX";
    if (!mkdtemp(name)) disc_test::fail(__FILE__, __LINE__, "mkdtemp");
    root = name;
    path = root + "/packs";
    if (disc_share_packs(path.c_str(), limit) != 0) disc_test::fail(__FILE__, __LINE__, disc_last_error());
  }
  ~Directory() {
    disc_share_packs(nullptr, 0);
    fs::permissions(path, fs::perms::owner_all);
    fs::remove_all(root);
  }
  std::vector<std::string> files(const std::string& suffix = "") const {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(path))
      if (const std::string s = e.path().string(); s.size() >= suffix.size() && s.compare(s.size() - suffix.size(), suffix.size(), suffix) == 0) out.push_back(s);
    return out;
  }
  std::string root, path;
};

struct Counts {
  int64_t built = disc_counter("prepared_built"), loaded = disc_counter("packs_loaded"), written = disc_counter("packs_written"),
          refused = disc_counter("packs_refused"), unwritten = disc_counter("packs_unwritten");
  std::string since(const Counts& b) const {
    return "built " + std::to_string(built - b.built) + " loaded " + std::to_string(loaded - b.loaded) + " written " + std::to_string(written - b.written) +
           " refused " + std::to_string(refused - b.refused) + " unwritten " + std::to_string(unwritten - b.unwritten);
  }
};

// What a fresh process would do: load, run once, compare every bit, and forget. Gives what was counted.
std::string fresh(float base = 1.0f, const std::string& digest = std::string(32, 'k'), int64_t columns = kColumns) {
  const Counts before;
  const std::string data = disc_test::toy_artifact("packs", digest);
  disc_exec* exec = disc_load(data.data(), data.size());
  if (!exec) disc_test::fail(__FILE__, __LINE__, disc_last_error());
  ToyRun run(3, columns, 2, base);
  const int32_t rc = run.execute(exec);
  const bool right = rc == 0 && run.right();
  disc_close(exec);
  if (!right) disc_test::fail(__FILE__, __LINE__, "wrong result");
  return Counts().since(before);
}

const char kMade[] = "built 1 loaded 0 written 1 refused 0 unwritten 0";
const char kFound[] = "built 0 loaded 1 written 0 refused 0 unwritten 0";
const char kHealed[] = "built 1 loaded 0 written 1 refused 1 unwritten 0";
const char kAlone[] = "built 1 loaded 0 written 0 refused 0 unwritten 1";

bool says(const char* what) { return std::strstr(disc_packs_problem(), what) != nullptr; }

// What is there is refused for `reason` and made again; the next process finds that.
void expect_healed(const char* reason) {
  EXPECT_EQ(fresh(), kHealed);
  if (!says(reason)) disc_test::fail(__FILE__, __LINE__, std::string("not said: ") + reason);
  EXPECT_EQ(fresh(), kFound);
}

void flip(const std::string& path, int64_t at) {
  std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const char c = static_cast<char>(f.get() ^ 0x10);
  f.seekp(at);
  f.put(c);
}

}  // namespace

TEST(a_pack_is_made_once_and_found_again) {
  const Directory d;
  EXPECT_EQ(fresh(), kMade);
  EXPECT_EQ(d.files().size(), size_t{1});
  struct stat st {};
  EXPECT(stat(d.path.c_str(), &st) == 0 && (st.st_mode & 0777) == 0700);
  EXPECT(stat(d.files()[0].c_str(), &st) == 0 && (st.st_mode & 0777) == 0600 && st.st_size == 4096 + kColumns * 4);
  const int64_t own = disc_counter("prepared_live_bytes"), mapped = disc_counter("packs_mapped_bytes");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(fresh(), kFound);
  EXPECT_EQ(disc_counter("prepared_live_bytes"), own);
  EXPECT_EQ(disc_counter("packs_mapped_bytes"), mapped);  // unmapped with the executable
  EXPECT_EQ(std::string(disc_packs_problem()), "");
}

TEST(nothing_is_written_unless_asked_for) {
  EXPECT_EQ(std::string(disc_packs_directory()), "");
  EXPECT_EQ(fresh(), "built 1 loaded 0 written 0 refused 0 unwritten 0");
}

TEST(small_constants_and_those_without_digest_are_not_shared) {
  const Directory d;
  EXPECT_EQ(fresh(1.0f, std::string(32, 's'), 1000), "built 1 loaded 0 written 0 refused 0 unwritten 0");
  EXPECT_EQ(fresh(1.0f, ""), "built 1 loaded 0 written 0 refused 0 unwritten 0");
  EXPECT(d.files().empty());
}

TEST(what_is_mapped_outlives_its_file) {
  const Directory d;
  fresh();
  const std::string data = disc_test::toy_artifact("packs", std::string(32, 'k'));
  disc_exec* exec = disc_load(data.data(), data.size());
  ToyRun run(2, kColumns, 1);
  EXPECT_EQ(run.execute(exec), 0);
  EXPECT_EQ(disc_counter("packs_mapped_bytes"), kColumns * 4);
  fs::remove(d.files()[0]);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run.execute(exec), 0);
    EXPECT(run.right());
  }
  disc_close(exec);
  EXPECT_EQ(fresh(), kMade);
}

TEST(damage_anywhere_is_found_and_healed) {
  const Directory d;
  fresh();
  const std::string path = d.files()[0];
  for (const int64_t at : {int64_t{0}, int64_t{8}, int64_t{12}, int64_t{16}, int64_t{24}, int64_t{32}, int64_t{40}, int64_t{48}, int64_t{60}, int64_t{4096}, int64_t{70001},
                           int64_t{4096 + kColumns * 4 - 1}}) {
    flip(path, at);
    expect_healed(at >= 4096 ? "damaged contents" : path.c_str());
  }
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, int64_t{100000}, int64_t{4096 + kColumns * 4 - 1}, int64_t{1} << 21}) {
    fs::resize_file(path, static_cast<uintmax_t>(size));
    expect_healed("cut off");
  }
}

TEST(other_kinds_of_files_are_refused_and_replaced) {
  const Directory d;
  fresh();
  const std::string path = d.files()[0], elsewhere = d.root + "/elsewhere";
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[&] { fs::rename(path, elsewhere); fs::create_symlink(elsewhere, path); }, "symbolic link"},
      {[&] { fs::remove(path); EXPECT_EQ(mkfifo(path.c_str(), 0600), 0); }, "not a regular file"},
      {[&] { fs::permissions(path, fs::perms::owner_all | fs::perms::others_write); }, "may be written by others"},
      {[&] { fs::permissions(path, fs::perms::owner_all | fs::perms::group_write); }, "may be written by others"},
  };
  for (const auto& [spoil, reason] : cases) {
    spoil();
    expect_healed(reason);
  }
  if (geteuid() == 0) {
    EXPECT_EQ(chown(path.c_str(), 12345, 12345), 0);
    expect_healed("belongs to user 12345");
  }
}

TEST(a_pack_of_another_instruction_set_or_format_is_refused) {
  const Directory d;
  fresh();
  const std::string path = d.files()[0];
  std::vector<float> data(kColumns, 3.0f);
  disc::PackKey key{"code", "x86-64-v4", "double", {std::string(32, 'k')}};
  const auto write = [&](const std::string& header) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << header << std::string(reinterpret_cast<const char*>(data.data()), data.size() * 4);
  };
  std::string header = disc::pack_header(key, 0, data.data(), data.size() * 4);
  write(header);  // sound, but under a name that is not its own
  EXPECT_EQ(fresh(), kHealed);
  EXPECT(says("for another instruction set"));
  header[8] = 99;
  write(header);
  expect_healed("is of format 99");
  // Every part of the key is in the name.
  std::vector<std::string> names{key.file_name()};
  for (const disc::PackKey& k : {disc::PackKey{"code", "x86-64-v3", "double", {std::string(32, 'k')}}, disc::PackKey{"code", "x86-64-v4", "panel", {std::string(32, 'k')}},
                                 disc::PackKey{"codf", "x86-64-v4", "double", {std::string(32, 'k')}}, disc::PackKey{"code", "x86-64-v4", "double", {std::string(32, 'l')}},
                                 disc::PackKey{"code", "x86-64-v4", "double", {std::string(32, 'k'), std::string(32, 'k')}}, disc::PackKey{"codex8", "6-64-v4", "double", {}}}) {
    for (const std::string& n : names) EXPECT(n != k.file_name());
    names.push_back(k.file_name());
  }
}

TEST(weights_that_are_not_what_their_digest_says_are_packed_alone) {
  const Directory d;
  EXPECT_EQ(fresh(1.0f), kMade);
  EXPECT_EQ(fresh(5.0f), "built 1 loaded 0 written 0 refused 1 unwritten 0");  // and right: `fresh` compares
  EXPECT(says("are not those of this graph"));
  EXPECT_EQ(fresh(1.0f), kFound);
}

TEST(directories_that_cannot_be_trusted_are_refused) {
  const Directory d;
  fs::create_directory(d.root + "/open");
  fs::permissions(d.root + "/open", fs::perms::all);
  std::ofstream(d.root + "/file") << "x";
  const std::pair<std::string, const char*> cases[] = {
      {d.root + "/open", "may be written by others"}, {d.root + "/file", "cannot open the directory"},
      {d.root + "/no/parent", "cannot make the directory"}, {"/proc/self", "not known to be of this host alone (type 0x9fa0)"}};
  for (const auto& [path, reason] : cases) {
    EXPECT(disc_share_packs(path.c_str(), 0) != 0);
    EXPECT(std::strstr(disc_last_error(), reason) != nullptr);
    EXPECT_EQ(std::string(disc_packs_directory()), d.path);  // nothing changed
  }
  EXPECT(disc_share_packs(d.path.c_str(), -1) != 0);
  fs::permissions(d.path, fs::perms::all);  // after it was chosen: no run fails
  EXPECT_EQ(fresh(), kAlone);
  EXPECT(says("may be written by others"));
  fs::permissions(d.path, fs::perms::owner_all);
  fs::remove_all(d.path);  // nor when somebody deletes it: it is made again
  EXPECT_EQ(fresh(), kMade);
}

TEST(known_file_systems) {
  for (const uint64_t local : {0xEF53u, 0x58465342u, 0x01021994u, 0x794C7630u, 0x9123683Eu}) EXPECT(disc::local_filesystem(local) != nullptr);
  for (const uint64_t other : {0x6969u, 0x517Bu, 0xFF534D42u, 0xFE534D42u, 0x65735546u, 0x00C36400u, 0x01021997u, 0x0BD00BD0u, 0x0u})  // NFS SMB CIFS SMB2 FUSE Ceph 9P Lustre
    EXPECT(disc::local_filesystem(other) == nullptr);
}

TEST(a_file_size_limit_is_no_signal) {
  const Directory d;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100000;  // code images are files, too
  setrlimit(RLIMIT_FSIZE, &small);
  std::string got;
  try {
    got = fresh();
  } catch (...) {
    setrlimit(RLIMIT_FSIZE, &before);
    throw;
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(got, kAlone);
  EXPECT(says("RLIMIT_FSIZE"));
  EXPECT(d.files().empty());
}

TEST(a_limit_deletes_only_what_nobody_uses) {
  const Directory d(300000);  // two packs of 135168 bytes
  const auto digest = [](char c) { return std::string(32, c); };
  EXPECT_EQ(fresh(1.0f, digest('a')), kMade);
  const std::string first = d.files()[0];
  EXPECT_EQ(fresh(1.0f, digest('b')), kMade);
  EXPECT_EQ(fresh(1.0f, digest('c')), kAlone);
  EXPECT(says("limit of 300000 bytes"));
  fs::last_write_time(first, fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(fresh(1.0f, digest('a')), kFound);  // used: young again
  EXPECT_EQ(fresh(1.0f, digest('c')), kAlone);
  fs::last_write_time(first, fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(fresh(1.0f, digest('c')), kMade);
  EXPECT(!fs::exists(first));
  EXPECT_EQ(d.files().size(), size_t{2});
}

TEST(what_dead_writers_left_is_deleted_and_live_ones_are_left_alone) {
  const Directory d;
  const std::string dead = d.path + "/.writing-1-0-0.0", live = d.path + "/.writing-2-0-0.0", young = d.path + "/.writing-3-0-0.0";
  for (const std::string& p : {dead, live, young}) std::ofstream(p) << "half";
  for (const std::string& p : {dead, live}) fs::last_write_time(p, fs::file_time_type::clock::now() - std::chrono::minutes(1));
  const int fd = open(live.c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_EQ(fresh(), kMade);
  close(fd);
  EXPECT(!fs::exists(dead) && fs::exists(live) && fs::exists(young));
}

TEST(threads_that_start_at_once_share_a_directory) {
  const Directory d;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {  // artefacts of their own with equal contents are packed apart: their code has no hash
        const std::string data = disc_test::toy_artifact("packs " + std::to_string((t + i) % 3), std::string(32, 'k'));
        disc_exec* exec = disc_load(data.data(), data.size());
        ToyRun run(2, kColumns, 1);
        if (!exec || run.execute(exec) != 0 || !run.right()) ++wrong;
        if (exec) disc_close(exec);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(d.files().size(), size_t{3});
  EXPECT_EQ(std::string(disc_packs_problem()), "");
}

TEST(hashes_see_every_bit_and_the_length) {
  std::vector<uint8_t> data(300);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 37);
  for (const size_t size : {size_t{1}, size_t{7}, size_t{63}, size_t{64}, size_t{65}, size_t{300}}) {
    const uint64_t whole = disc::content_hash(data.data(), size);
    EXPECT(whole != disc::content_hash(data.data(), size - 1));
    EXPECT(whole != disc::content_hash(data.data(), size, 1));
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      data[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
      EXPECT(whole != disc::content_hash(data.data(), size));
      data[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    }
  }
  const std::vector<uint8_t> zeros(128);
  EXPECT(disc::content_hash(zeros.data(), 64) != disc::content_hash(zeros.data(), 128));
}
