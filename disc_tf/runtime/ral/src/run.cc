#include "run.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "float_mode.h"
#include "fork.h"
#include "library.h"
#include "packs.h"
#include "profile.h"
#include "thread_pool.h"

using disc::Code;
using disc::MemoryPool;
using disc::PreparedData;
using disc::PreparedRef;
using disc::Status;
using disc::TensorSpec;

namespace {

std::atomic<int64_t> g_runs{0}, g_kernels{0}, g_launches{0};

std::string show_dims(int64_t rank, const int64_t* dims) {
  std::string s = "[";
  for (int64_t i = 0; i < rank; ++i) s += (i ? "," : "") + (dims[i] < 0 ? std::string("?") : std::to_string(dims[i]));
  return s + "]";
}

// Bytes of a tensor; false if a dim is negative or the size does not fit. A zero dim does not hide an overflow of the others:
// strides are products of some of the dims.
bool tensor_bytes(int64_t rank, const int64_t* dims, int64_t element, int64_t* bytes, bool* negative) {
  int64_t n = element;
  bool empty = false;
  for (int64_t i = 0; i < rank; ++i) {
    if ((*negative = dims[i] < 0)) return false;
    if (dims[i] == 0)
      empty = true;
    else if (__builtin_mul_overflow(n, dims[i], &n))
      return false;
  }
  *bytes = empty ? 0 : n;
  return true;
}

// A place for tensors without elements, so that null always means failure.
alignas(64) char g_nothing[64];

void spread(const disc::ThreadPool::Work& work) {
  disc::ThreadPool& pool = disc::ThreadPool::get();
  const int width = pool.width(work);
  if (width <= 1) {
    work.fn(work.args, 0, work.tasks, work.scratch);
    return;
  }
  g_launches.fetch_add(1, std::memory_order_relaxed);
  pool.run(work, width);
}

disc_run_options copy_options(const disc_run_options* given) {
  disc_run_options o{};
  if (given) std::memcpy(&o, given, std::min<size_t>(given->struct_size, sizeof(o)));
  return o;
}

}  // namespace

namespace disc {

const disc_api* api_table() {
  static const disc_api api = [] {
    disc_api a{};
    a.struct_size = sizeof(a);
    a.abi_version = DISC_ABI_VERSION;
    a.recv_input = [](disc_context* c, int32_t i) { return c->recv_input(i); };
    a.alloc_output = [](disc_context* c, int32_t i, int32_t rank, const int64_t* dims) { return c->alloc_output(i, rank, dims); };
    a.alias_output = [](disc_context* c, int32_t i, int32_t input, int32_t rank, const int64_t* dims) {
      return c->alias_output(i, input, rank, dims);
    };
    a.send_output = [](disc_context* c, int32_t i) { return c->send_output(i); };
    a.arena = [](disc_context* c, int32_t slot, int64_t bytes) { return c->arena(slot, bytes); };
    a.parallel_for = [](disc_context* c, disc_kernel_fn fn, const disc_kernel_args* args, int64_t tasks, int64_t grain,
                        int64_t scratch) { return c->parallel_for(fn, args, tasks, grain, scratch); };
    a.dispatch = [](disc_context* c, const char* name, void* const* args, const int64_t* scalars) {
      return c->dispatch(name, args, scalars);
    };
    a.fail = [](disc_context* c, int32_t code, int32_t check) { c->fail(code, check); };
    a.prepared = [](disc_context* c, int32_t i) { return c->prepared(i); };
    a.prepare_alloc = [](disc_context* c, int32_t i, int64_t bytes) { return c->prepare_alloc(i, bytes); };
    a.error_cell = [](disc_context* c) { return c->error_cell(); };
    return a;
  }();
  return &api;
}

int64_t run_counter() { return g_runs.load(std::memory_order_relaxed); }
int64_t kernel_counter() { return g_kernels.load(std::memory_order_relaxed); }
int64_t launch_counter() { return g_launches.load(std::memory_order_relaxed); }

}  // namespace disc

