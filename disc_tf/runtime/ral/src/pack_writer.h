// Writing into a directory of packs: whole files or nothing, room for them, and what dead writers left.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "status.h"

namespace disc {

// Writes header and data under a name of its own and renames that to `name`; without `replace` a file that is there by then stays, and *written is
// false: of processes that start at once, all map the same file. limit: bytes that all packs may take, 0 for no limit; to keep it,
// packs that no process has taken for an hour are deleted, longest unused first.
Status write_pack(int directory, const std::string& name, const std::string& header, const void* data, size_t size, int64_t limit, bool replace,
                  bool* written);

// Notes in the file's time of change that it is in use (hourly: it is a write).
void mark_as_used(int fd, const struct stat& st);

}  // namespace disc
