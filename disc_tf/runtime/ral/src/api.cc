// The public C API: checks pointers, keeps the last error, forwards to the classes.
#include <cstring>
#include <memory>
#include <new>

#include "cpu.h"
#include "disc_ral.h"
#include "executable.h"
#include "last_error.h"
#include "memory.h"
#include "model_file.h"
#include "packs.h"
#include "prepared.h"
#include "run.h"
#include "settings.h"
#include "thread_pool.h"
#include "trust.h"

using disc::Status;

struct disc_exec {
  std::shared_ptr<disc::Executable> executable;
  std::shared_ptr<const disc::Bound> bound;  // of a file; else null
};

struct disc_run {
  disc_context context;
};

namespace disc {

namespace {
thread_local Status t_last_error;
}

int32_t set_last_error(const Status& status) {
  t_last_error = status;
  return status.code;
}
const Status& last_error() { return t_last_error; }

}  // namespace disc

namespace {

int32_t fill(const disc::TensorSpec& t, disc_tensor_info* out) {
  out->name = t.name.c_str();
  out->kind = t.kind;
  out->dtype = t.dtype;
  out->rank = static_cast<int32_t>(t.dims.size());
  out->dims = t.dims.data();
  out->digest = t.digest.empty() ? nullptr : t.digest.data();
  return 0;
}

int32_t info(const std::vector<disc::TensorSpec>& list, int32_t index, disc_tensor_info* out) {
  if (index >= 0 && static_cast<size_t>(index) < list.size()) return fill(list[index], out);
  return disc::set_last_error(Status(disc::kInvalidArgument, "there is no argument or result " + std::to_string(index)));
}

// C++ exceptions (only memory can bring them about) must not cross the C boundary.
template <typename F>
int32_t guarded(F f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return disc::set_last_error(Status(disc::kResourceExhausted, "out of memory"));
  }
}

}  // namespace

disc_exec* disc_load(const void* artifact, size_t size) {
  disc_exec* result = nullptr;
  guarded([&] {
    std::shared_ptr<disc::Executable> executable;
    const Status s = artifact ? disc::Executable::load(static_cast<const uint8_t*>(artifact), size, &executable)
                              : Status(disc::kInvalidArgument, "no artefact was given");
    if (s.ok()) result = new disc_exec{std::move(executable), nullptr};
    return disc::set_last_error(s);
  });
  return result;
}

disc_exec* disc_load_file(const char* path) {
  disc_exec* result = nullptr;
  guarded([&] {
    std::shared_ptr<disc::Executable> executable;
    std::shared_ptr<const disc::Bound> bound;
    const Status s = path ? disc::load_model_file(path, &executable, &bound) : Status(disc::kInvalidArgument, "no file was given");
    if (s.ok()) result = new disc_exec{std::move(executable), std::move(bound)};
    return disc::set_last_error(s);
  });
  return result;
}

int32_t disc_arg_bound(const disc_exec* e, int32_t i) {
  return e->bound && i >= 0 && static_cast<size_t>(i) < e->bound->has.size() ? e->bound->has[static_cast<size_t>(i)] : 0;
}

void disc_close(disc_exec* exec) { delete exec; }

int32_t disc_num_args(const disc_exec* e) { return static_cast<int32_t>(e->executable->artifact().args.size()); }
int32_t disc_num_results(const disc_exec* e) { return static_cast<int32_t>(e->executable->artifact().results.size()); }
int32_t disc_arg(const disc_exec* e, int32_t i, disc_tensor_info* out) { return info(e->executable->artifact().args, i, out); }
int32_t disc_result(const disc_exec* e, int32_t i, disc_tensor_info* out) { return info(e->executable->artifact().results, i, out); }
const char* disc_isa(const disc_exec* e) { return e->executable->isa().c_str(); }
const char* disc_loader(const disc_exec* e) { return e->executable->loader(); }

int32_t disc_execute(disc_exec* exec, const disc_memref* inputs, const disc_run_options* options) {
  return guarded([&] {
    disc_context context(exec->executable, options, exec->bound);
    int32_t rc = 0;
    for (int32_t i = 0; i < disc_num_args(exec) && rc == 0; ++i)
      if (!disc_arg_bound(exec, i)) rc = context.set_input(i, inputs[i], false);
    if (rc == 0) context.advance(nullptr);
    return disc::set_last_error(context.finish());
  });
}

disc_run* disc_run_begin(disc_exec* exec, const disc_run_options* options) {
  disc_run* run = nullptr;
  guarded([&] {
    run = new disc_run{{exec->executable, options, exec->bound}};
    return 0;
  });
  return run;
}

int32_t disc_run_set_input(disc_run* run, int32_t index, const disc_memref* value) {
  return guarded([&] {
    const int32_t rc = run->context.set_input(index, *value, true);
    return rc == 0 ? 0 : disc::set_last_error(run->context.finish());
  });
}