disc_context::disc_context(std::shared_ptr<disc::Executable> executable, const disc_run_options* options, std::shared_ptr<const disc::Bound> bound)
    : executable_(std::move(executable)), bound_(std::move(bound)), options_(copy_options(options)), api_(disc::api_table()) {
  disc::install_fork_handlers();
  if (bound_) {
    own_inputs_ = bound_->values;
    own_present_ = bound_->has;
  } else {
    own_inputs_.resize(artifact().args.size());
    own_present_.resize(artifact().args.size());
  }
  outputs_.resize(artifact().results.size());
  segment_done_.resize(artifact().segments.size());
  prepared_.resize(artifact().prepared.size());
  number_ = g_runs.fetch_add(1, std::memory_order_relaxed);
}

disc_context::disc_context(disc_context* parent, int32_t building, PreparedData* target)
    : executable_(parent->executable_), bound_(parent->bound_), options_(parent->options_), api_(parent->api_), number_(parent->number_),
      recording_(parent->recording_), inputs_(parent->inputs_), present_(parent->present_), parent_(parent), building_(building), target_(target) {
  prepared_.resize(artifact().prepared.size());
}

disc_context::~disc_context() {
  MemoryPool& pool = MemoryPool::get();
  for (const Slot& s : arena_) pool.release(s.block);
  for (const MemoryPool::Block& b : outgrown_) pool.release(b);
  pool.release(scratch_);
}

// ------------------------------------------------------------------------------------------------------------- driver

int32_t disc_context::set_input(int32_t index, const disc_memref& value, bool copy_dims) {
  if (index < 0 || static_cast<size_t>(index) >= own_inputs_.size())
    return fail_internally(Code::kInvalidArgument,
                           "there is no argument " + std::to_string(index) + ", the model has " + std::to_string(own_inputs_.size()));
  const TensorSpec& spec = artifact().args[index];
  auto what = [&] { return disc::called(artifact(), index); };
  if (is_bound(index)) return fail_internally(Code::kInvalidArgument, what() + " has its value in the file");
  if (own_present_[index]) return fail_internally(Code::kFailedPrecondition, what() + " was given twice");
  bool fits = value.rank == static_cast<int64_t>(spec.dims.size());
  for (int64_t i = 0; fits && i < value.rank; ++i) fits = spec.dims[i] < 0 || spec.dims[i] == value.dims[i];
  if (!fits)
    return fail_internally(Code::kInvalidArgument,
                           what() + " has shape " + show_dims(std::clamp<int64_t>(value.rank, 0, disc::kMaxRank), value.dims) + ", " +
                               show_dims(static_cast<int64_t>(spec.dims.size()), spec.dims.data()) + " was compiled");
  int64_t bytes = 0;
  bool negative = false;
  if (!tensor_bytes(value.rank, value.dims, disc::dtype_size(spec.dtype), &bytes, &negative))
    return fail_internally(Code::kInvalidArgument, what() + " has an impossible shape " + show_dims(value.rank, value.dims));
  if (bytes > 0 && !value.data) return fail_internally(Code::kInvalidArgument, what() + " has no data");
  own_inputs_[index] = value;
  if (copy_dims) own_inputs_[index].dims = dims_.emplace_back(value.dims, value.dims + value.rank).data();
  own_present_[index] = 1;
  return 0;
}

bool disc_context::ready(size_t segment) const {
  const disc::SegmentSpec& s = artifact().segments[segment];
  return std::all_of(s.inputs.begin(), s.inputs.end(), [&](uint32_t i) { return own_present_[i] != 0; }) &&
         std::all_of(s.dependences.begin(), s.dependences.end(), [&](uint32_t i) { return segment_done_[i] != 0; });
}

const Status& disc_context::advance(int32_t* remaining) {
  const disc::FloatMode mode;
  const disc::ThreadPool::ActiveRun active;
  recording_ = disc::profile_level() != disc::kProfileOff ? disc::profile_join(executable_) : 0;
  api_ = recording_ != 0 ? disc::profiled_api_table() : disc::api_table();
  const bool all = recording_ != 0 && disc::profile_level() == disc::kProfileAll;
  const char* name = artifact().name.c_str();
  if (all) record_extents();
  disc::Recorded whole(all, recording_, DISC_EVENT_RUN, number_, name, name);
  int32_t waiting = 0;
  for (size_t i = 0; i < segment_done_.size() && !failed(); ++i) {  // dependences come first in the table: one pass is enough
    if (segment_done_[i]) continue;
    if (!ready(i)) {
      ++waiting;
      continue;
    }
    int32_t rc = 0;
    {
      const disc::Recorded segment(all, recording_, DISC_EVENT_SEGMENT, number_, name, name, static_cast<int64_t>(i));
      rc = executable_->code().segment(this, api_, static_cast<int32_t>(i));
    }
    check_error_cell();
    segment_done_[i] = 1;
    if (rc != 0 && !failed())
      fail_internally(rc >= 1 && rc <= 16 ? rc : Code::kInternal, "segment " + std::to_string(i) + " failed with code " + std::to_string(rc));
    if (failed()) break;
    for (uint32_t o : artifact().segments[i].outputs)
      if (outputs_[o] != Output::kSent) fail_internally(Code::kInternal, "segment " + std::to_string(i) + " did not send result " + std::to_string(o));
  }
  whole.set_first(waiting);
  if (remaining) *remaining = waiting;
  return status_;
}

