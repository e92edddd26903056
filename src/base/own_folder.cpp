// SPDX-License-Identifier: Apache-2.0
#include "base/own_folder.hpp"

#include <filesystem>

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr mode_t others_may_write = S_IWGRP | S_IWOTH;

bool has_own_owner(const struct stat& status) noexcept {
  return status.st_uid == ::geteuid() || status.st_uid == 0;
}

Error not_itself(const std::string& path, const char* type) {
  return make_error(Code::invalid_argument,
                    "{} is no {}, or a link to one: links are not followed here, name the {} itself", path,
                    type, type);
}

/// Opens what lies at `path` itself. Opening a FIFO does not wait.
Result<UniqueFd> open_itself(const std::string& path, int flags, const char* type) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags));
  if (fd) return fd;
  if (errno == ELOOP || errno == ENOTDIR) return not_itself(path, type);
  return os_error(errno, "open {}", path);
}

Result<void> check_holder(const std::string& holder) {
  struct stat status {};
  if (::lstat(holder.c_str(), &status) != 0) return os_error(errno, "look at {}", holder);
  if (!S_ISDIR(status.st_mode)) return not_itself(holder, "folder");
  // Nobody but its owner renames or removes a folder in a sticky one.
  if (has_own_owner(status) && (status.st_mode & S_ISVTX) != 0) return {};
  return check_own(status, holder);
}

}  // namespace

bool is_own(const struct stat& status) noexcept {
  return has_own_owner(status) && (status.st_mode & others_may_write) == 0;
}

bool is_own(const std::string& path, mode_t type) noexcept {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == type && is_own(status);
}

Result<void> check_own(const struct stat& status, const std::string& path) {
  if (!has_own_owner(status))
    return make_error(Code::invalid_argument, "{} belongs to user {}: choose one of your own", path,
                      status.st_uid);
  if ((status.st_mode & others_may_write) != 0)
    return make_error(
        Code::invalid_argument,
        "other users may write to {} (mode {:04o}): look at its content, then `chmod go-w {}`, or "
        "choose another",
        path, status.st_mode & 07777U, path);
  return {};
}

Result<void> make_folders(const std::string& path) {
  const fs::path folder = path;
  if (std::error_code none; fs::is_directory(folder, none)) return {};
  if (folder.has_parent_path() && folder.parent_path() != folder)
    HEADRACE_TRY_VOID(make_folders(folder.parent_path().string()));
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return os_error(errno, "make the folder {}", path);
}

Result<UniqueFd> open_own_folder(const std::string& path) {
  HEADRACE_TRY_VOID(make_folders(path));
  HEADRACE_TRY(fd, open_itself(path, O_DIRECTORY, "folder"));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return os_error(errno, "look at {}", path);
  HEADRACE_TRY_VOID(check_own(status, path));
  return fd;
}

Result<UniqueFd> open_own_folder_within(const std::string& path) {
  HEADRACE_TRY(fd, open_own_folder(path));
  const fs::path holder = fs::path(path).parent_path();
  HEADRACE_TRY_VOID(check_holder(holder.empty() ? "." : holder.string()));
  return fd;
}

Result<UniqueFd> open_own_file(const std::string& path) {
  HEADRACE_TRY(fd, open_itself(path, 0, "file"));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return os_error(errno, "look at {}", path);
  if (!S_ISREG(status.st_mode)) return not_itself(path, "file");
  HEADRACE_TRY_VOID(check_own(status, path));
  return fd;
}

}  // namespace headrace
