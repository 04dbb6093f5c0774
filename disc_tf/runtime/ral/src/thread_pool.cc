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
#include <cstddef>
#include <cstdio>
#include <new>

#include "cpu.h"
#include "float_mode.h"
#include "memory.h"
#include "settings.h"

namespace disc {
namespace {

constexpr size_t kStackSize = size_t{1} << 20;
constexpr uint64_t kPiece = 2;  // a thread takes at most this part of what is left of a share
// To wake a thread takes longer than most kernels (a few system calls and, in a virtual machine, an interrupt to another CPU). So a worker
// stays awake while there is a run, up to a bound: until the next kernel that has work for it.
constexpr auto kSpinInRun = std::chrono::microseconds(500);
// and this long when there is none: the next may begin at once
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr size_t kKeptScratch = size_t{4} << 20;
constexpr uint32_t kSleeping = 1u << 31;  // in Job::pending: the caller sleeps

void futex_wait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
// Only the address counts: the word may be gone already, which at worst wakes somebody too early.
void futex_wake(void* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

// Waits actively until `done`, as long as `patience()` says of the time that has passed.
template <typename Done, typename Patience>
bool spin(Done done, Patience patience) {
  if (done()) return true;
  const auto start = std::chrono::steady_clock::now();
  while (patience(std::chrono::steady_clock::now() - start)) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  }
  return done();
}

}  // namespace

// Lives on the launching caller's stack. A worker that took it counts in `pending` and touches nothing of it afterwards.
//
// Each thread has a share of the tasks, the same one in each launch of a size: what it wrote, it finds in its own cache in the next
// kernel. It takes its share from the front in pieces, large at first, `grain` at the end; who is done takes from the back of others'.
struct ThreadPool::Job {
  Job(const Work& w, int threads) : work(w), width(threads) {
    unit = (work.tasks >> 31) + 1;  // tasks that are counted as one, so that two ends fit into a word
    grain = static_cast<uint64_t>((work.grain + unit - 1) / unit);
    const int64_t units = (work.tasks + unit - 1) / unit;
    for (int64_t i = 0; i < width; ++i) {
      const auto begin = static_cast<uint64_t>(units * i / width), end = static_cast<uint64_t>(units * (i + 1) / width);
      new (&storage[i]) std::atomic<uint64_t>(pack(begin, end));
    }
  }
  const Work& work;
  int width;
  int64_t unit;
  uint64_t grain;
  alignas(64) std::atomic<uint32_t> pending{0};
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Line storage[kMaxWorkers + 1];  // only `width` of them are made

  static uint64_t pack(uint64_t begin, uint64_t end) { return end << 32 | begin; }
  std::atomic<uint64_t>& share(int i) { return *std::launder(reinterpret_cast<std::atomic<uint64_t>*>(&storage[i])); }

  void execute(int self, void* scratch) {
    drain(share(self), true, scratch);
    for (int i = 1; i < width; ++i) drain(share((self + i) % width), false, scratch);
  }

  void drain(std::atomic<uint64_t>& range, bool own, void* scratch) {
    uint64_t seen = range.load(std::memory_order_relaxed);
    for (;;) {
      uint64_t begin = seen & 0xffffffff, end = seen >> 32;
      if (begin >= end) return;
      const uint64_t n = std::min(std::max(grain, (end - begin) / kPiece), end - begin);
      if (!range.compare_exchange_weak(seen, own ? pack(begin + n, end) : pack(begin, end - n), std::memory_order_relaxed)) continue;
      if (own)
        end = begin + n;
      else
        begin = end - n;
      work.fn(work.args, static_cast<int64_t>(begin) * unit, std::min(static_cast<int64_t>(end) * unit, work.tasks), scratch);
      seen = range.load(std::memory_order_relaxed);
    }
  }
};

struct alignas(64) ThreadPool::Worker {
  ThreadPool* pool = nullptr;
  int index = 0;
  int part = 0;  // its place in the job in `mail`
  alignas(64) std::atomic<Job*> mail{nullptr};
  std::atomic<uint32_t> parked{0};
  SwitchMeter meter;
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
      if (spin(has_mail, [this](auto passed) { return pool->wanted(passed); })) {
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

void ThreadPool::measure_caller() {
  thread_local SwitchMeter meter;
  measure(meter);
}

void ThreadPool::measure(SwitchMeter& meter) {
  const auto now = std::chrono::steady_clock::now();
  contention_.note(meter.take(involuntary_switches, now), now);
}

bool ThreadPool::worth_waiting(std::chrono::steady_clock::duration passed) const {
  if (!contention_.calm()) return false;
  const int runs = runs_.load(std::memory_order_relaxed);
  if (runs > std::max(1, limit_.load(std::memory_order_relaxed))) return false;  // others need the CPUs
  return passed < (runs > 0 ? kSpinInRun : kSpin);
}

bool ThreadPool::wanted(std::chrono::steady_clock::duration passed) const {
  if (!contention_.calm()) return false;
  const int runs = runs_.load(std::memory_order_relaxed);
  if (runs >= limit_.load(std::memory_order_relaxed)) return false;  // the threads of the runs are all that there may be
  return passed < (runs > 0 ? kSpinInRun : kSpin);
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
  std::array<Worker*, kMaxWorkers> helpers;
  const int count = width > 1 ? claim(width - 1, helpers.data()) : 0;
  Job job(work, count + 1);
  job.pending.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    Worker& w = *helpers[i];
    w.part = i + 1;
    w.mail.store(&job, std::memory_order_seq_cst);
    if (w.parked.load(std::memory_order_seq_cst) != 0) {
      w.parked.store(0, std::memory_order_relaxed);
      futex_wake(&w.parked);
    }
  }
  job.execute(0, work.scratch);
  for (int i = 0; i < count; ++i) {  // those that have not begun need not begin
    Job* expected = &job;
    if (!helpers[i]->mail.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel)) continue;
    set_idle(helpers[i]->index);
    job.pending.fetch_sub(1, std::memory_order_relaxed);
  }
  auto done = [&job] { return job.pending.load(std::memory_order_acquire) == 0; };
  if (spin(done, [this](auto passed) { return worth_waiting(passed); })) return;
  if (job.pending.fetch_or(kSleeping, std::memory_order_acq_rel) == 0) return;
  for (uint32_t now; (now = job.pending.load(std::memory_order_acquire)) != kSleeping;) futex_wait(&job.pending, now);
}

void* ThreadPool::thread_main(void* argument) {
  Worker& w = *static_cast<Worker*>(argument);
  set_kernel_float_mode();
  for (;;) {
    Job* job = w.wait_for_mail();
    if (w.provide_scratch(job->work.scratch_bytes)) job->execute(w.part, w.scratch.data);
    // Idle first: a caller that goes on with its next launch at once should find us.
    w.pool->set_idle(w.index);
    std::atomic<uint32_t>* pending = &job->pending;
    if (pending->fetch_sub(1, std::memory_order_acq_rel) == (kSleeping | 1)) futex_wake(pending);
    w.pool->measure(w.meter);
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
