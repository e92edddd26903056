// SPDX-License-Identifier: Apache-2.0
// Which torch this library was compiled against, and which one is loaded.
#pragma once

#include <string>

namespace headrace::torch_runtime {

struct TorchVersions {
  std::string built_for, built_accelerator;
  std::string found, found_accelerator;
};

/// Read once, from the files beside the libtorch that is loaded.
[[nodiscard]] const TorchVersions& torch_versions();

}  // namespace headrace::torch_runtime
