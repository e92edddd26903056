// SPDX-License-Identifier: Apache-2.0
// The HIP runtime as a table of the CUDA driver.
#include "vendor/hip/runtime.hpp"

#include "support/fake_hip.hpp"

#include <gmock/gmock.h>

namespace headrace::hip {
namespace {

using cuda::Outcome;
using testing::HasSubstr;

TEST(HipRuntime, serves_streams_events_and_memory_as_the_driver_does) {
  cuda::FakeCuda gpu;
  const auto runtime = bind_runtime(test::hip_lookup());
  ASSERT_TRUE(runtime) << runtime.error().message;
  cuda::Address memory = 0;
  EXPECT_EQ(runtime->device_primary_ctx_retain(nullptr, 7), Outcome::invalid_device);
  cuda::Context context = nullptr;
  ASSERT_EQ(runtime->device_primary_ctx_retain(&context, 0), Outcome::success);
  ASSERT_EQ(runtime->ctx_set_current(context), Outcome::success);
  EXPECT_EQ(runtime->mem_alloc(&memory, 8), Outcome::success);
  EXPECT_EQ(runtime->memset_d8_async(memory, 7, 8, nullptr), Outcome::success);
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(memory), 7);
  EXPECT_EQ(runtime->mem_free(memory), Outcome::success);
  EXPECT_EQ(runtime->ctx_set_current(nullptr), Outcome::success);
  EXPECT_EQ(runtime->device_primary_ctx_release(0), Outcome::success);
}

TEST(HipRuntime, refuses_what_hip_does_not_have_and_tells_no_attributes) {
  cuda::FakeCuda gpu;
  const auto runtime = bind_runtime(test::hip_lookup());
  ASSERT_TRUE(runtime);
  int value = 5;
  EXPECT_EQ(runtime->device_get_attribute(&value, cuda::DeviceAttribute::multiprocessors, 0),
            Outcome::success);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(runtime->module_unload(nullptr), Outcome::not_supported);
}

TEST(HipRuntime, that_cannot_be_used_says_why) {
  cuda::FakeCuda gpu;
  const auto old = bind_runtime(test::hip_lookup("hipDrvGetErrorName"));
  EXPECT_EQ(old.code(), Code::not_supported);
  EXPECT_THAT(old.error().message, HasSubstr("no function hipDrvGetErrorName: install ROCm 5.5 or newer"));
  gpu.fail("cuDeviceGetCount", Outcome::no_device, 2);
  const auto none = bind_runtime(test::hip_lookup());
  EXPECT_EQ(none.code(), Code::not_supported);
  EXPECT_THAT(none.error().message, HasSubstr("HIP_VISIBLE_DEVICES"));
}

TEST(HipRuntime, is_the_installed_one_or_says_that_there_is_none) {
  const auto runtime = load_runtime();
  if (runtime) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(runtime.code(), Code::not_supported);
  EXPECT_THAT(runtime.error().message, HasSubstr("HIP runtime"));
}

}  // namespace
}  // namespace headrace::hip
