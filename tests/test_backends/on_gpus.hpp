// SPDX-License-Identifier: Apache-2.0
// A backend over the GPUs that a test gives it, linked into the test or in a plugin of tests/test_backends.
#pragma once

#include "gpu/gpus.hpp"

#include <headrace/plugin/kernels_v1.h>
#include <headrace/plugin/backend.hpp>

#include <memory>
#include <span>

namespace headrace::test {

template <class Backend>
class OnGpus {
 public:
  static constexpr const char* name = Backend::name;
  static constexpr const char* version = Backend::version;
  static constexpr std::uint32_t memory_kinds = Backend::memory_kinds;
  static constexpr bool maps = Backend::maps;
  static std::span<const headrace_option_v1> options() { return Backend::options(); }
  static Result<std::unique_ptr<Backend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    return Backend::open(host, args, source());
  }

  /// Instances that are opened from now on use these. The kernels' table outlives the process's instances.
  static void use(const cuda::DriverTable& driver, const headrace_kernels_v1& kernels) {
    given() = {driver, &kernels};
  }

 protected:
  static gpu::GpuSource source() {
    return {[] { return Result<cuda::DriverTable>(given().driver); },
            [] { return gpu::KernelLibrary::from_table(*given().kernels, "the test's library"); }};
  }

 private:
  struct Given {
    cuda::DriverTable driver;
    const headrace_kernels_v1* kernels = nullptr;
  };
  static Given& given() {
    static Given given;
    return given;
  }
};

}  // namespace headrace::test
