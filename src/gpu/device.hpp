// SPDX-License-Identifier: Apache-2.0
// One GPU with its primary context: the one that torch and the CUDA runtime use too, so that their memory,
// streams and ours are of one world.
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
  bool shares_descriptors = false;  ///< memory of the virtual memory API can be passed on as a descriptor
};

/// What there is, without making a context on any of them.
[[nodiscard]] Result<std::vector<DeviceInfo>> list_devices(const cuda::DriverTable& driver);

/// Keeps the primary context retained. Everything made on a device holds it.
class Device {
 public:
  ///   errors   invalid_argument (no such ordinal: says which there are), exhausted, backend_failed
  [[nodiscard]] static Result<std::shared_ptr<const Device>> open(const cuda::DriverTable& driver,
                                                                  int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const DeviceInfo& info() const noexcept { return info_; }
  [[nodiscard]] int ordinal() const noexcept { return info_.ordinal; }
  [[nodiscard]] const cuda::DriverTable& driver() const noexcept { return driver_; }
  [[nodiscard]] cuda::Context context() const noexcept { return context_; }

  /// Until all that this process has queued on it by now is done, on streams of its primary context, which
  /// are the CUDA runtime's and torch's, too. It cannot be waited for while one of them is being captured.
  [[nodiscard]] Result<void> wait_idle() const;

 private:
  Device(const cuda::DriverTable& driver, DeviceInfo info, cuda::Context context)
      : driver_(driver), info_(std::move(info)), context_(context) {}

  cuda::DriverTable driver_;
  DeviceInfo info_;
  cuda::Context context_;
};

/// While it lives, captures of streams are none of this thread's business. Else a call that cannot be part of
/// a graph, to allocate or to ask after an event, would spoil every capture of the process that minds other
/// threads' calls, as torch's do. What is queued on a stream that is captured becomes part of its graph all
/// the same.
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

/// Makes the device's context current on this thread, outside captures, and puts back what was before.
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

/// Lets kernels and copies of `device` reach memory of `peer`. Does no harm when it is done already, by
/// whomever.
///   errors   not_supported (the machine does not connect them)
[[nodiscard]] Result<void> enable_peer_access(const Device& device, const Device& peer);

}  // namespace headrace::gpu
