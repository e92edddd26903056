// SPDX-License-Identifier: Apache-2.0
// torchcomms' window on headrace::Window.
#pragma once

#include <headrace/comm_window.hpp>

#include "bindings/torchcomms/comm.hpp"

#include <comms/torchcomms/TorchCommWindow.hpp>

#include <memory>

namespace headrace::torchcomms_backend {

///   threads  one at a time, as torchcomms has it
class HeadraceTorchWindow final : public tc::TorchCommWindow {
 public:
  HeadraceTorchWindow(std::shared_ptr<Comm> comm, std::shared_ptr<AbortHooks> hooks);

  /// All ranks call it, as a collective.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  void tensor_deregister() override;
  std::shared_ptr<tc::TorchCommWindow> clone() override;

  WorkPtr put(const at::Tensor& tensor, int dst_rank, std::size_t target_offset_nelems, bool async_op,
              const tc::PutOptions& options) override;
  /// Adds 1 to the word that wait_signal takes 1 from.
  WorkPtr signal(int peer_rank, bool async_op, const tc::SignalOptions& options) override;
  WorkPtr wait_signal(int peer_rank, bool async_op, const tc::WaitSignalOptions& options) override;
  /// This rank's own tensor. Others': not_supported, because memory that was registered is not mapped.
  at::Tensor map_remote_tensor(int rank) override;
  std::shared_ptr<tc::TorchCommWindowAttr> get_attr(int peer_rank) override;

 private:
  template <class Given, class Call>
  WorkPtr start(Tensors&& tensors, bool async_op, const Given& given, const Call& call);

  std::shared_ptr<Comm> comm_;
  std::shared_ptr<AbortHooks> hooks_;
  std::shared_ptr<Window> window_;
};

}  // namespace headrace::torchcomms_backend
