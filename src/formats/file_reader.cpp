// SPDX-License-Identifier: Apache-2.0
#include "formats/file_reader.hpp"

#include <sys/stat.h>

namespace headrace::formats {

Result<FileReader> FileReader::open(const std::string& path) {
  FileReader reader;
  reader.path_ = path;
  // Opening a FIFO would wait for a writer before its type can be checked.
  reader.file_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!reader.file_)
    return os_error(errno == ENOENT || errno == ENOTDIR ? Code::not_found : Code::invalid_argument, errno,
                    "open {}", path);
  struct stat status {};
  if (::fstat(reader.file_.get(), &status) != 0) return os_error(errno, "read the state of {}", path);
  if (!S_ISREG(status.st_mode)) return make_error(Code::invalid_argument, "{} is not a regular file", path);
  reader.bytes_ = static_cast<std::uint64_t>(status.st_size);
  reader.changed_ns_ = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return reader;
}

Result<void> FileReader::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(errno, "read {}", path_);
    if (got == 0) return make_error(Code::corrupt, "it ends at byte {}, before it should", offset);
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace headrace::formats
