// SPDX-License-Identifier: Apache-2.0
// torchcomms' work for an operation of a communicator that is under way.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/torch/comm/tensors.hpp"
#include "bindings/torchcomms/abort_hooks.hpp"

#include <comms/torchcomms/TorchWork.hpp>

#include <chrono>
#include <memory>
#include <mutex>

namespace headrace::torchcomms_backend {

using torch_group::Tensors;

/// Its status is that of the operation: a thread of this library sets it when the operation ends, or the one
/// that waits. Hooks of the work run there.
///   threads  one at a time, as torchcomms has it
///   owns     the tensors, as long as it lives or the operation uses them
class HeadraceWork final : public ::torch::comms::TorchWork {
 public:
  HeadraceWork(Tensors&& tensors, std::chrono::milliseconds timeout, std::shared_ptr<AbortHooks> hooks);
  ~HeadraceWork() override;

  /// Keeps the tensors: OpOptions::owner.
  [[nodiscard]] std::shared_ptr<const void> owner() const { return tensors_; }
  /// The operation has begun. Once.
  void begin(Work work);

  /// Waits until it has ended. Throws CommError, also when it is called again.
  void wait() override;
  void waitBlocking() override { wait(); }
  [[nodiscard]] std::chrono::milliseconds getTimeout() const override { return timeout_; }

 private:
  void finish();

  std::shared_ptr<Tensors> tensors_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<AbortHooks> hooks_;
  Work work_;
  std::mutex mutex_;
  bool finished_ = false;
};

}  // namespace headrace::torchcomms_backend
