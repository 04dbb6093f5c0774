#include "executable.h"

#include <cstddef>
#include <map>

#include "cpu.h"
#include "fork.h"
#include "perf_names.h"
#include "settings.h"
#include "trust.h"

namespace disc {
namespace {

constexpr size_t kKeptContents = 4;   // sessions with variables of their own that may share an executable
constexpr int kMaxRebuilds = 16;

std::atomic<int64_t> g_loaded{0}, g_live{0};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Executable>> by_identity;

  static Registry& get() {
    static auto* r = new Registry;
    return *r;
  }
};

std::mutex& slots_mutex() {
  static auto* m = new std::mutex;
  return *m;
}

Status named(const Artifact& a, const Status& s) { return Status(s.code, (a.name.empty() ? std::string("executable") : a.name) + ": " + s.message); }

Status query(const Image& image, const Artifact& a, disc_executable* code) {
  *code = disc_executable{};
  code->struct_size = sizeof(disc_executable);
  if (const int32_t rc = image.query()(DISC_ABI_VERSION, code); rc != 0)
    return Status(kUnimplemented, "the executable does not serve runtime ABI " + std::to_string(DISC_ABI_VERSION) + " (code " +
                                      std::to_string(rc) + ")");
  if (code->abi_version == 0 || code->abi_version > DISC_ABI_VERSION)
    return Status(kUnimplemented, "the executable wants runtime ABI " + std::to_string(code->abi_version));
  if (code->struct_size < offsetof(disc_executable, segment) + sizeof(code->segment) || !code->segment)
    return Status(kDataLoss, "the executable's header is incomplete");
  if (code->n_segments != static_cast<int32_t>(a.segments.size()) || code->n_prepared != static_cast<int32_t>(a.prepared.size()))
    return Status(kDataLoss, "the executable has " + std::to_string(code->n_segments) + " segments and " +
                                 std::to_string(code->n_prepared) + " prepared entries, its artefact says " +
                                 std::to_string(a.segments.size()) + " and " + std::to_string(a.prepared.size()));
  if (code->n_prepared > 0 && !code->prepare) return Status(kDataLoss, "the executable has no prepare function");
  return Status();
}

}  // namespace

int64_t images_loaded() { return g_loaded.load(std::memory_order_relaxed); }
int64_t images_live() { return g_live.load(std::memory_order_relaxed); }

Status Executable::load(const uint8_t* data, size_t size, std::shared_ptr<Executable>* out, std::vector<ConstantSpec>* constants) {
  install_fork_handlers();
  if (!environment().error.ok()) return environment().error;
  Artifact artifact;
  if (Status s = parse_artifact(data, size, &artifact); !s.ok()) return s;
  if (constants) *constants = std::move(artifact.constants);
  artifact.constants.clear();  // they point into the caller's bytes
  size_t target = 0;
  if (Status s = choose_target(artifact.targets, target_cap(), &target); !s.ok()) return s;
  TargetCode code = artifact.targets[target];
  std::vector<uint8_t> image;
  std::string proved;
  if (const std::string policy = trust_file(); !policy.empty()) {
    // What is checked is what is loaded, whoever writes into a mapped file meanwhile.
    image.assign(code.image, code.image + code.image_size);
    artifact.targets[target].image = code.image = image.data();
    Sha256Digest checked{};
    if (Status s = check_trust(artifact, policy, &checked); !s.ok()) return named(artifact, s);
    proved.assign(checked.begin(), checked.end());
  }
  const PerfSetting& perf = environment().perf;
  Loader way = disc::loader();
  if (perf.form != PerfForm::kNone) {
    if (way != Loader::kAuto && way != Loader::kMmap)
      return Status(kInvalidArgument, "DISC_TF_PERF names code in anonymous memory only: leave the loader (DISC_TF_LOADER) at auto, or choose mmap");
    way = Loader::kMmap;
  }
  // The digest in the header is the file's own word: under a policy only code that was checked is the same code.
  const std::string identity = std::string(artifact.digest.begin(), artifact.digest.end()) + code.isa + std::to_string(static_cast<int>(way)) + proved;

  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  auto& known = registry.by_identity[identity];
  if ((*out = known.lock())) return Status();
  std::shared_ptr<Executable> fresh(new Executable);
  Status status = Image::load(code.image, code.image_size, way, &fresh->image_);
  if (status.ok()) {
    g_loaded.fetch_add(1, std::memory_order_relaxed);
    g_live.fetch_add(1, std::memory_order_relaxed);
    status = query(*fresh->image_, artifact, &fresh->code_);
  }
  if (!status.ok()) {
    registry.by_identity.erase(identity);
    return named(artifact, status);
  }
  if (perf.form != PerfForm::kNone)
    write_perf_names(perf, artifact.name, read_kernel_nodes(artifact.kernel_nodes, artifact.kernel_nodes_size), *fresh->image_);
  artifact.kernel_nodes = nullptr;  // it points into the caller's bytes
  fresh->isa_ = code.isa;
  fresh->identity_ = identity;
  artifact.targets.clear();  // they point into the caller's bytes
  fresh->slots_.resize(artifact.prepared.size());
  fresh->artifact_ = std::move(artifact);
  known = fresh;
  for (auto it = registry.by_identity.begin(); it != registry.by_identity.end();)
    it = it->second.expired() ? registry.by_identity.erase(it) : std::next(it);
  *out = std::move(fresh);
  return Status();
}

Executable::~Executable() {
  if (image_) g_live.fetch_sub(1, std::memory_order_relaxed);
}

PreparedRef Executable::kept(int32_t index, const std::vector<uint64_t>& made_of) {
  const std::lock_guard<std::mutex> lock(slots_mutex());
  for (const Kept& k : slots_[index].entries)
    if (k.made_of == made_of) return k.data;
  return nullptr;
}

void Executable::keep(int32_t index, const std::vector<uint64_t>& made_of, const PreparedRef& data) {
  std::vector<Kept> dropped;  // freed after the lock is: releases call back into the host
  const std::lock_guard<std::mutex> lock(slots_mutex());
  Slot& slot = slots_[index];
  for (const Kept& k : slot.entries)
    if (k.made_of == made_of) return;
  slot.entries.push_back({made_of, data});
  ++slot.rebuilds;
  if (slot.entries.size() > kKeptContents) {
    dropped.push_back(std::move(slot.entries.front()));
    slot.entries.erase(slot.entries.begin());
  }
}

bool Executable::unstable(int32_t index) {
  const std::lock_guard<std::mutex> lock(slots_mutex());
  return slots_[index].rebuilds >= kMaxRebuilds;
}

void Executable::lock_for_fork() {
  Registry::get().mutex.lock();
  slots_mutex().lock();
}

void Executable::unlock_after_fork() {
  slots_mutex().unlock();
  Registry::get().mutex.unlock();
}

}  // namespace disc
