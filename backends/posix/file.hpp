// SPDX-License-Identifier: Apache-2.0
// An open regular file whose ranges are read into memory and written from it.
//
// The system may move fewer bytes than requested, be interrupted, or refuse. This class turns that into all
// of the bytes, or one error with the file, the offset and what to do.
#pragma once

#include "backends/posix/file_calls.hpp"
#include "base/unique_fd.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdint>
#include <span>
#include <string>

namespace headrace::posix {

/// How far a move came. At its end `status` is ok and `text` empty.
struct Moved {
  std::uint64_t bytes = 0;
  Status status;
  std::string text;
};

///   threads  any
class File {
 public:
  /// Opens the path for reading and writing, or for reading if the region is read-only. Or duplicates the
  /// given descriptor, with its flags.
  ///   errors   invalid_argument (not a regular file, a descriptor that cannot be used), not_found (no such
  ///            file), others from the system
  [[nodiscard]] static Result<File> open(const headrace_region_v1& region,
                                         const FileCalls& calls = FileCalls::system());

  /// Moves between the buffers, in their order, and the range of the file that begins at `offset`:
  /// HEADRACE_READ into the buffers, HEADRACE_WRITE from them. Waits for the file system.
  ///   shapes   1 to IOV_MAX buffers, none empty; the array is changed on the way
  ///   errors   invalid_argument (read beyond the end, not open for this, unaligned with O_DIRECT), exhausted
  ///            (no space), backend_failed (the device)
  [[nodiscard]] Moved move(headrace_op_v1 op, std::span<iovec> parts, std::uint64_t offset) const;

  /// Its path, or number and path of its descriptor: for messages.
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
  int flags_;  // from F_GETFL
  const FileCalls* calls_;
};

}  // namespace headrace::posix
