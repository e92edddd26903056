// SPDX-License-Identifier: Apache-2.0
#include "gpu/shown_gpus.hpp"

#include "support/fake_cuda.hpp"

#include <gtest/gtest.h>

namespace headrace::gpu {
namespace {

TEST(ShownGpus, TheGpusOfTheDriverHaveAddressIndexAndName) {
  cuda::FakeCuda fake(2);
  const auto gpus = shown_gpus(fake.load(), true);
  ASSERT_TRUE(gpus);
  EXPECT_EQ(*gpus,
            (std::vector<TopologyGpu>{{"0000:01:00.0", 0, "Fake H200"}, {"0000:02:00.0", 1, "Fake H200"}}));
}

TEST(ShownGpus, ADriverThatFindsNoGpuShowsNoneAndWithoutADriverSysTells) {
  cuda::FakeCuda fake(0);
  const auto driver = fake.load();
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(shown_gpus(driver, true), std::vector<TopologyGpu>());
  EXPECT_EQ(shown_gpus(driver, false), std::nullopt);
}

}  // namespace
}  // namespace headrace::gpu
