// SPDX-License-Identifier: Apache-2.0
// Operations in which every rank takes part.
#include "bindings/torchcomms/comm.hpp"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

namespace headrace::torchcomms_backend {
namespace {

/// Elements of each rank: splits count rows, and what lies behind them is not used.
std::vector<std::size_t> elements_of_ranks(const at::Tensor& tensor, const std::vector<std::uint64_t>& rows) {
  const auto count = static_cast<std::uint64_t>(tensor.dim() == 0 ? 1 : tensor.size(0));
  const std::uint64_t of_row = count == 0 ? 0 : static_cast<std::uint64_t>(tensor.numel()) / count;
  std::vector<std::size_t> elements;
  elements.reserve(rows.size());
  std::uint64_t left = count;
  for (const std::uint64_t part : rows) {
    TORCH_CHECK(part <= left, "a split has ", part, " rows, and ", left, " of the tensor's ", count,
                " are left");
    left -= part;
    elements.push_back(static_cast<std::size_t>(part * of_row));
  }
  return elements;
}

/// The first elements: as many as the splits have.
template <class Some>
Some first(Some elements, const std::vector<std::size_t>& splits) {
  elements.count = std::accumulate(splits.begin(), splits.end(), std::size_t{0});
  return elements;
}

/// The output of an all_gather that is prepared: what a handle of torchcomms points to.
struct Prepared {
  AllGatherHandle handle;
  at::Tensor output;
};

}  // namespace

// --- all ranks give, all receive

WorkPtr HeadraceTorchComm::all_reduce(at::Tensor& tensor, const tc::ReduceOp& op, bool async_op,
                                      const tc::AllReduceOptions& options) {
  const ReduceOp reduction = reduction_of(op);
  Tensors used;
  const Elements memory = used.writes(tensor);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->all_reduce(memory, reduction, with); });
}

WorkPtr HeadraceTorchComm::all_gather(const TensorList& tensor_list, const at::Tensor& tensor, bool async_op,
                                      const tc::AllGatherOptions& options) {
  Tensors used;
  const std::vector<Elements> outputs = used.writes_each(tensor_list);
  const ConstElements input = used.reads(tensor);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->all_gather(outputs, input, with); });
}

WorkPtr HeadraceTorchComm::all_gather_v(const TensorList& tensor_list, const at::Tensor& tensor,
                                        bool async_op, const tc::AllGatherOptions& options) {
  Tensors used;
  const std::vector<Elements> outputs = used.writes_each(tensor_list);
  const ConstElements input = used.reads(tensor);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->all_gather_v(outputs, input, with); });
}

WorkPtr HeadraceTorchComm::all_gather_single(at::Tensor& output, const at::Tensor& input, bool async_op,
                                             const tc::AllGatherSingleOptions& options) {
  Tensors used;
  const Elements to = used.writes(output);
  const ConstElements from = used.reads(input);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->all_gather_single(to, from, with); });
}

HeadraceTorchComm::AllGatherPHandle HeadraceTorchComm::all_gather_p_init(
    at::Tensor& output, const tc::AllGatherPInitOptions& /*options*/) {
  Tensors used;
  const Elements memory = used.writes(output);
  TORCH_CHECK(!used.has_copies(), "the output has gaps: all_gather_p_init takes a contiguous tensor");
  auto prepared = std::make_unique<Prepared>(Prepared{take(ready().all_gather_p_init(memory)), output});
  return prepared.release();
}

WorkPtr HeadraceTorchComm::all_gather_p_exec(AllGatherPHandle handle, const at::Tensor& input, bool async_op,
                                             const tc::AllGatherPExecOptions& options) {
  TORCH_CHECK(handle != nullptr, "the handle is null: give what all_gather_p_init returned");
  const auto& prepared = *static_cast<const Prepared*>(handle);
  Tensors used;
  static_cast<void>(used.writes(prepared.output));
  const ConstElements memory = used.reads(input);
  return start(std::move(used), async_op, options, [&](const OpOptions& with) {
    return comm_->all_gather_p_exec(prepared.handle, memory, with);
  });
}

void HeadraceTorchComm::all_gather_p_free(AllGatherPHandle handle) {
  TORCH_CHECK(handle != nullptr, "the handle is null: give what all_gather_p_init returned");
  const std::unique_ptr<Prepared> prepared(static_cast<Prepared*>(handle));
  take(ready().all_gather_p_free(prepared->handle));
}

WorkPtr HeadraceTorchComm::reduce_scatter(at::Tensor& output, const TensorList& input_list,
                                          const tc::ReduceOp& op, bool async_op,
                                          const tc::ReduceScatterOptions& options) {
  const ReduceOp reduction = reduction_of(op);
  Tensors used;
  const Elements to = used.writes(output);
  const std::vector<ConstElements> from = used.reads_each(input_list);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->reduce_scatter(to, from, reduction, with); });
}

