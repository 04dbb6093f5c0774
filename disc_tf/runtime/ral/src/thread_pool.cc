#include "thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>

#include "cpu.h"
#include "float_mode.h"
#include "memory.h"
#include "settings.h"

namespace disc {
namespace {

constexpr size_t kStackSize = size_t{1} << 20;
constexpr int kShare = 2;  // a thread takes at most this part of its fair share of what is left
// A worker stays awake this long after its last job: the kernels of a run follow each other in microseconds.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr size_t kKeptScratch = size_t{4} << 20;
constexpr uint32_t kSleeping = 1u << 31;  // in Job::pending: the caller sleeps

void futex_wait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
// Only the address counts: the word may be gone already, which at worst wakes somebody too early.
void futex_wake(void* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

// Waits actively until `done`, at most kSpin; not at all if `crowded`.
template <typename Done>
bool spin(bool crowded, Done done) {
  if (done()) return true;
  if (crowded) return false;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

// Lives on the launching caller's stack. A worker that took it counts in `pending` and touches nothing of it afterwards.
struct ThreadPool::Job {
  explicit Job(const Work& w) : work(w) {}
  const Work& work;
  int64_t parts = 1;  // a chunk is this share of what is left: large at first, `grain` at the end, so that all threads end together
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint32_t> pending{0};

  void execute(void* scratch) {
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < work.tasks) {
      const int64_t end = std::min(begin + std::max(work.grain, (work.tasks - begin) / parts), work.tasks);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      work.fn(work.args, begin, end, scratch);
      begin = next.load(std::memory_order_relaxed);
    }
  }
};

struct alignas(64) ThreadPool::Worker {
  ThreadPool* pool = nullptr;
  int index = 0;
  alignas(64) std::atomic<Job*> mail{nullptr};
  std::atomic<uint32_t> parked{0};
  MemoryPool::Block scratch;

  // The scratch for a job; false if there is no memory, and then the caller does the work.
  bool provide_scratch(int64_t bytes) {
    if (static_cast<size_t>(bytes) <= scratch.size) return true;
    MemoryPool::get().release(scratch);
    scratch = MemoryPool::get().acquire(static_cast<size_t>(bytes));
    return scratch.data != nullptr;
  }

  Job* wait_for_mail() {
    auto has_mail = [this] { return mail.load(std::memory_order_relaxed) != nullptr; };
    for (;;) {
      if (spin(pool->crowded(), has_mail)) {
        // Null after all if the sender took it back.
        if (Job* job = mail.exchange(nullptr, std::memory_order_acquire)) return job;
        continue;
      }
      if (scratch.size > kKeptScratch) {
        MemoryPool::get().release(scratch);
        scratch = {};
      }
      parked.store(1, std::memory_order_seq_cst);
      if (mail.load(std::memory_order_seq_cst) == nullptr) futex_wait(&parked, 1);
      parked.store(0, std::memory_order_relaxed);
    }
  }
};

std::atomic<ThreadPool*> ThreadPool::instance_{nullptr};

ThreadPool& ThreadPool::get() {
  ThreadPool* pool = instance_.load(std::memory_order_acquire);
  if (pool) return *pool;
  // Never destroyed: threads may still run when the process's destructors do.
  auto* fresh = new ThreadPool;
  if (instance_.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *pool;
}

int ThreadPool::threads() {
  if (const int n = limit_.load(std::memory_order_relaxed); n > 0) return n;
  const int n = environment().num_threads > 0 ? environment().num_threads : usable_cpus();
  int none = 0;
  limit_.compare_exchange_strong(none, std::min(n, kMaxWorkers + 1), std::memory_order_relaxed);
  return limit_.load(std::memory_order_relaxed);
}

void ThreadPool::set_threads(int n) { limit_.store(std::min(n, kMaxWorkers + 1), std::memory_order_relaxed); }

bool ThreadPool::crowded() const {
  return runs_.load(std::memory_order_relaxed) > std::max(1, limit_.load(std::memory_order_relaxed));
}

int ThreadPool::width(const Work& work) {
  if (work.tasks <= work.grain) return 1;
  const int all = threads();
  const int runs = std::max(1, runs_.load(std::memory_order_relaxed));
  int width = std::max(1, (all + runs - 1) / runs);
  if (work.max_threads > 0) width = std::min(width, work.max_threads);
  const int64_t chunks = work.tasks / work.grain + (work.tasks % work.grain != 0);
  return static_cast<int>(std::min<int64_t>(width, chunks));
}

void ThreadPool::run(const Work& work, int width) {
  if (width > 1 && workers() < threads() - 1) start_workers(threads() - 1);
  Job job(work);
  job.parts = static_cast<int64_t>(width) * kShare;

  std::array<Worker*, kMaxWorkers> helpers;
  const int count = width > 1 ? claim(width - 1, helpers.data()) : 0;
  job.pending.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    Worker& w = *helpers[i];
    w.mail.store(&job, std::memory_order_seq_cst);
    if (w.parked.load(std::memory_order_seq_cst) != 0) {
      w.parked.store(0, std::memory_order_relaxed);
      futex_wake(&w.parked);
    }
  }
  job.execute(work.scratch);
  for (int i = 0; i < count; ++i) {  // those that have not begun need not begin
    Job* expected = &job;
    if (!helpers[i]->mail.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel)) continue;
    set_idle(helpers[i]->index);
    job.pending.fetch_sub(1, std::memory_order_relaxed);
  }
  auto done = [&job] { return job.pending.load(std::memory_order_acquire) == 0; };
  if (spin(crowded(), done)) return;
  if (job.pending.fetch_or(kSleeping, std::memory_order_acq_rel) == 0) return;
  for (uint32_t now; (now = job.pending.load(std::memory_order_acquire)) != kSleeping;) futex_wait(&job.pending, now);
}

void* ThreadPool::thread_main(void* argument) {
  Worker& w = *static_cast<Worker*>(argument);
  set_kernel_float_mode();
  for (;;) {
    Job* job = w.wait_for_mail();
    if (w.provide_scratch(job->work.scratch_bytes)) job->execute(w.scratch.data);
    // Idle first: a caller that goes on with its next launch at once should find us.
    w.pool->set_idle(w.index);
    std::atomic<uint32_t>* pending = &job->pending;
    if (pending->fetch_sub(1, std::memory_order_acq_rel) == (kSleeping | 1)) futex_wake(pending);
  }
  return nullptr;
}

void ThreadPool::start_workers(int count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, kStackSize);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;  // signals are for the user's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = workers(); i < std::min(count, kMaxWorkers); ++i) {
    auto* w = new Worker;
    w->pool = this;
    w->index = i;
    slots_[i] = w;
    pthread_t thread;
    if (pthread_create(&thread, &attr, thread_main, w) != 0) {  // fewer threads then; asked again at the next launch
      slots_[i] = nullptr;
      delete w;
      break;
    }
    char name[16];
    std::snprintf(name, sizeof(name), "disc_tf/%d", i);
    pthread_setname_np(thread, name);
    workers_.store(i + 1, std::memory_order_release);
    set_idle(i);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attr);
}

int ThreadPool::claim(int count, Worker** out) {
  int n = 0;
  for (size_t word = 0; word < idle_.size() && n < count; ++word) {
    uint64_t bits = idle_[word].load(std::memory_order_relaxed);
    while (bits != 0 && n < count) {
      const uint64_t bit = bits & -bits;
      bits &= ~bit;
      if (!(idle_[word].fetch_and(~bit, std::memory_order_acquire) & bit)) continue;  // another launch was faster
      out[n++] = slots_[word * 64 + static_cast<size_t>(__builtin_ctzll(bit))];
    }
  }
  return n;
}

void ThreadPool::set_idle(int index) {
  idle_[static_cast<size_t>(index) / 64].fetch_or(uint64_t{1} << (index % 64), std::memory_order_release);
}

void ThreadPool::before_fork() { get().mutex_.lock(); }
void ThreadPool::after_fork_in_parent() { get().mutex_.unlock(); }
void ThreadPool::after_fork_in_child() {
  ThreadPool& old = get();
  auto* fresh = new ThreadPool;  // the old one stays: a forking run still refers to it
  fresh->limit_.store(old.limit_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  old.mutex_.unlock();
  instance_.store(fresh, std::memory_order_release);
}

}  // namespace disc