void disc_context::record_extents() const {
  for (size_t i = 0; i < own_inputs_.size(); ++i) {
    const TensorSpec& spec = artifact().args[i];
    if (spec.kind == DISC_KIND_CONST || !own_present_[i]) continue;
    for (size_t d = 0; d < spec.dims.size(); ++d) {
      const int64_t now = disc::wall_clock();
      disc::profile_record(recording_, {sizeof(disc_event), DISC_EVENT_EXTENT, 0, static_cast<int32_t>(d), number_, artifact().name.c_str(), spec.name.c_str(),
                            now, now, 0, static_cast<int64_t>(i), own_inputs_[i].dims[d]});
    }
  }
}

const Status& disc_context::finish() {
  if (!failed())
    for (size_t i = 0; i < segment_done_.size(); ++i)
      if (!segment_done_[i]) {
        fail_internally(Code::kFailedPrecondition, "the run ended before segment " + std::to_string(i) + " had its inputs");
        break;
      }
  return status_;
}

// ------------------------------------------------------------------------------------------------------------- errors

int32_t disc_context::fail_internally(int32_t code, const std::string& message, const std::string& node) {
  // A failed check stands: what goes wrong after it is a consequence.
  if (!failed()) status_ = Status(code, message, node);
  return status_.code;
}

void disc_context::record_check(int64_t check_id, int32_t code) {
  if (failed() && failed_check_ <= check_id) return;
  if (failed() && failed_check_ == DISC_NO_ERROR) return;
  const auto& checks = artifact().checks;
  if (check_id < 0 || static_cast<size_t>(check_id) >= checks.size()) {
    fail_internally(Code::kInternal, "check " + std::to_string(check_id) + " failed, which is not in the check table");
    return;
  }
  const disc::CheckSpec& check = checks[static_cast<size_t>(check_id)];
  status_ = Status(code != 0 ? code : check.code, check.message, check.node);
  failed_check_ = check_id;
}

int32_t disc_context::check_error_cell() {
  const int64_t id = __atomic_load_n(&error_cell_, __ATOMIC_RELAXED);
  if (id == DISC_NO_ERROR) return 0;
  record_check(id, 0);
  return status_.code;
}

void disc_context::fail(int32_t code, int32_t check_id) {
  if (check_id >= 0)
    record_check(check_id, code);
  else
    fail_internally(code >= 1 && code <= 16 ? code : static_cast<int32_t>(Code::kInternal), "the compiled code reported status " + std::to_string(code));
}

// ----------------------------------------------------------------------------------------------------- inputs, outputs

const disc_memref* disc_context::recv_input(int32_t index) {
  if (index >= 0 && static_cast<size_t>(index) < inputs_->size() && (*present_)[index]) return &(*inputs_)[index];
  fail_internally(Code::kInternal, "the compiled code asked for " + (static_cast<size_t>(index) < artifact().args.size() ? disc::called(artifact(), index) : "argument " + std::to_string(index)) + ", which is not there");
  return nullptr;
}

int32_t disc_context::check_output(int32_t index, int32_t rank, const int64_t* dims, int64_t* bytes) {
  if (parent_ || index < 0 || static_cast<size_t>(index) >= outputs_.size() || outputs_[index] != Output::kNone)
    return fail_internally(Code::kInternal, "the compiled code made result " + std::to_string(index) + " twice or out of place");
  const TensorSpec& spec = artifact().results[index];
  bool negative = false;
  if (rank != static_cast<int32_t>(spec.dims.size()))
    return fail_internally(Code::kInternal, "result " + spec.name + " came out with rank " + std::to_string(rank));
  if (tensor_bytes(rank, dims, disc::dtype_size(spec.dtype), bytes, &negative)) return 0;
  return fail_internally(negative ? Code::kInvalidArgument : Code::kResourceExhausted,
                         "result " + spec.name + (negative ? " has a negative dim: " : " is too large: ") + show_dims(rank, dims), spec.name);
}

