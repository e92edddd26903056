// SPDX-License-Identifier: Apache-2.0
#include "cli/common/work_folder.hpp"

#include "cli/common/errors.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <random>

namespace headrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "headrace-work-";
constexpr std::size_t digits = 16;

std::string random_name() {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}", prefix, random(), random());
}

bool is_our_name(std::string_view name) {
  return name.size() == prefix.size() + digits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
}

FileDescriptor open_folder(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool is_ours(const fs::path& path) {
  struct stat status {};
  return is_our_name(path.filename().string()) && ::lstat(path.c_str(), &status) == 0 &&
         S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 0077) == 0;
}

/// Removes folders that no process has locked. A process that waits for the lock finds its folder removed:
/// see hold().
void sweep(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (!is_ours(at->path())) continue;
    const FileDescriptor lock = open_folder(at->path());
    std::error_code ignored;
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(at->path(), ignored);
  }
}

/// Locks the folder. False if another process removed it before the lock.
bool hold(const FileDescriptor& lock) {
  struct stat status {};
  return lock && ::flock(lock.get(), LOCK_EX) == 0 && ::fstat(lock.get(), &status) == 0 &&
         status.st_nlink > 0;
}

}  // namespace

Result<WorkFolder> WorkFolder::make() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    return fail(Code::exhausted, "temporary files cannot be made in {}: {}: set TMPDIR to a folder",
                named == nullptr ? "/tmp" : named, error.message());
  }
  sweep(parent);
  for (int attempts = 0; attempts < 100; ++attempts) {
    const std::string path = (parent / random_name()).string();
    if (::mkdir(path.c_str(), 0700) != 0)
      return fail(Code::exhausted, "make a folder {}: {}: set TMPDIR to a folder that can be written to",
                  path, system_text());
    WorkFolder made;
    made.path_ = path;
    made.lock_ = open_folder(path);
    if (hold(made.lock_)) return made;
  }
  return fail(Code::exhausted, "no folder in {} could be locked: set TMPDIR to another folder",
              parent.string());
}

WorkFolder& WorkFolder::operator=(WorkFolder&& other) noexcept {
  if (this == &other) return *this;
  remove();
  path_ = std::exchange(other.path_, {});
  lock_ = std::move(other.lock_);
  return *this;
}

void WorkFolder::remove() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(std::exchange(path_, {}), ignored);
  lock_.reset();
}

}  // namespace headrace::cli