int32_t disc_run_advance(disc_run* run, int32_t* remaining) {
  return guarded([&] { return disc::set_last_error(run->context.advance(remaining)); });
}

int32_t disc_run_end(disc_run* run) {
  const std::unique_ptr<disc_run> owned(run);
  return guarded([&] { return disc::set_last_error(run->context.finish()); });
}

uint64_t disc_content_hash(const void* data, int64_t bytes) { return disc::content_hash(data, static_cast<size_t>(bytes)); }

int32_t disc_set_num_threads(int32_t threads) {
  if (threads < 0 || threads > 4096)
    return disc::set_last_error(Status(disc::kInvalidArgument, "number of threads must be 0 (automatic) to 4096"));
  disc::ThreadPool::get().set_threads(threads);
  return 0;
}
int32_t disc_num_threads(void) { return disc::ThreadPool::get().threads(); }

int32_t disc_set_target(const char* isa) {
  int cap = -1;
  if (isa)
    if (const Status s = disc::parse_target(isa, &cap); !s.ok()) return disc::set_last_error(s);
  disc::override_target_cap(cap);
  return 0;
}

const char* disc_host_isa(void) { return disc::isa_name(disc::host_isa_level()); }

int32_t disc_set_loader(const char* name) {
  disc::Loader loader = disc::Loader::kAuto;
  if (name)
    if (const Status s = disc::parse_loader(name, &loader); !s.ok()) return disc::set_last_error(s);
  disc::override_loader(name ? static_cast<int>(loader) : -1);
  return 0;
}

int32_t disc_share_packs(const char* directory, int64_t limit_bytes) {
  return guarded([&] {
    if (!directory && !disc::environment().error.ok()) return disc::set_last_error(disc::environment().error);
    return disc::set_last_error(disc::Packs::get().share(directory, limit_bytes));
  });
}

const char* disc_packs_directory(void) {
  thread_local std::string text;
  text = disc::Packs::get().directory();
  return text.c_str();
}

const char* disc_packs_problem(void) {
  thread_local std::string text;
  text = disc::Packs::get().problem();
  return text.c_str();
}

int32_t disc_set_trust(const char* file) {
  return guarded([&] {
    std::string path;
    Status s = file ? disc::absolute_path(file, &path) : Status();
    disc::override_trust_file(file ? &path : nullptr);
    path = disc::trust_file();
    if (s.ok() && !file) s = disc::environment().error;
    if (s.ok() && !path.empty()) s = disc::check_policy(path);
    return disc::set_last_error(s);
  });
}

const char* disc_trust_file(void) {
  thread_local std::string text;
  text = disc::trust_file();
  return text.c_str();
}

int64_t disc_counter(const char* name) {
  struct Counter {
    const char* name;
    int64_t (*value)();
  };
  static constexpr Counter kCounters[] = {
      {"images_loaded", disc::images_loaded},
      {"images_live", disc::images_live},
      {"runs", disc::run_counter},
      {"kernels", disc::kernel_counter},
      {"parallel_launches", disc::launch_counter},
      {"prepared_built", [] { return disc::PreparedCache::get().built(); }},
      {"prepared_live_bytes", disc::prepared_live_bytes},
      {"packs_loaded", [] { return disc::Packs::get().loaded(); }},
      {"packs_written", [] { return disc::Packs::get().written(); }},
      {"packs_refused", [] { return disc::Packs::get().refused(); }},
      {"packs_unwritten", [] { return disc::Packs::get().unwritten(); }},
      {"packs_mapped_bytes", disc::packs_mapped_bytes},
      {"signatures_accepted", disc::signatures_accepted},
      {"signatures_refused", disc::signatures_refused},
      {"arena_in_use_bytes", [] { return disc::MemoryPool::get().in_use(); }},
      {"arena_kept_bytes", [] { return disc::MemoryPool::get().kept(); }},
      {"arena_peak_bytes", [] { return disc::MemoryPool::get().peak(); }},
      {"worker_threads", [] { return static_cast<int64_t>(disc::ThreadPool::get().workers()); }},
  };
  for (const Counter& c : kCounters)
    if (std::strcmp(c.name, name) == 0) return c.value();
  return -1;
}

void disc_trim(void) { disc::MemoryPool::get().trim(); }

int32_t disc_last_error_code(void) { return disc::last_error().code; }
const char* disc_last_error(void) { return disc::last_error().message.c_str(); }
const char* disc_last_error_node(void) { return disc::last_error().node.c_str(); }

const disc_ral_functions* disc_ral_get(uint32_t api_version) {
  static const disc_ral_functions functions = {
      sizeof(disc_ral_functions), DISC_RAL_API_VERSION, disc_load, disc_close, disc_num_args, disc_num_results, disc_arg, disc_result,
      disc_execute, disc_last_error_code, disc_last_error, disc_last_error_node, disc_trust_file, disc_content_hash};
  return api_version == DISC_RAL_API_VERSION ? &functions : nullptr;
}
