// SPDX-License-Identifier: Apache-2.0
// The device and the stream of a GPU that this thread's work is queued on.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

namespace headrace::torch_runtime {

/// While it lives, `device` is current on this thread, and on it the stream. Does nothing for the CPU.
/// Throws what torch throws.
class StreamScope {
 public:
  /// stream  as model_runtime_v1.h has it: NULL the default one, HEADRACE_MODEL_CURRENT_STREAM as it is
  StreamScope(c10::Device device, void* stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

  /// Waits for what the stream holds.
  void synchronize() const;

 private:
  const c10::Device device_;
  std::optional<c10::DeviceGuard> guard_;
  void* stream_guard_ = nullptr;
};

}  // namespace headrace::torch_runtime
