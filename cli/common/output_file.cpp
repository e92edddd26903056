// SPDX-License-Identifier: Apache-2.0
#include "cli/common/output_file.hpp"

#include "cli/common/errors.hpp"
#include "cli/common/text.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>

namespace headrace::cli {
namespace {

constexpr off_t most_state_bytes = off_t{1} << 28;  // a line of at most 38 bytes a tensor

std::string first_line(std::uint64_t bytes, std::uint64_t plan) {
  return fmt::format("headrace pull 1 {} {:016x}", bytes, plan);
}

/// Opens a file of a pull, or makes it for this user alone. What lies there may come from anybody: it follows
/// no link, never waits, and takes only a file that this user alone can have written.
Result<FileDescriptor> open_own(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file) return fail(Code::invalid_argument, "opening {} for writing: {}", path, system_text());
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
      (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 && status.st_nlink == 1)
    return file;
  return fail(Code::invalid_argument,
              "{} is no file that a pull of this user has made (its user is {}, its mode {:o}, and it has {} "
              "names): remove it, or choose another --output",
              path, status.st_uid, status.st_mode, status.st_nlink);
}

/// The text of a state file; empty if it is longer than any that a pull writes.
std::string state_text(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size > most_state_bytes) return {};
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t bytes = ::pread(fd, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return text;
}

/// The complete tensors that the state file lists; nullopt if it belongs to another plan or is no state file.
std::optional<std::map<std::uint64_t, std::uint64_t>> read_state(int fd, std::uint64_t bytes,
                                                                 std::uint64_t plan) {
  std::istringstream file(state_text(fd));
  std::string line;
  if (!std::getline(file, line) || line != first_line(bytes, plan)) return std::nullopt;
  std::map<std::uint64_t, std::uint64_t> complete;
  // A kill may have cut off the last line: without a line end it does not count.
  while (std::getline(file, line) && !file.eof()) {
    std::istringstream words(line);
    std::uint64_t part = 0, checksum = 0;
    if (words >> part >> std::hex >> checksum) complete[part] = checksum;
  }
  return complete;
}

/// What a file of this user gets that is no part any more. Asking for the mask means setting it.
mode_t usual_mode() {
  const mode_t mask = ::umask(0077);
  ::umask(mask);
  return 0666 & ~mask;
}

Error not_written(const std::string& path) {
  return fail(errno == ENOSPC ? Code::exhausted : Code::internal, "writing {}: {}", path, system_text());
}

Result<void> write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return not_written(path);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Error no_room(const std::string& path, std::uint64_t bytes, int error) {
  std::string free;
  struct statvfs disk {};
  const std::string folder = std::filesystem::path(path).parent_path();
  if (::statvfs(folder.empty() ? "." : folder.c_str(), &disk) == 0)
    free = fmt::format("; the disk has {} free", amount_text(disk.f_bavail * disk.f_frsize));
  return fail(Code::exhausted, "allocating {} of disk for {}: {}{}", amount_text(bytes), path,
              system_text(error), free);
}

}  // namespace

