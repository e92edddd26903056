// SPDX-License-Identifier: Apache-2.0
// A file to which several threads and processes add lines.
#pragma once

#include "base/unique_fd.hpp"

#include <headrace/result.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::collectives {

/// Each line is one write to a file that is opened for appending, so lines stay whole, and the last one
/// before the end of the process is there.
///   threads  any
class LineFile {
 public:
  /// The file of a path, or standard error for "stderr". Communicators of a process share it.
  [[nodiscard]] static Result<std::shared_ptr<LineFile>> open(const std::string& path);
  LineFile(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  /// `line` has its line end. One that cannot be written is dropped, and the log says so once.
  void add(std::string_view line);

 private:
  UniqueFd file_;
  const std::string path_;
  std::atomic<bool> lost_{false};
};

}  // namespace headrace::collectives
