// SPDX-License-Identifier: Apache-2.0
#include "gpu/stream.hpp"

#include <utility>

namespace headrace::gpu {

Result<Stream> Stream::make(std::shared_ptr<const Device> device, Priority priority) {
  const cuda::DriverTable& driver = device->driver();
  const ContextGuard guard(*device);
  int least = 0, greatest = 0;
  HEADRACE_CUDA_TRY(driver, driver.ctx_get_stream_priority_range(&least, &greatest), "priorities of GPU {}",
                    device->ordinal());
  cuda::Stream stream = nullptr;
  HEADRACE_CUDA_TRY(driver,
                    driver.stream_create_with_priority(&stream, cuda::stream_non_blocking,
                                                       priority == Priority::high ? greatest : least),
                    "make a stream on GPU {}", device->ordinal());
  return Stream(std::move(device), stream);
}

Stream::Stream(Stream&& other) noexcept
    : device_(std::move(other.device_)), stream_(std::exchange(other.stream_, nullptr)) {}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  const ContextGuard guard(*device_);
  (void)device_->driver().stream_destroy(stream_);
}

Result<bool> Stream::poll_idle() const {
  const cuda::DriverTable& driver = device_->driver();
  const OutsideCaptures outside(driver);
  const cuda::Outcome outcome = driver.stream_query(stream_);
  if (outcome == cuda::Outcome::not_ready) return false;
  HEADRACE_CUDA_TRY(driver, outcome, "work on GPU {}", device_->ordinal());
  return true;
}

Result<void> Stream::wait_idle() const {
  const cuda::DriverTable& driver = device_->driver();
  const OutsideCaptures outside(driver);
  HEADRACE_CUDA_TRY(driver, driver.stream_synchronize(stream_), "work on GPU {}", device_->ordinal());
  return {};
}

}  // namespace headrace::gpu
