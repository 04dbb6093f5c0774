#include "disc_host.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "last_error.h"

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kHuge = int64_t{4} << 20;  // from here on huge pages are worth asking for

disc_host_python g_python = {};

template <typename T>
T* at(void* host, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(host) + offset);
}
disc_host_result& result_of(void* host, int32_t index) { return at<disc_host_result>(host, static_cast<disc_host*>(host)->results_at)[index]; }
disc_host_input& input_of(void* host, int32_t index) { return at<disc_host_input>(host, static_cast<disc_host*>(host)->inputs_at)[index]; }

// The extents that came out, in the place for them; false where memory was given for others.
bool take_dims(void* host, disc_host_result& r, int32_t rank, const int64_t* dims) {
  if (rank != r.rank) return false;
  int64_t* mine = at<int64_t>(host, r.dims_at);
  const bool fits = !r.given || std::equal(dims, dims + rank, mine);
  std::copy(dims, dims + rank, mine);
  if (!fits) r.state = DISC_HOST_MISFIT;
  return fits;
}

void* pointer(void* capsule) { return g_python.pointer(capsule, nullptr); }

void destroy_block(void* capsule) {
  void* host = pointer(capsule);
  for (int64_t i = 0; i < static_cast<disc_host*>(host)->num_results; ++i) {
    const disc_host_result& r = result_of(host, static_cast<int32_t>(i));
    if (r.state == DISC_HOST_MADE && !r.given) std::free(r.data);
  }
  std::free(host);
}
void destroy_memory(void* capsule) { std::free(pointer(capsule)); }
void destroy_executable(void* capsule) { disc_close(static_cast<disc_exec*>(pointer(capsule))); }
void destroy_run(void* capsule) {
  disc_host_end(pointer(capsule));
  std::free(pointer(capsule));
}

}  // namespace

extern "C" {

void* disc_host_alloc_output(void* host, int32_t index, int32_t rank, const int64_t* dims, int64_t bytes) {
  disc_host_result& r = result_of(host, index);
  if (!take_dims(host, r, rank, dims)) return nullptr;
  void* data = r.given;
  if (!data && bytes > 0) {
    const size_t size = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    data = std::aligned_alloc(kAlignment, size);
    if (!data) return nullptr;
    if (bytes >= kHuge) {
      const uintptr_t page = 4095, first = (reinterpret_cast<uintptr_t>(data) + page) & ~page;
      madvise(reinterpret_cast<void*>(first), size - (first - reinterpret_cast<uintptr_t>(data)), MADV_HUGEPAGE);  // only advice
    }
  }
  r.data = data;
  r.state = DISC_HOST_MADE;
  return data;
}

int32_t disc_host_alias_output(void* host, int32_t index, int32_t input, int32_t rank, const int64_t* dims) {
  disc_host_result& r = result_of(host, index);
  if (r.given) return DISC_COPY;
  if (!take_dims(host, r, rank, dims)) return 13;
  r.source = input;
  r.state = DISC_HOST_VIEW;
  return 0;
}

int32_t disc_host_send_output(void* host, int32_t index) {
  auto* h = static_cast<disc_host*>(host);
  at<int64_t>(host, h->sent_at)[h->num_sent++] = index;
  if (h->told) h->told(h->user, index);
  return 0;
}

void* disc_host_retain_input(void* host, int32_t index) {
  void* object = input_of(host, index).object;
  if (!object || !g_python.keep) return nullptr;
  const int state = g_python.lock();
  g_python.keep(object);
  g_python.unlock(state);
  return object;
}

void disc_host_release_input(void* object) {
  if (!g_python.alive()) return;  // the language has ended, and the object with it
  const int state = g_python.lock();
  g_python.drop(object);
  g_python.unlock(state);
}

uint64_t disc_host_content(void* host, int32_t index, const void* data, int64_t bytes) {
  disc_host_input& input = input_of(host, index);
  if (!input.known) {
    input.content = disc_content_hash(data, bytes);
    input.known = 1;
  }
  return input.content;
}

void disc_host_set_python(const disc_host_python* functions) { g_python = *functions; }

void* disc_host_block(const void* words, int64_t bytes) {
  void* host = std::malloc(static_cast<size_t>(bytes));
  if (!host) return nullptr;
  std::memcpy(host, words, static_cast<size_t>(bytes));
  void* capsule = g_python.capsule(host, nullptr, destroy_block);
  if (!capsule) std::free(host);
  return capsule;
}

void* disc_host_claim(void* host, int64_t index) {
  disc_host_result& r = result_of(host, static_cast<int32_t>(index));
  void* capsule = g_python.capsule(r.data, nullptr, destroy_memory);
  if (capsule) r.data = nullptr;
  return capsule;
}

void* disc_host_executable(disc_exec* exec) { return g_python.capsule(exec, nullptr, destroy_executable); }

void* disc_host_run(disc_exec* exec, const disc_run_options* options) {
  auto* place = static_cast<disc_run**>(std::calloc(1, sizeof(disc_run*)));
  if (!place) return nullptr;
  void* capsule = g_python.capsule(place, nullptr, destroy_run);
  if (capsule)
    *place = disc_run_begin(exec, options);
  else
    std::free(place);
  return capsule;
}

int32_t disc_host_advance(disc_run* run, int32_t* remaining) {
  disc::Status status;
  try {
    std::thread([&] {
      disc_run_advance(run, remaining);
      status = disc::last_error();
    }).join();
  } catch (const std::system_error&) {
    status = disc::Status(disc::kResourceExhausted, "no thread for the run");
  }
  return disc::set_last_error(status);
}

int32_t disc_host_end(void* place) {
  disc_run* run = std::exchange(*static_cast<disc_run**>(place), nullptr);
  return run ? disc_run_end(run) : 0;
}

}  // extern "C"
