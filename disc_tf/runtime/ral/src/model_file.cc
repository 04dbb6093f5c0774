#include "model_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace disc {

Status FileMap::open(const std::string& path, std::shared_ptr<const FileMap>* out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Status(errno == ENOENT ? kNotFound : kFailedPrecondition, "cannot open " + path + ": " + std::strerror(errno));
  struct stat st{};
  Status status;
  void* p = MAP_FAILED;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
    status = Status(kInvalidArgument, path + " is not a regular file");
  else if (st.st_size == 0)
    status = Status(kInvalidArgument, path + " is empty");
  else if ((p = mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
    status = Status(kFailedPrecondition, "cannot map " + path + ": " + std::strerror(errno));
  close(fd);
  if (!status.ok()) return status;
  std::shared_ptr<FileMap> map(new FileMap);
  map->data_ = static_cast<uint8_t*>(p);
  map->size_ = static_cast<size_t>(st.st_size);
  *out = std::move(map);
  return Status();
}

FileMap::~FileMap() {
  if (data_) munmap(data_, size_);
}

Status load_model_file(const std::string& path, std::shared_ptr<Executable>* executable, std::shared_ptr<const Bound>* bound) {
  auto b = std::make_shared<Bound>();
  if (Status s = FileMap::open(path, &b->file); !s.ok()) return s;
  std::vector<ConstantSpec> constants;
  if (Status s = Executable::load(b->file->data(), b->file->size(), executable, &constants); !s.ok())
    return Status(s.code, path + ": " + s.message);
  const auto& args = (*executable)->artifact().args;
  b->has.resize(args.size());
  b->values.resize(args.size());
  for (const ConstantSpec& c : constants) {
    const std::vector<int64_t>& dims = args[c.arg].dims;
    b->has[c.arg] = 1;
    b->values[c.arg] = {const_cast<uint8_t*>(c.data), static_cast<int64_t>(dims.size()), dims.data()};
  }
  *bound = std::move(b);
  return Status();
}

}  // namespace disc