void* disc_context::alloc_output(int32_t index, int32_t rank, const int64_t* dims) {
  int64_t bytes = 0;
  if (check_output(index, rank, dims, &bytes) != 0) return nullptr;
  void* data = options_.alloc_output ? options_.alloc_output(options_.user, index, rank, dims, bytes) : nullptr;
  if (!data && bytes > 0) {
    const std::string& name = artifact().results[index].name;
    fail_internally(Code::kResourceExhausted, "no memory for result " + name + " of shape " + show_dims(rank, dims) + " (" + std::to_string(bytes) + " bytes)", name);
    return nullptr;
  }
  outputs_[index] = Output::kMade;
  return data ? data : g_nothing;
}

int32_t disc_context::alias_output(int32_t index, int32_t input, int32_t rank, const int64_t* dims) {
  const disc_memref* in = recv_input(input);
  if (!in) return status_.code;
  int64_t bytes = 0, in_bytes = 0;
  bool negative = false;
  if (check_output(index, rank, dims, &bytes) != 0) return status_.code;
  tensor_bytes(in->rank, in->dims, disc::dtype_size(artifact().args[input].dtype), &in_bytes, &negative);
  if (bytes != in_bytes) return fail_internally(Code::kInternal, "a view has another size than its input");
  const bool copied = !options_.alias_output || is_bound(input);  // the file's pages are not handed out
  const int32_t rc = copied ? DISC_COPY : options_.alias_output(options_.user, index, input, rank, dims);
  if (rc == DISC_COPY) {
    void* data = alloc_output(index, rank, dims);
    if (!data) return status_.code;
    if (bytes > 0) std::memcpy(data, in->data, static_cast<size_t>(bytes));
    return 0;
  }
  if (rc != 0)
    return fail_internally(rc, "result " + artifact().results[index].name + " could not be made a view of " + disc::called(artifact(), input));
  outputs_[index] = Output::kMade;
  return 0;
}

int32_t disc_context::send_output(int32_t index) {
  if (check_error_cell() != 0 || failed()) return status_.code;
  if (parent_ || index < 0 || static_cast<size_t>(index) >= outputs_.size() || outputs_[index] != Output::kMade)
    return fail_internally(Code::kInternal, "the compiled code sent result " + std::to_string(index) + " before it was made, or twice");
  outputs_[index] = Output::kSent;
  if (!options_.send_output) return 0;
  const int32_t rc = options_.send_output(options_.user, index);
  return rc == 0 ? 0 : fail_internally(rc, "result " + artifact().results[index].name + " was not taken");
}

// ------------------------------------------------------------------------------------------------------ memory, threads

void* disc_context::arena(int32_t slot, int64_t bytes) {
  if (bytes == 0) return g_nothing;
  const auto it = std::find_if(arena_.begin(), arena_.end(), [&](const Slot& s) { return s.id == slot; });
  if (bytes > 0 && it != arena_.end() && it->block.size >= static_cast<size_t>(bytes)) return it->block.data;
  const MemoryPool::Block block = bytes > 0 ? MemoryPool::get().acquire(static_cast<size_t>(bytes)) : MemoryPool::Block{};
  if (!block.data) {
    fail_internally(Code::kResourceExhausted, bytes < 0 ? std::string("the size of the intermediate results overflows")
                                                        : "no memory for intermediate results (" + std::to_string(bytes) + " bytes)");
    return nullptr;
  }
  if (it == arena_.end()) {
    arena_.push_back({slot, block});
  } else {  // what the smaller one holds may still be in use
    outgrown_.push_back(it->block);
    it->block = block;
  }
  return block.data;
}

