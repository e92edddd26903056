// SPDX-License-Identifier: Apache-2.0
// A folder <key>.<random> beside its final place <key>, in which a package is unpacked. Its process holds
// `lock` in it, so that others see whether the process is alive. <key> is 32 hexadecimal digits, <random> 16.
#pragma once

#include "base/unique_fd.hpp"

#include <filesystem>
#include <utility>

namespace headrace {

/// The destructor removes the folder with its content unless it has its final name.
class Workplace {
 public:
  [[nodiscard]] static Result<Workplace> make(const std::filesystem::path& place);
  Workplace(Workplace&& other) noexcept
      : folder_(std::exchange(other.folder_, {})), lock_(std::move(other.lock_)) {}
  Workplace& operator=(Workplace&&) = delete;
  ~Workplace();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// Renames it to its final name. If another process has done so meanwhile, its content is the same and
  /// stays.
  [[nodiscard]] Result<void> finish(const std::filesystem::path& place);

  /// Removes the workplaces of dead processes in a folder.
  static void sweep(const std::filesystem::path& folder);
  /// Removes what lies at `place`, if anything does. Its name goes first, in one step.
  [[nodiscard]] static Result<void> remove_entry(const std::filesystem::path& place);

 private:
  Workplace() = default;
  std::filesystem::path folder_;
  UniqueFd lock_;
};

}  // namespace headrace
