// SPDX-License-Identifier: Apache-2.0
// A temporary folder of a command. Its process holds a lock on it. A folder without a lock was left by a
// process that was killed; the next command that makes one removes it.
#pragma once

#include "cli/common/file_descriptor.hpp"

#include <headrace/result.hpp>

#include <string>

namespace headrace::cli {

class WorkFolder {
 public:
  /// Makes one in the system's folder for temporary files, and removes those that were left there.
  ///   errors  exhausted (that folder does not exist or cannot be written to)
  static Result<WorkFolder> make();
  WorkFolder() = default;
  WorkFolder(WorkFolder&& other) noexcept = default;
  WorkFolder& operator=(WorkFolder&& other) noexcept;
  ~WorkFolder() { remove(); }

  [[nodiscard]] const std::string& path() const { return path_; }
  void remove();

 private:
  std::string path_;
  FileDescriptor lock_;
};

}  // namespace headrace::cli
