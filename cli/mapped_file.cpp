// SPDX-License-Identifier: Apache-2.0
#include "cli/mapped_file.hpp"

#include "cli/errors.hpp"
#include "cli/file_descriptor.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace headrace::cli {

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    return fail(errno == ENOENT ? Code::not_found : Code::invalid_argument, "opening {}: {}", path,
                system_text());
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    return fail(Code::internal, "looking at {}: {}", path, system_text());
  if (!S_ISREG(status.st_mode)) return fail(Code::invalid_argument, "{} is not a regular file", path);
  if (status.st_size == 0) return fail(Code::invalid_argument, "{} is empty", path);
  const auto length = static_cast<std::size_t>(status.st_size);
  void* const mapped = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED)
    return fail(Code::exhausted, "mapping {}, {} bytes: {}", path, length, system_text());
  return MappedFile({static_cast<const std::byte*>(mapped), length});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace headrace::cli
