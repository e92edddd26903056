// SPDX-License-Identifier: Apache-2.0
// The common base of tests of src/gpu: a fake driver, its devices, and kernels that run their CPU references.
#pragma once

#include "gpu/device.hpp"
#include "gpu/kernel_library.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_kernels.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace headrace::gpu {

class GpuTest : public testing::Test {
 protected:
  explicit GpuTest(std::vector<cuda::FakeGpu> gpus = {{}, {}}) : fake(std::move(gpus)) {
    cuda::add_reference_kernels(fake);
    driver = fake.load().value();
  }
  [[nodiscard]] std::shared_ptr<const Device> open(int ordinal = 0) const {
    return Device::open(driver, ordinal).value();
  }
  [[nodiscard]] static KernelLibrary library() {
    return KernelLibrary::from_table(cuda::fake_kernels_table(), "the fake library").value();
  }

  cuda::FakeCuda fake;
  cuda::DriverTable driver;
};

}  // namespace headrace::gpu
