// fork(): the child must find every lock of the RAL free and no trace of threads that it does not have.
#pragma once

namespace disc {

// Idempotent; to be called before the first lock or thread of the RAL is used.
void install_fork_handlers();

}  // namespace disc
