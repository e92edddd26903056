// SPDX-License-Identifier: Apache-2.0
// A queue of work of a GPU. It does not wait for the legacy default stream.
#pragma once

#include "gpu/device.hpp"

#include <memory>

namespace headrace::gpu {

enum class Priority { normal, high };

class Stream {
 public:
  [[nodiscard]] static Result<Stream> make(std::shared_ptr<const Device> device,
                                           Priority priority = Priority::normal);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  [[nodiscard]] cuda::Stream handle() const noexcept { return stream_; }
  [[nodiscard]] const Device& device() const noexcept { return *device_; }

  /// Whether all queued work is done.
  ///   errors   backend_failed: work of this context has failed, and with it the context
  [[nodiscard]] Result<bool> poll_idle() const;
  /// Waits for all queued work.
  [[nodiscard]] Result<void> wait_idle() const;

 private:
  Stream(std::shared_ptr<const Device> device, cuda::Stream stream)
      : device_(std::move(device)), stream_(stream) {}

  std::shared_ptr<const Device> device_;
  cuda::Stream stream_;
};

}  // namespace headrace::gpu
