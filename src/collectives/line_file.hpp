// SPDX-License-Identifier: Apache-2.0
// A file to which several threads and processes add lines.
#pragma once

#include "base/unique_fd.hpp"

#include <headrace/result.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace headrace::collectives {

/// Each line is one write to a file that is opened for appending, so lines stay whole, and the last one
/// before the end of the process is there.
///   threads  any
class LineFile {
 public:
  /// The file of a path, or standard error for "stderr". Communicators of a process share it.
  [[nodiscard]] static Result<std::shared_ptr<LineFile>> open(const std::string& path);
  explicit LineFile(UniqueFd file) : file_(std::move(file)) {}

  /// `line` has its line end. One that cannot be written is dropped: no caller could do more.
  void add(std::string_view line);

 private:
  UniqueFd file_;
};

}  // namespace headrace::collectives
