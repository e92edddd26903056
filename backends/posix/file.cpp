// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/file.hpp"

#include "base/errors.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <climits>
#include <limits>

namespace headrace::posix {
namespace {

constexpr mode_t new_file_mode = 0666;  // reduced by the process's umask

std::string descriptor_name(int fd) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length =
      ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target.data(), target.size());
  if (length <= 0) return fmt::format("of descriptor {}", fd);
  return fmt::format("{} (descriptor {})", std::string_view(target.data(), static_cast<std::size_t>(length)),
                     fd);
}

std::string_view type_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory: name a file in it";
  if (S_ISBLK(mode)) return "a block device, which this backend does not move: use a file";
  if (S_ISFIFO(mode) || S_ISSOCK(mode)) return "a pipe or socket, which has no offsets: use a regular file";
  return "not a regular file: use one";
}

Result<void> check_type(const struct stat& found, const std::string& name) {
  if (S_ISREG(found.st_mode)) return {};
  return make_error(Code::invalid_argument, "{} is {}", name, type_name(found.st_mode));
}

Error cannot_open(int error, const std::string& path, int flags) {
  const bool reads_only = (flags & O_ACCMODE) == O_RDONLY;
  if (error == ENOENT || error == ENOTDIR)
    return os_error(Code::not_found, error,
                    "open file {}: create it first, or pass a descriptor that was opened with O_CREAT", path);
  const bool may_be_read =
      !reads_only && (error == EACCES || error == EPERM || error == EROFS || error == ETXTBSY);
  return os_error(error, "open file {} for reading{}{}", path, reads_only ? "" : " and writing",
                  may_be_read ? " (to only read it, register it as not writable)" : "");
}

Result<UniqueFd> open_path(const std::string& path, int flags) {
  // Checked before the open: opening a pipe waits for its other end, and opening a device may have effects.
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0) {
    HEADRACE_TRY_VOID(check_type(found, path));
  } else if ((flags & O_CREAT) == 0) {
    return cannot_open(errno, path, flags);
  }
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, new_file_mode));
  if (!fd) return cannot_open(errno, path, flags);
  return fd;
}

/// The region says whether the file may be written; the host's flags say everything else.
int open_flags(const headrace_region_v1& region) {
  const bool read_only = (region.flags & HEADRACE_REGION_READ_ONLY) != 0;
  return (static_cast<int>(region.file_mode) & ~O_ACCMODE) | (read_only ? O_RDONLY : O_RDWR);
}

Result<UniqueFd> second_of(int descriptor) {
  UniqueFd fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!fd && errno == EBADF)
    return make_error(Code::invalid_argument,
                      "descriptor {} is not open: pass one that stays open until it is registered",
                      descriptor);
  if (!fd) return os_error(errno, "duplicate descriptor {}", descriptor);
  return fd;
}

/// Drops the first `bytes` of the buffers.
std::span<iovec> rest_of(std::span<iovec> parts, std::size_t bytes) {
  while (!parts.empty() && bytes >= parts.front().iov_len) {
    bytes -= parts.front().iov_len;
    parts = parts.subspan(1);
  }
  if (bytes > 0) {
    parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + bytes;
    parts.front().iov_len -= bytes;
  }
  return parts;
}

std::uint64_t length_of(std::span<const iovec> parts) {
  std::uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

Code code_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::exhausted;
    case EBADF:
    case EINVAL:
    case EPERM:
    case EFAULT:
      return Code::invalid_argument;
    default:
      return Code::backend_failed;
  }
}

}  // namespace

Result<File> File::open(const headrace_region_v1& region, const FileCalls& calls) {
  const bool by_path = region.file_fd < 0;
  if (by_path && (region.name == nullptr || *region.name == '\0'))
    return make_error(Code::invalid_argument,
                      "a file needs a path or an open descriptor, and this one has neither");
  std::string name = by_path ? std::string(region.name) : descriptor_name(region.file_fd);
  HEADRACE_TRY(fd, by_path ? open_path(name, open_flags(region)) : second_of(region.file_fd));
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return os_error(errno, "read the state of file {}", name);
  HEADRACE_TRY_VOID(check_type(found, name));
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0) return os_error(errno, "read the open flags of file {}", name);
  if ((flags & O_PATH) != 0)
    return make_error(
        Code::invalid_argument,
        "file {} is open with O_PATH, which allows neither reading nor writing: open it without", name);
  return File(std::move(fd), std::move(name), flags, calls);
}

