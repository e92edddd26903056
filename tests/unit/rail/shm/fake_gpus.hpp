// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/gpus.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_kernels.hpp"

namespace headrace::rail {

/// The GPUs of a fake driver, with kernels that the CPU runs.
inline gpu::GpuSource gpus_of(cuda::FakeCuda& fake) {
  cuda::add_reference_kernels(fake);
  return {[&fake] { return fake.load(); },
          [] { return gpu::KernelLibrary::from_table(cuda::fake_kernels_table(), "the fake library"); }};
}

}  // namespace headrace::rail
