// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.hpp"

#include "gpu/event.hpp"
#include "gpu/stream.hpp"
#include "gpu_test.hpp"

#include <gmock/gmock.h>

namespace headrace::gpu {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using DeviceTest = GpuTest;

TEST_F(DeviceTest, devices_are_listed_without_making_a_context) {
  const auto devices = list_devices(driver);
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ(devices->at(1).name, "Fake H200");
  EXPECT_THAT(devices->at(1).uuid, StartsWith("GPU-20212223-2425-"));
  EXPECT_EQ(devices->at(1).pci, "0000:02:00.0");
  EXPECT_EQ(devices->at(1).major, 9);
  EXPECT_TRUE(devices->at(1).shares_descriptors);
  EXPECT_EQ(fake.live().contexts, 0);
}

TEST_F(DeviceTest, a_device_keeps_its_primary_context_until_its_last_owner_is_gone) {
  {
    auto device = open(1);
    const auto other = device;
    device.reset();
    EXPECT_EQ(fake.live().contexts, 1);
  }
  EXPECT_EQ(fake.live().contexts, 0);
}

TEST_F(DeviceTest, the_current_device_is_that_of_the_context_and_without_one_the_first) {
  EXPECT_EQ(current_device(driver).value(), 0);
  const auto second = open(1);
  const ContextGuard guard(*second);
  EXPECT_EQ(current_device(driver).value(), 1);
}

TEST_F(DeviceTest, a_missing_device_is_refused_with_the_number_of_present_ones) {
  const auto device = Device::open(driver, 2);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.code(), Code::invalid_argument);
  EXPECT_THAT(device.error().message, AllOf(HasSubstr("no GPU 2"), HasSubstr("sees 2")));
}

TEST_F(DeviceTest, a_device_that_does_not_start_reports_why) {
  fake.fail("cuDevicePrimaryCtxRetain", cuda::Outcome::out_of_memory);
  const auto device = Device::open(driver, 0);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.code(), Code::exhausted);
  EXPECT_THAT(device.error().message,
              AllOf(HasSubstr("open the primary context of GPU 0 (Fake H200)"), HasSubstr("out of memory")));
}

TEST_F(DeviceTest, a_context_guard_restores_the_current_context_of_the_thread) {
  const auto first = open(0), second = open(1);
  const auto current = [&] {
    cuda::Context context = nullptr;
    EXPECT_EQ(driver.ctx_get_current(&context), cuda::Outcome::success);
    return context;
  };
  EXPECT_EQ(current(), nullptr);
  {
    const ContextGuard outer(*first);
    EXPECT_EQ(current(), first->context());
    {
      const ContextGuard inner(*second);
      EXPECT_EQ(current(), second->context());
      const ContextGuard same(*second);
    }
    EXPECT_EQ(current(), first->context());
  }
  EXPECT_EQ(current(), nullptr);
}

TEST_F(DeviceTest, peer_access_may_be_enabled_twice) {
  const auto first = open(0), second = open(1);
  EXPECT_TRUE(enable_peer_access(*first, *second));
  EXPECT_TRUE(enable_peer_access(*first, *second));
  EXPECT_TRUE(enable_peer_access(*first, *first));
}

TEST_F(DeviceTest, missing_peer_access_is_reported_with_both_gpus) {
  fake.forbid_peer_access(0, 1);
  const auto answer = enable_peer_access(*open(0), *open(1));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.code(), Code::not_supported);
  EXPECT_THAT(answer.error().message,
              AllOf(HasSubstr("GPU 0 (0000:01:00.0)"), HasSubstr("GPU 1 (0000:02:00.0)")));
}

TEST_F(DeviceTest, a_stream_is_idle_when_its_work_is_done) {
  const auto device = open();
  {
    auto stream = Stream::make(device, Priority::high);
    ASSERT_TRUE(stream) << stream.error().message;
    auto event = Event::make(device, Timing::on), later = Event::make(device, Timing::on);
    ASSERT_TRUE(event && later);
    fake.hold();
    ASSERT_TRUE(event->record(stream->handle()));
    ASSERT_TRUE(later->record(stream->handle()));
    EXPECT_FALSE(stream->poll_idle().value());
    EXPECT_FALSE(event->poll_reached().value());
    fake.step(1);
    EXPECT_TRUE(event->poll_reached().value());
    EXPECT_FALSE(later->poll_reached().value());
    fake.release();
    EXPECT_TRUE(later->wait_reached());
    EXPECT_TRUE(stream->wait_idle());
    EXPECT_GE(later->since(*event).value().count(), 0);
  }
  EXPECT_EQ(fake.live().streams, 0);
  EXPECT_EQ(fake.live().events, 0);
}

TEST_F(DeviceTest, a_stream_that_waits_for_an_event_runs_after_it) {
  const auto device = open();
  const auto first = Stream::make(device).value(), second = Stream::make(device).value();
  const auto gate = Event::make(device).value(), after = Event::make(device).value();
  fake.hold();
  ASSERT_TRUE(gate.record(first.handle()));
  ASSERT_TRUE(gate.hold_back(second.handle()));
  ASSERT_TRUE(after.record(second.handle()));
  EXPECT_FALSE(after.poll_reached().value());
  fake.release();
  EXPECT_TRUE(after.poll_reached().value());
}

TEST_F(DeviceTest, a_failure_to_make_a_stream_or_event_leaves_nothing_behind) {
  const auto device = open();
  fake.fail("cuStreamCreateWithPriority", cuda::Outcome::out_of_memory);
  EXPECT_EQ(Stream::make(device).code(), Code::exhausted);
  fake.fail("cuCtxGetStreamPriorityRange", cuda::Outcome::unknown);
  EXPECT_EQ(Stream::make(device).code(), Code::backend_failed);
  fake.fail("cuEventCreate", cuda::Outcome::out_of_memory);
  EXPECT_EQ(Event::make(device).code(), Code::exhausted);
  EXPECT_EQ(fake.live().streams + fake.live().events, 0);
}

}  // namespace
}  // namespace headrace::gpu
