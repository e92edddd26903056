// SPDX-License-Identifier: Apache-2.0
// From rank to rank.
#include "bindings/torchcomms/comm.hpp"

#include <utility>

namespace headrace::torchcomms_backend {

WorkPtr HeadraceTorchComm::send(const at::Tensor& tensor, int dst, bool async_op,
                                const tc::SendOptions& options) {
  Tensors used;
  const ConstElements memory = used.reads(tensor);
  return start_message(std::move(used), async_op, options,
                       [&](const MessageOptions& with) { return comm_->send(memory, dst, with); });
}

WorkPtr HeadraceTorchComm::recv(at::Tensor& tensor, int src, bool async_op, const tc::RecvOptions& options) {
  Tensors used;
  const Elements memory = used.writes(tensor);
  return start_message(std::move(used), async_op, options,
                       [&](const MessageOptions& with) { return comm_->recv(memory, src, with); });
}

WorkPtr HeadraceTorchComm::batch_op_issue(const std::vector<tc::BatchSendRecv::P2POp>& ops, bool async_op,
                                          const tc::BatchP2POptions& options) {
  using Kind = tc::BatchSendRecv::P2POp::OpType;
  Batch batch = ready().batch();
  Tensors used;
  for (const auto& op : ops)
    take(op.type == Kind::SEND ? batch.send(used.reads(op.tensor), op.peer)
                               : batch.recv(used.writes(op.tensor), op.peer));
  return start(std::move(used), async_op, options, [&](const OpOptions& with) { return batch.issue(with); });
}

}  // namespace headrace::torchcomms_backend
