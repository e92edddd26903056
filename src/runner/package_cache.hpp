// SPDX-License-Identifier: Apache-2.0
// The cache of unpacked packages: the second load of a package takes half the time of the first. torch itself
// unpacks a package into /tmp at every load, and a killed process leaves it there.
//
//   <cache>/packages/<key>/            an unpacked package, complete
//   <cache>/packages/<key>.<random>/   one that is being unpacked: runner/workplace.hpp
//
// Code is loaded from there, so all of it is made for this user alone, and nothing is used that another user
// could have made or changed (base/own_folder.hpp). Other files and folders there are left alone.
//
// The key is computed from the file's size, its time and its table of contents, which has every member's
// length and checksum: this reads a few kilobytes for a package of any size.
#pragma once

#include "base/unique_fd.hpp"
#include "runner/package.hpp"

#include <filesystem>
#include <string>

namespace headrace {

struct UnpackedPackage {
  std::filesystem::path folder;
  bool fresh = false;  ///< this call unpacked it
};

class PackageCache {
 public:
  /// `folder` is created when it is needed.
  explicit PackageCache(const std::filesystem::path& folder) : folder_(folder / "packages") {}

  /// The folder of the unpacked package; unpacks it if it is not there. A package that is a folder is used in
  /// place.
  ///   threads  any, and any processes: the first one moves its complete folder into place with one rename
  ///   errors   exhausted (the disk is full), corrupt (a member's checksum), invalid_argument (the folder is
  ///            not writable, or another user may write to it)
  [[nodiscard]] Result<UnpackedPackage> unpacked(const Package& package) const;

  /// Removes incomplete folders of dead processes. Every unpacking calls it.
  void sweep() const;

  [[nodiscard]] static std::string key(const Package& package);

 private:
  [[nodiscard]] Result<void> unpack(const Package& package, const std::filesystem::path& place,
                                    const UniqueFd& folder) const;

  std::filesystem::path folder_;
};

/// $HEADRACE_CACHE_DIR as `chosen`, else $XDG_CACHE_HOME/headrace, else ~/.cache/headrace, else a folder of
/// this user in the system's temporary folder.
[[nodiscard]] std::filesystem::path default_cache_folder(const std::string& chosen);

}  // namespace headrace
