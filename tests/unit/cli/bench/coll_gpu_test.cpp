// SPDX-License-Identifier: Apache-2.0
// Memory, stream and graphs of `headrace bench coll --device cuda`, on the fake driver.
#include "cli/bench/coll_memory.hpp"

#include "support/fake_cuda.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace headrace::cli {
namespace {

class CollGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto driver = cuda_.load();
    ASSERT_TRUE(driver);
    driver_ = *driver;
    auto gpu = CollGpu::open(*driver, 0);
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::move(*gpu);
  }

  cuda::FakeCuda cuda_;
  cuda::DriverTable driver_;
  std::unique_ptr<CollGpu> gpu_;
};

TEST_F(CollGpuTest, BytesGoToTheGpuAndComeBack) {
  auto memory = CollMemory::make(64, gpu_.get());
  ASSERT_TRUE(memory);
  EXPECT_NE(memory->data(), memory->host().data());
  std::memset(memory->host().data(), 7, 64);
  ASSERT_TRUE(memory->upload());
  std::memset(memory->host().data(), 0, 64);
  ASSERT_TRUE(memory->download());
  EXPECT_EQ(memory->host()[63], std::byte{7});
}

TEST_F(CollGpuTest, AReplayOfAGraphRunsTheCallsAgain) {
  auto from = CollMemory::make(8, gpu_.get()), to = CollMemory::make(8, gpu_.get());
  ASSERT_TRUE(from && to);
  auto graph = gpu_->capture([&]() -> Result<void> {
    HEADRACE_CUDA_TRY(driver_,
                      driver_.memcpy_async(reinterpret_cast<cuda::Address>(to->data()),
                                           reinterpret_cast<cuda::Address>(from->data()), 8,
                                           static_cast<cuda::Stream>(gpu_->stream())),
                      "copy");
    return {};
  });
  ASSERT_TRUE(graph) << graph.error().message;
  for (const int value : {3, 4}) {
    std::memset(from->host().data(), value, 8);
    ASSERT_TRUE(from->upload());
    ASSERT_TRUE((*graph)->launch());
    ASSERT_TRUE(gpu_->wait());
    ASSERT_TRUE(to->download());
    EXPECT_EQ(to->host()[0], static_cast<std::byte>(value));
  }
}

TEST_F(CollGpuTest, ACallThatIsRefusedEndsTheCapture) {
  const auto refused =
      gpu_->capture([] { return Result<void>(fail(Code::not_supported, "not in a graph")); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "not in a graph");
  EXPECT_TRUE(gpu_->wait());
}

TEST_F(CollGpuTest, TheGpuWaitsForAllThatIsTimedAlone) {
  auto from = CollMemory::make(8, gpu_.get()), to = CollMemory::make(8, gpu_.get());
  ASSERT_TRUE(from && to);
  std::memset(from->host().data(), 3, 8);
  ASSERT_TRUE(from->upload());
  const auto queue = [&]() -> Result<void> {
    HEADRACE_CUDA_TRY(driver_,
                      driver_.memcpy_async(reinterpret_cast<cuda::Address>(to->data()),
                                           reinterpret_cast<cuda::Address>(from->data()), 8,
                                           static_cast<cuda::Stream>(gpu_->stream())),
                      "copy");
    return {};
  };
  bool was_idle = true;
  for (int i = 0; i < 2; ++i) {
    const auto taken = gpu_->time_alone(queue, [&]() -> Result<void> {
      was_idle = driver_.stream_query(static_cast<cuda::Stream>(gpu_->stream())) == cuda::Outcome::success;
      return {};
    });
    ASSERT_TRUE(taken) << taken.error().message;
    EXPECT_FALSE(was_idle);
    EXPECT_GE(taken->count(), 0);
    ASSERT_TRUE(to->download());
    EXPECT_EQ(to->host()[0], std::byte{3});
  }
}

TEST_F(CollGpuTest, ACallThatIsRefusedDoesNotHoldUpTheGpu) {
  const auto refuse = [] { return Result<void>(fail(Code::canceled, "another rank has failed")); };
  const auto good = [] { return Result<void>(); };
  EXPECT_EQ(gpu_->time_alone(refuse, good).error().message, "another rank has failed");
  EXPECT_TRUE(gpu_->wait());
  EXPECT_EQ(gpu_->time_alone(good, refuse).error().message, "another rank has failed");
  EXPECT_TRUE(gpu_->wait());
}

TEST_F(CollGpuTest, AMissingGpuIsNamed) {
  const auto missing = CollGpu::open(driver_, 5);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, testing::HasSubstr("5"));
}

}  // namespace
}  // namespace headrace::cli
