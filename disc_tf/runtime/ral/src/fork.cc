#include "fork.h"

#include <pthread.h>

#include <mutex>

#include "executable.h"
#include "memory.h"
#include "packs.h"
#include "prepared.h"
#include "profile.h"
#include "thread_pool.h"

namespace disc {
namespace {

// The order in which code of the RAL nests these locks.
void before() {
  Executable::lock_for_fork();
  PreparedCache::get().lock_for_fork();
  Packs::get().lock_for_fork();
  ThreadPool::before_fork();
  MemoryPool::get().lock_for_fork();
  lock_profile_for_fork();
}

void in_parent() {
  unlock_profile_after_fork(false);
  MemoryPool::get().unlock_after_fork();
  ThreadPool::after_fork_in_parent();
  Packs::get().unlock_after_fork();
  PreparedCache::get().unlock_after_fork(false);
  Executable::unlock_after_fork();
}

void in_child() {
  unlock_profile_after_fork(true);
  MemoryPool::get().unlock_after_fork();
  ThreadPool::after_fork_in_child();
  Packs::get().unlock_after_fork();
  PreparedCache::get().unlock_after_fork(true);
  Executable::unlock_after_fork();
}

}  // namespace

void install_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(before, in_parent, in_child); });
}

}  // namespace disc
