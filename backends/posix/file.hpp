// SPDX-License-Identifier: Apache-2.0
// An open regular file: stretches of it read into memory and written from it, whole or with a sentence that
// says why not.
//
// The system may move less than it was asked to, be interrupted, or refuse; here that becomes either all of
// the bytes or one error with the file, the place and what to do.
#pragma once

#include "backends/posix/file_calls.hpp"
#include "base/unique_fd.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdint>
#include <span>
#include <string>

namespace headrace::posix {

/// How far a move came. `status` is ok and `text` empty if it came to the end.
struct Moved {
  std::uint64_t bytes = 0;
  Status status;
  std::string text;
};

/// Any thread.
class File {
 public:
  /// Opens the path, for reading and writing or, if the region is read-only, for reading; or takes a second
  /// descriptor of the open file, which stays open as it is.
  ///   errors   invalid_argument (no regular file, a descriptor that cannot be used), not_found (no such
  ///            file), others as the system says
  [[nodiscard]] static Result<File> open(const headrace_region_v1& region,
                                         const FileCalls& calls = FileCalls::system());

  /// Moves between the parts, in their order, and the stretch of the file that begins at `offset`:
  /// HEADRACE_READ into the parts, HEADRACE_WRITE from them. Waits for the file system.
  ///   shapes   1 to IOV_MAX parts, none empty; what they say is spent on the way
  ///   errors   invalid_argument (read beyond the end, not open for this, O_DIRECT and not aligned),
  ///            exhausted (no space), backend_failed (the device)
  [[nodiscard]] Moved move(headrace_op_v1 op, std::span<iovec> parts, std::uint64_t offset) const;

  /// Its path, or the number and path behind a descriptor: for people.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  File(UniqueFd fd, std::string name, int flags, const FileCalls& calls)
      : fd_(std::move(fd)), name_(std::move(name)), flags_(flags), calls_(&calls) {}

  [[nodiscard]] Moved refused(headrace_op_v1 op, std::uint64_t offset, std::uint64_t bytes) const;
  [[nodiscard]] Moved failed(int error, headrace_op_v1 op, std::uint64_t offset, std::uint64_t bytes) const;
  [[nodiscard]] Moved beyond_end(std::uint64_t offset, std::uint64_t bytes) const;
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] std::string alignment() const;

  UniqueFd fd_;
  std::string name_;
  int flags_;  // as F_GETFL told them
  const FileCalls* calls_;
};

}  // namespace headrace::posix
