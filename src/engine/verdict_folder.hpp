// SPDX-License-Identifier: Apache-2.0
// What the trials of others' plugins said, a file for each content of a plugin. A plugin with a good verdict
// is loaded into this process, so a verdict counts only if nobody but this user and root can have written it.
#pragma once

#include <headrace/result.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace headrace::engine {

class VerdictFolder {
 public:
  /// Makes the folder where it is missing. An empty path: nothing is found, and nothing remembered.
  ///   errors  invalid_argument (another user may write to it, or it is a link), and the system's
  [[nodiscard]] static Result<VerdictFolder> open(const std::string& path);

  /// The verdict on a plugin of that content; nullopt: none, or none that counts.
  [[nodiscard]] std::optional<std::string> find(std::string_view content) const;
  /// Whole or not at all: other agents may read and write it now. Best effort: a trial can be repeated.
  void remember(std::string_view content, std::string_view verdict) const;
  /// The file of the verdict on that content.
  [[nodiscard]] std::string file(std::string_view content) const;

 private:
  explicit VerdictFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace headrace::engine
