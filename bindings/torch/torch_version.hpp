// SPDX-License-Identifier: Apache-2.0
// The torch that this library was compiled against, and the torch that is loaded.
#pragma once

#include <string>

namespace headrace::torch_runtime {

struct TorchVersions {
  std::string built_for, built_accelerator;
  std::string found, found_accelerator;
};

/// Read once, from the files beside the loaded libtorch.
[[nodiscard]] const TorchVersions& torch_versions();

}  // namespace headrace::torch_runtime
