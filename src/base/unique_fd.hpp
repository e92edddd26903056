// SPDX-License-Identifier: Apache-2.0
// A file descriptor with one owner, which closes it.
#pragma once

#include "base/errors.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace headrace {

class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  /// Takes ownership of `fd`; a negative number means "none".
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  explicit operator bool() const noexcept { return valid(); }

  /// Gives up ownership without closing.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  /// Closes the held descriptor and takes ownership of `fd`. Keeps errno.
  void reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old < 0 || old == fd) return;
    const int saved = errno;
    ::close(old);  // on Linux the descriptor is closed even on EINTR: a second close could hit another file
    errno = saved;
  }

  /// A second descriptor of the same open file, close-on-exec.
  [[nodiscard]] Result<UniqueFd> dup() const {
    const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return os_error(errno, "duplicate descriptor {}", fd_);
    return UniqueFd(copy);
  }

 private:
  int fd_ = -1;
};

}  // namespace headrace