int32_t disc_context::parallel_for(disc_kernel_fn fn, const disc_kernel_args* args, int64_t tasks, int64_t grain, int64_t scratch_bytes) {
  if (tasks <= 0) return check_error_cell();
  if (tasks > INT64_MAX / 4 || scratch_bytes < 0) return fail_internally(Code::kResourceExhausted, "a kernel's size overflows");
  g_kernels.fetch_add(1, std::memory_order_relaxed);
  if (scratch_bytes > 0 && scratch_.size < static_cast<size_t>(scratch_bytes)) {
    MemoryPool::get().release(scratch_);
    scratch_ = MemoryPool::get().acquire(static_cast<size_t>(scratch_bytes));
    if (!scratch_.data) return fail_internally(Code::kResourceExhausted, "no memory for scratch (" + std::to_string(scratch_bytes) + " bytes)");
  }
  disc::ThreadPool::Work work;
  work.fn = fn;
  work.args = args;
  work.tasks = tasks;
  work.grain = std::max<int64_t>(grain, 1);
  work.scratch_bytes = scratch_bytes;
  work.max_threads = options_.max_threads;
  work.scratch = scratch_.data ? scratch_.data : g_nothing;
  spread(work);
  return check_error_cell();
}

int32_t disc_context::dispatch(const char* name, void* const* args, const int64_t* scalars) {
  const disc::LibraryFunction fn = disc::find_library_function(name);
  if (!fn) return fail_internally(Code::kUnimplemented, std::string("library function ") + name + " is not in this runtime; update disc_tf");
  const int32_t rc = fn(this, args, scalars);
  if (rc != 0 && !failed()) fail_internally(rc, std::string("library function ") + name + " failed");
  const int32_t cell = check_error_cell();
  return rc != 0 ? rc : cell;
}

// --------------------------------------------------------------------------------------------------- packed constants

bool disc_context::note_made_of(int32_t index) {
  enum Known : uint64_t { kByDigest, kByContent, kByBuffer };
  bool by_buffer = false;
  made_of_.clear();
  for (uint32_t i : artifact().prepared[index].args) {
    const disc_memref& in = (*inputs_)[i];
    if (artifact().args[i].digest.empty()) {
      by_buffer = true;
      made_of_.insert(made_of_.end(), {kByBuffer, reinterpret_cast<uintptr_t>(in.data), static_cast<uint64_t>(in.rank)});
      made_of_.insert(made_of_.end(), in.dims, in.dims + in.rank);
    } else if (options_.content && !is_bound(static_cast<int32_t>(i))) {
      // The digest is what the compiler saw. A graph may have been edited since, and TensorFlow lets every tensor be fed.
      made_of_.insert(made_of_.end(), {kByContent, content(i)});
    } else {
      made_of_.push_back(kByDigest);
    }
  }
  return by_buffer;
}

// Of the entry that made_of_ is of, for all executables of the process; not made where the executable itself has the entry.
std::string disc_context::prepared_key(int32_t index) const {
  const disc::PreparedSpec& spec = artifact().prepared[index];
  std::string key = spec.code_hash.empty() ? executable_->identity() + '#' + std::to_string(index) : 'H' + spec.code_hash;
  key += '|' + executable_->isa() + '|' + spec.layout;
  for (uint32_t i : spec.args) {
    const TensorSpec& arg = artifact().args[i];
    key += '|';
    key.append(arg.digest.begin(), arg.digest.end());
  }
  key += '|';
  key.append(reinterpret_cast<const char*>(made_of_.data()), made_of_.size() * sizeof(made_of_[0]));
  return key;
}

Status disc_context::build(int32_t index, bool by_buffer, PreparedData* data) {
  ++builds_;
  if (by_buffer && options_.retain_input && options_.release_input) {
    for (uint32_t i : artifact().prepared[index].args) {
      if (!artifact().args[i].digest.empty()) continue;
      void* handle = options_.retain_input(options_.user, static_cast<int32_t>(i));
      if (!handle) return Status(Code::kInternal, disc::called(artifact(), i) + " could not be kept");
      data->releases.push_back([release = options_.release_input, handle] { release(handle); });
    }
  }
  disc_context child(this, index, data);
  const int32_t rc = executable_->code().prepare(&child, api_, index);
  child.check_error_cell();
  if (child.failed()) return child.status_;
  if (rc != 0) return Status(rc >= 1 && rc <= 16 ? rc : Code::kInternal, "prepare of entry " + std::to_string(index) + " failed");
  if (!data->data) return Status(Code::kInternal, "prepare of entry " + std::to_string(index) + " made nothing");
  return Status();
}