WorkPtr HeadraceTorchComm::reduce_scatter_v(at::Tensor& output, const TensorList& input_list,
                                            const tc::ReduceOp& op, bool async_op,
                                            const tc::ReduceScatterOptions& options) {
  const ReduceOp reduction = reduction_of(op);
  Tensors used;
  const Elements to = used.writes(output);
  const std::vector<ConstElements> from = used.reads_each(input_list);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->reduce_scatter_v(to, from, reduction, with); });
}

WorkPtr HeadraceTorchComm::reduce_scatter_single(at::Tensor& output, const at::Tensor& input,
                                                 const tc::ReduceOp& op, bool async_op,
                                                 const tc::ReduceScatterSingleOptions& options) {
  const ReduceOp reduction = reduction_of(op);
  Tensors used;
  const Elements to = used.writes(output);
  const ConstElements from = used.reads(input);
  return start(std::move(used), async_op, options, [&](const OpOptions& with) {
    return comm_->reduce_scatter_single(to, from, reduction, with);
  });
}

WorkPtr HeadraceTorchComm::all_to_all(const TensorList& output_tensor_list,
                                      const TensorList& input_tensor_list, bool async_op,
                                      const tc::AllToAllOptions& options) {
  Tensors used;
  const std::vector<Elements> to = used.writes_each(output_tensor_list);
  const std::vector<ConstElements> from = used.reads_each(input_tensor_list);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->all_to_all(to, from, with); });
}

WorkPtr HeadraceTorchComm::all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async_op,
                                             const tc::AllToAllSingleOptions& options) {
  Tensors used;
  const Elements to = used.writes(output);
  const ConstElements from = used.reads(input);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->all_to_all_single(to, from, with); });
}

WorkPtr HeadraceTorchComm::all_to_all_v_single(at::Tensor& output, const at::Tensor& input,
                                               const std::vector<std::uint64_t>& output_split_sizes,
                                               const std::vector<std::uint64_t>& input_split_sizes,
                                               bool async_op, const tc::AllToAllvSingleOptions& options) {
  const std::vector<std::size_t> to_ranks = elements_of_ranks(input, input_split_sizes);
  const std::vector<std::size_t> from_ranks = elements_of_ranks(output, output_split_sizes);
  Tensors used;
  const Elements to = first(used.writes(output), from_ranks);
  const ConstElements from = first(used.reads(input), to_ranks);
  return start(std::move(used), async_op, options, [&](const OpOptions& with) {
    return comm_->all_to_all_v_single(to, from, from_ranks, to_ranks, with);
  });
}

WorkPtr HeadraceTorchComm::barrier(bool async_op, const tc::BarrierOptions& options) {
  return start({}, async_op, options, [&](const OpOptions& with) { return comm_->barrier(with); });
}

// --- one rank gives, or one receives

WorkPtr HeadraceTorchComm::broadcast(at::Tensor& tensor, int root, bool async_op,
                                     const tc::BroadcastOptions& options) {
  Tensors used;
  const Elements memory = used.uses(tensor, root != getRank());
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->broadcast(memory, root, with); });
}

WorkPtr HeadraceTorchComm::reduce(const at::Tensor& tensor, int root, const tc::ReduceOp& op, bool async_op,
                                  const tc::ReduceOptions& options) {
  const ReduceOp reduction = reduction_of(op);
  Tensors used;
  const Elements memory = used.uses(tensor, root == getRank());
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->reduce(memory, root, reduction, with); });
}

WorkPtr HeadraceTorchComm::scatter(at::Tensor& output_tensor, const TensorList& input_tensor_list, int root,
                                   bool async_op, const tc::ScatterOptions& options) {
  Tensors used;
  const Elements to = used.writes(output_tensor);
  std::vector<ConstElements> from;
  if (root == getRank()) from = used.reads_each(input_tensor_list);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->scatter(to, from, root, with); });
}

WorkPtr HeadraceTorchComm::gather(const TensorList& output_tensor_list, const at::Tensor& input_tensor,
                                  int root, bool async_op, const tc::GatherOptions& options) {
  Tensors used;
  std::vector<Elements> to;
  if (root == getRank()) to = used.writes_each(output_tensor_list);
  const ConstElements from = used.reads(input_tensor);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->gather(to, from, root, with); });
}

WorkPtr HeadraceTorchComm::gather_single(at::Tensor& output, const at::Tensor& input, int root, bool async_op,
                                         const tc::GatherSingleOptions& options) {
  Tensors used;
  const ConstElements from = used.reads(input);
  Elements to(nullptr, 0, from.dtype);
  if (root == getRank()) to = used.writes(output);
  return start(std::move(used), async_op, options,
               [&](const OpOptions& with) { return comm_->gather_single(to, from, root, with); });
}

// --- memory that calls use again and again

void HeadraceTorchComm::tensor_register(const at::Tensor& tensor) {
  Tensors used;
  const Elements memory = used.writes(tensor);
  TORCH_CHECK(!used.has_copies(), "the tensor has gaps: tensor_register takes a contiguous tensor");
  take(ready().tensor_register(memory));
}

void HeadraceTorchComm::tensor_deregister(const at::Tensor& tensor) {
  Tensors used;
  take(ready().tensor_deregister(used.writes(tensor)));
}

}  // namespace headrace::torchcomms_backend
