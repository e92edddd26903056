// SPDX-License-Identifier: Apache-2.0
#include "gpu/event.hpp"

#include <utility>

namespace headrace::gpu {

Result<Event> Event::make(std::shared_ptr<const Device> device, Timing timing) {
  const cuda::DriverTable& driver = device->driver();
  const ContextGuard guard(*device);
  cuda::Event event = nullptr;
  HEADRACE_CUDA_TRY(
      driver,
      driver.event_create(&event, timing == Timing::on ? cuda::event_default : cuda::event_disable_timing),
      "make an event on GPU {}", device->ordinal());
  return Event(std::move(device), event);
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), event_(std::exchange(other.event_, nullptr)) {}

Event::~Event() {
  if (event_ == nullptr) return;
  const ContextGuard guard(*device_);
  (void)device_->driver().event_destroy(event_);
}

Result<void> Event::record(cuda::Stream stream) const {
  const cuda::DriverTable& driver = device_->driver();
  const ContextGuard guard(*device_);
  HEADRACE_CUDA_TRY(driver, driver.event_record(event_, stream), "record an event on GPU {}",
                    device_->ordinal());
  return {};
}

Result<void> Event::hold_back(cuda::Stream stream) const {
  const cuda::DriverTable& driver = device_->driver();
  const ContextGuard guard(*device_);
  HEADRACE_CUDA_TRY(driver, driver.stream_wait_event(stream, event_, 0),
                    "make a stream wait for an event of GPU {}", device_->ordinal());
  return {};
}

Result<bool> Event::poll_reached() const {
  const cuda::DriverTable& driver = device_->driver();
  const OutsideCaptures outside(driver);
  const cuda::Outcome outcome = driver.event_query(event_);
  if (outcome == cuda::Outcome::not_ready) return false;
  HEADRACE_CUDA_TRY(driver, outcome, "work on GPU {}", device_->ordinal());
  return true;
}

Result<void> Event::wait_reached() const {
  const cuda::DriverTable& driver = device_->driver();
  const OutsideCaptures outside(driver);
  HEADRACE_CUDA_TRY(driver, driver.event_synchronize(event_), "work on GPU {}", device_->ordinal());
  return {};
}

Result<std::chrono::nanoseconds> Event::since(const Event& earlier) const {
  const cuda::DriverTable& driver = device_->driver();
  float milliseconds = 0;
  HEADRACE_CUDA_TRY(driver, driver.event_elapsed_time(&milliseconds, earlier.event_, event_),
                    "time between two events of GPU {}", device_->ordinal());
  return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
}

}  // namespace headrace::gpu