uint64_t disc_context::content(uint32_t input) const {
  const disc_memref& in = (*inputs_)[input];
  int64_t bytes = 0;
  bool negative = false;
  tensor_bytes(in.rank, in.dims, disc::dtype_size(artifact().args[input].dtype), &bytes, &negative);
  const auto index = static_cast<int32_t>(input);
  return options_.content && !is_bound(index) ? options_.content(options_.user, index, in.data, bytes) : disc_content_hash(in.data, bytes);
}

uint64_t disc_context::sources_hash(int32_t index) const {
  uint64_t hash = 0;
  for (uint32_t i : artifact().prepared[index].args) {
    const uint64_t one = content(i);
    hash = disc::content_hash(&one, sizeof(one), hash);
  }
  return hash;
}

Status disc_context::find_or_share(int32_t index, PreparedData* data) {
  ++builds_;
  disc::Packs& packs = disc::Packs::get();
  if (packs.directory().empty()) return build(index, false, data);
  const disc::PreparedSpec& spec = artifact().prepared[index];
  disc::PackKey key{spec.code_hash.empty() ? executable_->identity() + '#' + std::to_string(index) : 'H' + spec.code_hash, executable_->isa(), spec.layout, {}};
  for (uint32_t i : spec.args) key.digests.emplace_back(artifact().args[i].digest.begin(), artifact().args[i].digest.end());
  // A file's constants are not read for this: they cannot have been changed without its digests.
  const bool trusted = std::all_of(spec.args.begin(), spec.args.end(), [&](uint32_t i) { return is_bound(static_cast<int32_t>(i)); });
  std::unique_ptr<disc::PackMap> pack;
  const auto found = packs.load(key, [&](uint64_t hash) { return trusted || hash == sources_hash(index); }, &pack);
  if (pack) {
    data->found = true;
    data->adopt(std::move(pack));
    return Status();
  }
  const Status status = build(index, false, data);
  if (status.ok() && data->size >= disc::kSmallestPack) pack = packs.store(key, found, sources_hash(index), data->data, data->size);
  if (pack) data->adopt(std::move(pack));
  return status;
}

const void* disc_context::prepared(int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= prepared_.size()) {
    fail_internally(Code::kInternal, "the compiled code asked for packed constant " + std::to_string(index));
    return nullptr;
  }
  if (prepared_[index]) return prepared_[index]->data;
  for (const disc_context* c = this; c; c = c->parent_)
    if (c->building_ == index) {
      fail_internally(Code::kInternal, "packed constant " + std::to_string(index) + " is made from itself");
      return nullptr;
    }
  for (uint32_t i : artifact().prepared[index].args)
    if (!recv_input(static_cast<int32_t>(i))) return nullptr;

  const bool by_buffer = note_made_of(index);
  PreparedRef ref = executable_->kept(index, made_of_);
  if (!ref) {
    if (by_buffer && artifact().prepared[index].optional && executable_->unstable(index)) return nullptr;
    Status status;
    if (by_buffer && !(options_.retain_input && options_.release_input)) {
      // Nothing holds the buffer after this run, so nothing may remember what was made of it.
      ref = std::make_shared<PreparedData>();
      status = build(index, by_buffer, ref.get());
    } else {
      status = disc::PreparedCache::get().find_or_build(prepared_key(index), [&](PreparedData* data) { return by_buffer ? build(index, true, data) : find_or_share(index, data); }, &ref);
      if (status.ok()) executable_->keep(index, made_of_, ref);
    }
    if (!status.ok()) {
      fail_internally(status.code, status.message, status.node);
      return nullptr;
    }
  }
  prepared_[index] = ref;
  return ref->data;
}

void* disc_context::prepare_alloc(int32_t index, int64_t bytes) {
  if (!target_ || index != building_ || target_->data) {
    fail_internally(Code::kInternal, "memory for packed constant " + std::to_string(index) + " was asked twice or out of place");
    return nullptr;
  }
  if (bytes < 0 || !target_->allocate(static_cast<size_t>(bytes))) {
    fail_internally(Code::kResourceExhausted, "no memory for packed constant " + std::to_string(index) + " (" + std::to_string(bytes) + " bytes)");
    return nullptr;
  }
  return target_->data;
}
