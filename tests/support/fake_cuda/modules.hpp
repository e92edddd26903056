// SPDX-License-Identifier: Apache-2.0
// The fake driver's modules, and the functions of tests that play kernels.
#pragma once

#include "support/fake_cuda.hpp"
#include "support/fake_cuda/objects.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace headrace::cuda {

struct FakeModules {
  struct Kernel {
    std::size_t argument_bytes = 0;
    std::function<FakeCuda::Staying(const void* argument)> launch;
  };

  Objects<ModuleObject> loaded;
  std::map<std::string, Kernel> kernels;  // each module has all of them
};

}  // namespace headrace::cuda
