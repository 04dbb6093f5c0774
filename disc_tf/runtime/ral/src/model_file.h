// A stand-alone file: an artefact that holds the values of its constants, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "disc_ral.h"
#include "executable.h"
#include "status.h"

namespace disc {

// The file in memory. Lives as long as an executable of it or a run in that: the pages are the file's own, shared by every process that
// maps it.
class FileMap {
 public:
  static Status open(const std::string& path, std::shared_ptr<const FileMap>* out);
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  FileMap() = default;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Arguments whose values the file has, ready to be given to a run.
struct Bound {
  std::shared_ptr<const FileMap> file;
  std::vector<uint8_t> has;         // by argument
  std::vector<disc_memref> values;  // by argument; dims point into the executable's signature
};

// Maps and loads `path`; gives the executable and what the file binds (for a file without constants: nothing).
Status load_model_file(const std::string& path, std::shared_ptr<Executable>* executable, std::shared_ptr<const Bound>* bound);

}  // namespace disc
