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
#include <fstream>
#include <optional>
#include <sstream>

namespace headrace::cli {
namespace {

std::string first_line(std::uint64_t bytes, std::uint64_t plan) {
  return fmt::format("headrace pull 1 {} {:016x}", bytes, plan);
}

/// The complete tensors that the state file lists; nullopt if it belongs to another plan or is no state file.
std::optional<std::map<std::uint64_t, std::uint64_t>> read_state(const std::string& path, std::uint64_t bytes,
                                                                 std::uint64_t plan) {
  std::ifstream file(path);
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
  file.part_ =
      FileDescriptor(::open(file.part_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.part_)
    return fail(Code::invalid_argument, "opening {} for writing: {}", file.part_path_, system_text());
  if (::flock(file.part_.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(Code::would_block, "another process is writing {}: wait for it, or choose another --output",
                file.part_path_);

  struct stat status {};
  ::fstat(file.part_.get(), &status);
  auto before = resume ? read_state(file.state_path_, bytes, plan) : std::nullopt;
  if (before && static_cast<std::uint64_t>(status.st_size) == bytes) {
    file.complete_ = std::move(*before);
  } else {
    file.started_over_ = resume && status.st_size != 0;
    ::unlink(file.state_path_.c_str());
    if (::ftruncate(file.part_.get(), 0) != 0)
      return fail(Code::internal, "emptying {}: {}", file.part_path_, system_text());
  }
  // Allocate first: if the disk were full at a later write through the mapping, that would be a SIGBUS.
  if (const int error = ::posix_fallocate(file.part_.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    if (file.complete_.empty()) ::unlink(file.part_path_.c_str());
    return no_room(file.part_path_, bytes, error);
  }
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.part_.get(), 0);
  if (mapped == MAP_FAILED)
    return fail(Code::exhausted, "mapping {}, {} bytes: {}", file.part_path_, bytes, system_text());
  file.bytes_ = {static_cast<std::byte*>(mapped), bytes};

  const bool fresh = file.complete_.empty();
  file.state_ = FileDescriptor(
      ::open(file.state_path_.c_str(),
             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | (fresh ? O_TRUNC : 0), 0666));
  if (!file.state_)
    return fail(Code::invalid_argument, "opening {} for writing: {}", file.state_path_, system_text());
  // When resuming, write a line end first: the last line may have been cut off.
  HEADRACE_CLI_CHECK(
      write_all(file.state_.get(), fresh ? first_line(bytes, plan) + "\n" : "\n", file.state_path_));
  return file;
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
