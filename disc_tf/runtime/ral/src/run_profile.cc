// What runs that are recorded call: the functions of the RAL with clocks around them.
#include "profile.h"
#include "run.h"
#include "thread_pool.h"

namespace disc {
namespace {

const char* name_of(const disc_context* c) { return c->executable().artifact().name.c_str(); }
const char* result_name(const disc_context* c, int32_t i) {
  const auto& results = c->executable().artifact().results;
  return i >= 0 && static_cast<size_t>(i) < results.size() ? results[static_cast<size_t>(i)].name.c_str() : "";
}
bool all() { return profile_level() == kProfileAll; }

// Stands in for a kernel in a launch on several threads: the pool needs to know nothing of profiles.
struct Watched {
  disc_kernel_args args;  // first: what the pool passes on leads here
  disc_kernel_fn fn;
  const disc_kernel_args* inner;
  const disc_context* context;
  const char* name;
};

void watched_kernel(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  const auto* w = reinterpret_cast<const Watched*>(a);
  const Recorded chunk(true, w->context->recording(), DISC_EVENT_CHUNK, w->context->number(), name_of(w->context), w->name, begin, end);
  w->fn(w->inner, begin, end, scratch);
}

int32_t parallel_for(disc_context* c, disc_kernel_fn fn, const disc_kernel_args* args, int64_t tasks, int64_t grain, int64_t scratch) {
  const char* symbol = c->executable().image().name_of(reinterpret_cast<const void*>(fn));
  ThreadPool::Work work;
  work.tasks = tasks;
  work.grain = grain > 0 ? grain : 1;
  work.max_threads = c->max_threads();
  const int width = tasks > 0 ? ThreadPool::get().width(work) : 1;
  const bool alone = width <= 1;
  const Watched watched{*args, fn, args, c, symbol};
  const bool split = !alone && all();
  disc_event event{sizeof(disc_event), DISC_EVENT_KERNEL, 0, 0, c->number(), name_of(c), symbol, 0, 0, 0, tasks, width};
  // The clock that counts stands next to the launch: on the time axis the wall's, for the times of kernels the processor's.
  const bool outer = alone && all();
  int64_t before = outer ? processor_clock() : 0;
  event.begin_ns = wall_clock();
  if (alone && !outer) before = processor_clock();
  const int32_t rc = c->parallel_for(split ? watched_kernel : fn, split ? &watched.args : args, tasks, grain, scratch);
  if (alone && !outer) event.processor_ns = processor_clock() - before;
  event.end_ns = wall_clock();
  if (outer) event.processor_ns = processor_clock() - before;
  if (tasks > 0) profile_record(c->recording(), event);
  return rc;
}

int32_t dispatch(disc_context* c, const char* name, void* const* args, const int64_t* scalars) {
  const Recorded call(all(), c->recording(), DISC_EVENT_LIBRARY, c->number(), name_of(c), name);
  return c->dispatch(name, args, scalars);
}

void* arena(disc_context* c, int32_t slot, int64_t bytes) {
  const Recorded call(all() && bytes > 0, c->recording(), DISC_EVENT_ARENA, c->number(), name_of(c), "", slot, bytes);
  return c->arena(slot, bytes);
}

const void* prepared(disc_context* c, int32_t index) {
  Recorded call(all() && !c->has_prepared(index), c->recording(), DISC_EVENT_PREPARE, c->number(), name_of(c), "", index);
  const int64_t before = c->builds();
  const void* data = c->prepared(index);
  call.set_second(c->builds() > before);
  return data;
}

void* alloc_output(disc_context* c, int32_t index, int32_t rank, const int64_t* dims) {
  const Recorded call(all(), c->recording(), DISC_EVENT_OUTPUT, c->number(), name_of(c), result_name(c, index), index);
  return c->alloc_output(index, rank, dims);
}

int32_t send_output(disc_context* c, int32_t index) {
  const Recorded call(all(), c->recording(), DISC_EVENT_SEND, c->number(), name_of(c), result_name(c, index), index);
  return c->send_output(index);
}

}  // namespace

const disc_api* profiled_api_table() {
  static const disc_api table = [] {
    disc_api a = *api_table();
    a.parallel_for = parallel_for;
    a.dispatch = dispatch;
    a.arena = arena;
    a.prepared = prepared;
    a.alloc_output = alloc_output;
    a.send_output = send_output;
    return a;
  }();
  return &table;
}

}  // namespace disc