Result<OutputFile> OutputFile::open(const std::string& path, std::uint64_t bytes, std::uint64_t plan,
                                    bool resume) {
  HEADRACE_CLI_CHECK(check_output(path, IfTaken::replace));
  OutputFile file;
  file.path_ = path;
  file.part_path_ = path + ".part";
  file.state_path_ = file.part_path_ + ".state";
  HEADRACE_CLI_TRY(part, open_own(file.part_path_, O_RDWR));
  file.part_ = std::move(part);
  if (::flock(file.part_.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(Code::would_block, "another process is writing {}: wait for it, or choose another --output",
                file.part_path_);
  HEADRACE_CLI_TRY(state, open_own(file.state_path_, O_RDWR | O_APPEND));
  file.state_ = std::move(state);
  HEADRACE_CLI_CHECK(file.resume_or_start(bytes, plan, resume));
  HEADRACE_CLI_CHECK(file.map(bytes));
  // When resuming, write a line end first: the last line may have been cut off.
  const std::string begin = file.complete_.empty() ? first_line(bytes, plan) + "\n" : "\n";
  HEADRACE_CLI_CHECK(write_all(file.state_.get(), begin, file.state_path_));
  return file;
}

Result<void> OutputFile::resume_or_start(std::uint64_t bytes, std::uint64_t plan, bool resume) {
  struct stat status {};
  ::fstat(part_.get(), &status);
  auto before = resume ? read_state(state_.get(), bytes, plan) : std::nullopt;
  if (before && static_cast<std::uint64_t>(status.st_size) == bytes) {
    complete_ = std::move(*before);
  } else {
    started_over_ = resume && status.st_size != 0;
    if (::ftruncate(part_.get(), 0) != 0)
      return fail(Code::internal, "emptying {}: {}", part_path_, system_text());
  }
  if (complete_.empty() && ::ftruncate(state_.get(), 0) != 0)
    return fail(Code::internal, "emptying {}: {}", state_path_, system_text());
  return {};
}

Result<void> OutputFile::map(std::uint64_t bytes) {
  // Allocate first: if the disk were full at a later write through the mapping, that would be a SIGBUS.
  if (const int error = ::posix_fallocate(part_.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    if (complete_.empty()) {
      ::unlink(part_path_.c_str());
      ::unlink(state_path_.c_str());
    }
    return no_room(part_path_, bytes, error);
  }
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, part_.get(), 0);
  if (mapped == MAP_FAILED)
    return fail(Code::exhausted, "mapping {}, {} bytes: {}", part_path_, bytes, system_text());
  bytes_ = {static_cast<std::byte*>(mapped), bytes};
  return {};
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      part_path_(std::move(other.part_path_)),
      state_path_(std::move(other.state_path_)),
      part_(std::move(other.part_)),
      state_(std::move(other.state_)),
      bytes_(std::exchange(other.bytes_, {})),
      complete_(std::move(other.complete_)),
      started_over_(other.started_over_) {}

OutputFile::~OutputFile() { unmap(); }

void OutputFile::unmap() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

Result<void> OutputFile::write(std::uint64_t offset, std::span<const std::byte> part) {
  while (!part.empty()) {
    const ssize_t n = ::pwrite(part_.get(), part.data(), part.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return not_written(part_path_);
    offset += static_cast<std::uint64_t>(n);
    part = part.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> OutputFile::note_complete(std::uint64_t part, std::uint64_t checksum) {
  return write_all(state_.get(), fmt::format("{} {:016x}\n", part, checksum), state_path_);
}

Error name_taken(const std::string& path) {
  return fail(Code::invalid_argument, "{} exists: --force replaces it, or choose another --output", path);
}

Result<void> check_output(const std::string& path, IfTaken if_taken) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    return fail(Code::invalid_argument, "{} is a folder: --output names the file to write", path);
  if (if_taken == IfTaken::keep && std::filesystem::exists(std::filesystem::symlink_status(path, none)))
    return name_taken(path);
  return {};
}

bool give_name(const std::string& from, const std::string& to, IfTaken if_taken) {
  if (if_taken == IfTaken::replace) return ::rename(from.c_str(), to.c_str()) == 0;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  return (errno == EINVAL || errno == ENOSYS) && ::rename(from.c_str(), to.c_str()) == 0;
}

Result<void> OutputFile::finish(bool sync, IfTaken if_taken) {
  unmap();
  static_cast<void>(::fchmod(part_.get(), usual_mode()));
  if (sync && ::fdatasync(part_.get()) != 0)
    return fail(Code::internal, "writing {} to the disk: {}", part_path_, system_text());
  if (!give_name(part_path_, path_, if_taken)) {
    if (errno == EEXIST)
      return fail(Code::invalid_argument,
                  "another process has made {} during the pull: the pulled tensors are in {}. Move one of "
                  "the two, or pull again with --force",
                  path_, part_path_);
    return fail(Code::internal, "renaming {} to {}: {}", part_path_, path_, system_text());
  }
  ::unlink(state_path_.c_str());
  return {};
}

}  // namespace headrace::cli
