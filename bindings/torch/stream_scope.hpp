// SPDX-License-Identifier: Apache-2.0
// The current device and stream of this thread, for work on a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

namespace headrace::torch_runtime {

/// While it lives, `device` is current on this thread, and on it the stream. Does nothing for the CPU. Throws
/// torch's exceptions.
class StreamScope {
 public:
  /// stream  as in model_runtime_v1.h: NULL the default stream, HEADRACE_MODEL_CURRENT_STREAM no change
  StreamScope(c10::Device device, void* stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

  /// Waits until the stream has done its work.
  void synchronize() const;

 private:
  const c10::Device device_;
  std::optional<c10::DeviceGuard> guard_;
  void* stream_guard_ = nullptr;
};

}  // namespace headrace::torch_runtime
