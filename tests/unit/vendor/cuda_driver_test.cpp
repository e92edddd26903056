// SPDX-License-Identifier: Apache-2.0
#include "vendor/cuda/driver.hpp"

#include "support/fake_cuda.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace headrace;
using namespace headrace::cuda;
using testing::AllOf;
using testing::HasSubstr;

TEST(CudaDriver, a_driver_is_bound_and_started) {
  FakeCuda fake(2);
  const auto driver = fake.load();
  ASSERT_TRUE(driver) << driver.error().message;
  int count = 0;
  EXPECT_EQ(driver->device_get_count(&count), Outcome::success);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(fake.calls("cuInit"), 1);
}

TEST(CudaDriver, a_missing_driver_is_reported_with_advice) {
  if (::access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "this machine has a GPU";
  const auto driver = load_driver();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.code(), Code::not_supported);
  EXPECT_THAT(driver.error().message,
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("libcuda.so.1"), HasSubstr("570")));
}

TEST(CudaDriver, a_driver_that_is_too_old_is_refused_with_both_versions) {
  FakeCuda fake;
  fake.set_version(12040);
  const auto driver = fake.load();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.code(), Code::not_supported);
  EXPECT_THAT(driver.error().message, AllOf(HasSubstr("CUDA 12.4"), HasSubstr("12.8 or newer")));
}

TEST(CudaDriver, a_driver_of_the_oldest_supported_version_is_accepted) {
  FakeCuda fake;
  fake.set_version(oldest_driver);
  EXPECT_TRUE(fake.load());
}

TEST(CudaDriver, a_driver_that_lacks_a_function_is_refused_with_its_name) {
  FakeCuda fake;
  fake.lack("cuMemCreate");
  const auto driver = fake.load();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.code(), Code::not_supported);
  EXPECT_THAT(driver.error().message, AllOf(HasSubstr("cuMemCreate"), HasSubstr("13.0")));
}

TEST(CudaDriver, a_driver_that_cannot_look_functions_up_is_refused) {
  FakeCuda fake;
  fake.lack("cuGetProcAddress_v2");
  const auto driver = fake.load();
  ASSERT_FALSE(driver);
  EXPECT_THAT(driver.error().message, HasSubstr("cuGetProcAddress_v2"));
}

TEST(CudaDriver, a_driver_without_a_gpu_is_refused_with_possible_reasons) {
  FakeCuda fake(0);
  const auto driver = fake.load();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.code(), Code::not_supported);
  EXPECT_THAT(driver.error().message, AllOf(HasSubstr("finds no GPU"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CudaDriver, a_driver_that_does_not_start_is_refused_with_its_own_error) {
  FakeCuda fake;
  fake.fail("cuInit", Outcome::system_driver_mismatch);
  const auto driver = fake.load();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.code(), Code::backend_failed);
  EXPECT_THAT(driver.error().message,
              AllOf(HasSubstr("does not start"), HasSubstr("unsupported display driver"), HasSubstr("803")));
}

TEST(CudaDriver, an_error_names_the_action_and_the_drivers_text) {
  FakeCuda fake;
  const auto driver = fake.load();
  ASSERT_TRUE(driver);
  const Error error = driver_error(*driver, Outcome::out_of_memory, "allocate {} bytes", 64);
  EXPECT_EQ(error.code, Code::exhausted);
  EXPECT_EQ(error.message, "allocate 64 bytes: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
}

TEST(CudaDriver, an_unknown_error_number_is_backend_failed) {
  EXPECT_EQ(code_of_outcome(static_cast<Outcome>(4711)), Code::backend_failed);
  EXPECT_EQ(code_of_outcome(Outcome::peer_access_unsupported), Code::not_supported);
  EXPECT_EQ(code_of_outcome(Outcome::not_ready), Code::would_block);
}

}  // namespace
