// SPDX-License-Identifier: Apache-2.0
// The fake CUDA driver under the names of HIP's functions.
#pragma once

#include "support/fake_cuda.hpp"
#include "vendor/hip/runtime.hpp"

#include <functional>
#include <map>
#include <string>

namespace headrace::test {

/// The symbols of a library of HIP that has all functions but `lacks`.
inline std::function<void*(const char*)> hip_lookup(const std::string& lacks = "") {
  std::map<std::string, void*> symbols;
  const auto driver = cuda::bind_driver(cuda::FakeCuda::lookup());
  if (!driver) return [](const char*) -> void* { return nullptr; };
#define HEADRACE_HIP_SYMBOL(member, symbol) symbols[symbol] = reinterpret_cast<void*>(driver->member);
  HEADRACE_HIP_FUNCTIONS(HEADRACE_HIP_SYMBOL)
#undef HEADRACE_HIP_SYMBOL
  symbols.erase(lacks);
  return [symbols](const char* name) -> void* {
    const auto at = symbols.find(name);
    return at == symbols.end() ? nullptr : at->second;
  };
}

}  // namespace headrace::test
