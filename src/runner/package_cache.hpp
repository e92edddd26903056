// SPDX-License-Identifier: Apache-2.0
// Where packages lie unpacked, so that the second load of one costs half of the first. torch by itself
// unpacks a package into /tmp at every load, and a process that is killed leaves it there.
//
//   <cache>/packages/<key>/            an unpacked package, whole
//   <cache>/packages/<key>.<random>/   one that is being unpacked; `lock` in it is held as long as its
//   process lives
//
// The key is made of the file's size, its time and its table of contents, which holds every member's length
// and checksum: it costs reading a few kilobytes, whatever the package's size.
#pragma once

#include "runner/package.hpp"

#include <filesystem>
#include <string>

namespace headrace {

struct UnpackedPackage {
  std::filesystem::path folder;
  bool fresh = false;  ///< it was unpacked by this call
};

class PackageCache {
 public:
  /// `folder` is made when it is needed.
  explicit PackageCache(const std::filesystem::path& folder) : folder_(folder / "packages") {}

  /// The folder of the unpacked package; unpacks it if it is not there. A package that is a folder is used as
  /// it is.
  ///   threads  any, and any processes: whoever is first puts the whole folder in place by one rename
  ///   errors   exhausted (the disk is full), corrupt (a member's checksum), invalid_argument (cannot be
  ///   written there)
  [[nodiscard]] Result<UnpackedPackage> unpacked(const Package& package) const;

  /// Removes what processes that are gone had begun to unpack. Done by every unpacking.
  void sweep() const;

  [[nodiscard]] static std::string key(const Package& package);

 private:
  [[nodiscard]] Result<void> unpack(const Package& package, const std::filesystem::path& place) const;

  std::filesystem::path folder_;
};

/// $HEADRACE_CACHE_DIR as `chosen`, or $XDG_CACHE_HOME/headrace, or ~/.cache/headrace, or a folder of this
/// user in the system's temporary folder.
[[nodiscard]] std::filesystem::path default_cache_folder(const std::string& chosen);

}  // namespace headrace
