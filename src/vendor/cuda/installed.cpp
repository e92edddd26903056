// SPDX-License-Identifier: Apache-2.0
#include "vendor/cuda/installed.hpp"

#include <dlfcn.h>

namespace headrace::cuda {

bool is_driver_loaded() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  ::dlclose(library);  // load_driver keeps a handle of its own
  return true;
}

}  // namespace headrace::cuda
