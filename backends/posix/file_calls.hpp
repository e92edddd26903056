// SPDX-License-Identifier: Apache-2.0
// What is asked of the system about an open file, so that tests can answer in its place.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

namespace headrace::posix {

/// Each answers as the system call does: a count, or -1 and errno. Any thread.
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

  /// The system's own.
  static const FileCalls& system() {
    static const FileCalls calls;
    return calls;
  }
};

}  // namespace headrace::posix
