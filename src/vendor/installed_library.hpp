// SPDX-License-Identifier: Apache-2.0
// A library of a pip package that may be absent: where it is looked for.
#pragma once

#include "base/errors.hpp"

#include <string>

namespace headrace {

/// Names of a library. The texts live as long as the program.
struct InstalledLibrary {
  const char* name;     ///< the scope of its option `library`, which names its path: "nccl"
  const char* file;     ///< by which the loader knows it
  const char* folder;   ///< where its pip package has it, below a folder above this code; "": it has none
  const char* install;  ///< how to install it: "pip install nvidia-nccl-cu13"
};

/// It is never closed.
struct OpenedLibrary {
  void* handle;
  std::string path;
};

/// Opens the library at `path`. Without a path: the one that this process has loaded already, else that of
/// the pip package beside Headrace's own, else the one that the loader finds.
///   errors   not_supported (there is none, or it does not load), not_found (no such file)
[[nodiscard]] Result<OpenedLibrary> open_installed(const InstalledLibrary& library, const std::string& path);

}  // namespace headrace
