// SPDX-License-Identifier: Apache-2.0
// The demo's temporary folder. Locked while its process lives: one that nobody holds was left by a process
// that was killed, and the next one removes it.
#pragma once

#include "cli/file_descriptor.hpp"

#include <headrace/result.hpp>

#include <string>

namespace headrace::cli::demo {

class WorkFolder {
 public:
  /// Makes one where temporary files go, and removes those that were left there.
  ///   errors  exhausted (the folder for temporary files is none, or takes nothing)
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

}  // namespace headrace::cli::demo
