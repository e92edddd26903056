// SPDX-License-Identifier: Apache-2.0
#include "formats/mapped_file.hpp"

#include "base/errors.hpp"
#include "base/unique_fd.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

namespace headrace::formats {

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    return os_error(errno == ENOENT ? Code::not_found : Code::invalid_argument, errno, "opening {}", path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return os_error(Code::internal, errno, "looking at {}", path);
  if (!S_ISREG(status.st_mode)) return make_error(Code::invalid_argument, "{} is not a regular file", path);
  if (status.st_size == 0) return make_error(Code::invalid_argument, "{} is empty", path);
  const auto length = static_cast<std::size_t>(status.st_size);
  void* const mapped = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) return os_error(Code::exhausted, errno, "mapping {}, {} bytes", path, length);
  return MappedFile({static_cast<const std::byte*>(mapped), length});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace headrace::formats