Moved File::move(headrace_op_v1 op, std::span<iovec> parts, std::uint64_t offset) const {
  const std::uint64_t bytes = length_of(parts);
  if (Moved no = refused(op, offset, bytes); !no.status.ok()) return no;
  std::uint64_t moved = 0;
  while (!parts.empty()) {
    const auto at = static_cast<off_t>(offset + moved);
    const auto count = static_cast<int>(parts.size());
    const ssize_t now = op == HEADRACE_READ ? calls_->read(fd_.get(), parts.data(), count, at)
                                            : calls_->write(fd_.get(), parts.data(), count, at);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) {
      const int error = now < 0 ? errno : 0;
      // With O_DIRECT the rest at the end of the file is unaligned, and the system reports only that.
      const bool ended = op == HEADRACE_READ && (error == 0 || error == EINVAL) && size() < offset + bytes;
      Moved stopped = ended ? beyond_end(offset, bytes) : failed(error, op, offset, bytes);
      stopped.bytes = moved;
      return stopped;
    }
    moved += static_cast<std::uint64_t>(now);
    parts = rest_of(parts, static_cast<std::size_t>(now));
  }
  return {moved, {}, {}};
}

/// Cases in which the system would do something unexpected, or return a text that does not explain it.
Moved File::refused(headrace_op_v1 op, std::uint64_t offset, std::uint64_t bytes) const {
  constexpr auto last = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  const auto wrong = [](std::string text, int error = 0) {
    return Moved{0, {Code::invalid_argument, error}, std::move(text)};
  };
  if (offset > last || bytes > last - offset)
    return wrong(fmt::format("offset {} of file {} is beyond the largest size of a file, {} bytes", offset,
                             name_, last));
  const int access = flags_ & O_ACCMODE;
  if (op == HEADRACE_READ && access == O_WRONLY)
    return wrong(fmt::format("file {} is open for writing only: open it for reading as well", name_), EBADF);
  if (op != HEADRACE_WRITE) return {};
  if (access == O_RDONLY)
    return wrong(fmt::format("file {} is open for reading only: open it for writing as well", name_), EBADF);
  if ((flags_ & O_APPEND) != 0)
    return wrong(fmt::format("file {} is open with O_APPEND, and would be written at its end for any "
                             "offset: open it without",
                             name_),
                 EINVAL);
  return {};
}

Moved File::failed(int error, headrace_op_v1 op, std::uint64_t offset, std::uint64_t bytes) const {
  const bool unaligned = error == EINVAL && (flags_ & O_DIRECT) != 0;
  const std::string what = fmt::format("{} {} bytes at offset {} of file {}",
                                       op == HEADRACE_READ ? "read" : "write", bytes, offset, name_);
  if (error == 0)
    return {0, {Code::backend_failed, EIO}, what + ": the file system moved nothing and did not say why"};
  std::string text = fmt::format("{}: {}", what, os_error_text(error));
  if (unaligned) text += fmt::format(": it is open with O_DIRECT, so for every page {}", alignment());
  if (error == EFAULT) text += ": the memory is gone: keep it until the request has ended";
  return {0, {code_of(error), error}, std::move(text)};
}

Moved File::beyond_end(std::uint64_t offset, std::uint64_t bytes) const {
  return {
      0,
      {Code::invalid_argument},
      fmt::format(
          "read {} bytes at offset {} of file {}, which has {} bytes: end the page at the end of the file",
          bytes, offset, name_, size())};
}

std::uint64_t File::size() const {
  struct stat found {};
  return ::fstat(fd_.get(), &found) == 0 ? static_cast<std::uint64_t>(found.st_size) : 0;
}

/// Asked only when needed: most files are never opened with O_DIRECT.
std::string File::alignment() const {
#ifdef STATX_DIOALIGN
  struct statx found {};
  if (::statx(fd_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 &&
      (found.stx_mask & STATX_DIOALIGN) != 0 && found.stx_dio_offset_align != 0)
    return fmt::format("the address must be a multiple of {}, offset and length of {}",
                       found.stx_dio_mem_align, found.stx_dio_offset_align);
#endif
  struct stat seen {};
  const auto block = ::fstat(fd_.get(), &seen) == 0 ? seen.st_blksize : 4096;
  return fmt::format(
      "address, offset and length must be multiples of the device's block, which is 512 bytes or more: {} "
      "suffices",
      block);
}

}  // namespace headrace::posix
