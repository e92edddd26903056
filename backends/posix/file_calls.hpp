// SPDX-License-Identifier: Apache-2.0
// The system calls on an open file, which tests can replace.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

namespace headrace::posix {

/// Each returns what the system call returns: a count, or -1 with errno.
///   threads  any
class FileCalls {
 public:
  FileCalls() = default;
  FileCalls(const FileCalls&) = delete;
  FileCalls& operator=(const FileCalls&) = delete;
  virtual ~FileCalls() = default;

  virtual ssize_t read(int fd, const iovec* parts, int count, off_t offset) const {
    return ::preadv(fd, parts, count, offset);
  }
  virtual ssize_t write(int fd, const iovec* parts, int count, off_t offset) const {
    return ::pwritev(fd, parts, count, offset);
  }

  /// The system's calls.
  static const FileCalls& system() {
    static const FileCalls calls;
    return calls;
  }
};

}  // namespace headrace::posix
