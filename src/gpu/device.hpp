// SPDX-License-Identifier: Apache-2.0
// One GPU with its primary context. torch and the CUDA runtime use the same context, so memory and streams
// can be shared with them.
#pragma once

#include "base/errors.hpp"
#include "vendor/cuda/driver.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace headrace::gpu {

struct DeviceInfo {
  int ordinal = 0;   ///< in this process
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-7a1c...", the same in every process
  std::string pci;   ///< "0000:1b:00.0"
  int major = 0;     ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  bool shares_descriptors = false;  ///< memory of the virtual memory API can be exported as a descriptor
};

/// The GPUs of this process; makes no context on any of them.
[[nodiscard]] Result<std::vector<DeviceInfo>> list_devices(const cuda::DriverTable& driver);

/// The ordinal of the GPU that is current on this thread; without one it is 0, as for the CUDA runtime.
[[nodiscard]] Result<int> current_device(const cuda::DriverTable& driver);

/// Keeps the primary context retained. Every object on a device holds its Device.
class Device {
 public:
  ///   errors   invalid_argument (no such ordinal: which there are), exhausted, backend_failed
  [[nodiscard]] static Result<std::shared_ptr<const Device>> open(const cuda::DriverTable& driver,
                                                                  int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const DeviceInfo& info() const noexcept { return info_; }
  [[nodiscard]] int ordinal() const noexcept { return info_.ordinal; }
  [[nodiscard]] const cuda::DriverTable& driver() const noexcept { return driver_; }
  [[nodiscard]] cuda::Context context() const noexcept { return context_; }

  /// Waits until the work that this process has queued on it so far is done: on streams of its primary
  /// context, which the CUDA runtime and torch use too. Fails while one of these streams is being captured.
  [[nodiscard]] Result<void> wait_idle() const;

 private:
  Device(const cuda::DriverTable& driver, DeviceInfo info, cuda::Context context)
      : driver_(driver), info_(std::move(info)), context_(context) {}

  cuda::DriverTable driver_;
  DeviceInfo info_;
  cuda::Context context_;
};

/// While it lives, calls of this thread do not affect captures of streams. Without it, a call that cannot be
/// part of a graph, such as an allocation or an event query, would invalidate every capture of the process
/// that watches other threads' calls, as torch's captures do. Work queued on a captured stream still becomes
/// part of its graph.
class OutsideCaptures {
 public:
  explicit OutsideCaptures(const cuda::DriverTable& driver) noexcept : driver_(driver) { exchange(); }
  ~OutsideCaptures() { exchange(); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  void exchange() noexcept { (void)driver_.thread_exchange_stream_capture_mode(&mode_); }

  const cuda::DriverTable& driver_;
  cuda::CaptureMode mode_ = cuda::CaptureMode::relaxed;
};

/// Makes the device's context current on this thread, outside captures, and restores the previous one.
class ContextGuard {
 public:
  explicit ContextGuard(const Device& device) noexcept;
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const cuda::DriverTable& driver_;
  const OutsideCaptures outside_;
  bool pushed_ = false;
};

/// Lets kernels and copies of `device` reach memory of `peer`. Harmless if it is enabled already.
///   errors   not_supported (the machine does not connect them)
[[nodiscard]] Result<void> enable_peer_access(const Device& device, const Device& peer);

}  // namespace headrace::gpu
