// SPDX-License-Identifier: Apache-2.0
// The operations of the process group.
#include "bindings/torch/c10d/backend.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace headrace::torch_group {
namespace {

using c10d::OpType;

const TensorList& only_list(const std::vector<TensorList>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, lists.size(),
                    " lists of tensors were given: an operation takes one, or its _coalesced form");
  return lists.front();
}

/// The tensors of all lists: those of ranks that are not the root are empty.
TensorList flat(const std::vector<TensorList>& lists) {
  TensorList all;
  for (const TensorList& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void check_as_many(const TensorList& outputs, const TensorList& inputs) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), outputs.size(), " outputs and ", inputs.size(),
                    " inputs were given: an operation takes one of each");
}

/// Outputs and input of one all_gather, whose counts may differ.
struct Gathered {
  std::vector<Elements> outputs;
  ConstElements input;
  bool of_one_length;

  Gathered(Tensors& tensors, const TensorList& given, const at::Tensor& tensor)
      : outputs(tensors.writes_each(given)),
        input(tensors.reads(tensor)),
        of_one_length(torch_group::of_one_length(given)) {}
  Result<Work> start(Comm& comm, const OpOptions& options) const {
    return of_one_length ? comm.all_gather(outputs, input, options)
                         : comm.all_gather_v(outputs, input, options);
  }
};

/// Output and input of an operation that has a tensor of each.
struct Pair {
  Elements output;
  ConstElements input;

  Pair(Tensors& tensors, const at::Tensor& to, const at::Tensor& from)
      : output(tensors.writes(to)), input(tensors.reads(from)) {}
};

std::vector<Pair> pairs_of(Tensors& tensors, const TensorList& outputs, const TensorList& inputs) {
  check_as_many(outputs, inputs);
  std::vector<Pair> pairs;
  pairs.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) pairs.emplace_back(tensors, outputs[i], inputs[i]);
  return pairs;
}

}  // namespace

// --- all ranks give, all receive

WorkPtr GroupBackend::allreduce(TensorList& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(tensors);
  if (tensor.layout() == at::kSparse) return allreduce_sparse(tensors, opts);
  const ReduceOp op = reduction_of(opts.reduceOp);
  Tensors used;
  const Elements memory = used.writes(tensor);
  return start({OpType::ALLREDUCE, "all_reduce", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) { return comm_->all_reduce(memory, op, options); });
}

WorkPtr GroupBackend::allreduce_coalesced(TensorList& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const ReduceOp op = reduction_of(opts.reduceOp);
  Tensors used;
  const std::vector<Elements> memory = used.writes_each(tensors);
  ++number_;
  return start_each(
      {OpType::ALLREDUCE_COALESCED, "all_reduce", opts.timeout, opts.asyncOp}, used, memory.size(),
      [&](std::size_t i, const OpOptions& options) { return comm_->all_reduce(memory[i], op, options); });
}

WorkPtr GroupBackend::allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                                const c10d::AllgatherOptions& opts) {
  Tensors used;
  const Gathered gathered(used, only_list(outputs), only(inputs));
  return start({OpType::ALLGATHER, "all_gather", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) { return gathered.start(*comm_, options); });
}

WorkPtr GroupBackend::allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                                          const c10d::AllgatherOptions& opts) {
  // outputs[r][i] gets inputs[i] of rank r.
  Tensors used;
  std::vector<Gathered> all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TensorList of_ranks;
    for (const TensorList& list : outputs) {
      check_as_many(list, inputs);
      of_ranks.push_back(list[i]);
    }
    all.emplace_back(used, of_ranks, inputs[i]);
  }
  ++number_;
  return start_each({OpType::ALLGATHER_COALESCED, "all_gather", opts.timeout, opts.asyncOp}, used, all.size(),
                    [&](std::size_t i, const OpOptions& options) { return all[i].start(*comm_, options); });
}

WorkPtr GroupBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllgatherOptions& opts) {
  Tensors used;
  const Pair pair(used, output, input);
  return start(
      {OpType::_ALLGATHER_BASE, "all_gather", opts.timeout, opts.asyncOp}, used,
      [&](const OpOptions& options) { return comm_->all_gather_single(pair.output, pair.input, options); });
}

WorkPtr GroupBackend::allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  Tensors used;
  const std::vector<Pair> pairs = pairs_of(used, outputs, inputs);
  ++number_;
  return start_each({OpType::COALESCED, "all_gather", opts.timeout, opts.asyncOp}, used, pairs.size(),
                    [&](std::size_t i, const OpOptions& options) {
                      return comm_->all_gather_single(pairs[i].output, pairs[i].input, options);
                    });
}

WorkPtr GroupBackend::reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                     const c10d::ReduceScatterOptions& opts) {
  const ReduceOp op = reduction_of(opts.reduceOp);
  const TensorList& parts = only_list(inputs);
  Tensors used;
  const Elements output = used.writes(only(outputs));
  const std::vector<ConstElements> memory = used.reads_each(parts);
  return start({OpType::REDUCE_SCATTER, "reduce_scatter", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) {
                 return of_one_length(parts) ? comm_->reduce_scatter(output, memory, op, options)
                                             : comm_->reduce_scatter_v(output, memory, op, options);
               });
}

WorkPtr GroupBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& opts) {
  const ReduceOp op = reduction_of(opts.reduceOp);
  Tensors used;
  const Pair pair(used, output, input);
  return start({OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) {
                 return comm_->reduce_scatter_single(pair.output, pair.input, op, options);
               });
}

WorkPtr GroupBackend::reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  const ReduceOp op = reduction_of(opts.reduceOp);
  Tensors used;
  const std::vector<Pair> pairs = pairs_of(used, outputs, inputs);
  ++number_;
  return start_each({OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter", opts.timeout, opts.asyncOp},
                    used, pairs.size(), [&](std::size_t i, const OpOptions& options) {
                      return comm_->reduce_scatter_single(pairs[i].output, pairs[i].input, op, options);
                    });
}

WorkPtr GroupBackend::alltoall(TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& opts) {
  Tensors used;
  const std::vector<Elements> to = used.writes_each(outputs);
  const std::vector<ConstElements> from = used.reads_each(inputs);
  return start({OpType::ALLTOALL, "all_to_all", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) { return comm_->all_to_all(to, from, options); });
}

WorkPtr GroupBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                                    std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& opts) {
  Tensors used;
  const Pair pair(used, output, input);
  const std::vector<std::size_t> to = elements_of_ranks(output, output_rows);
  const std::vector<std::size_t> from = elements_of_ranks(input, input_rows);
  return start({OpType::ALLTOALL_BASE, "all_to_all", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) {
                 return comm_->all_to_all_v_single(pair.output, pair.input, to, from, options);
               });
}

std::vector<std::size_t> GroupBackend::elements_of_ranks(const at::Tensor& tensor,
                                                         std::vector<int64_t> rows) const {
  const int64_t count = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows.empty()) {
    TORCH_CHECK(count % size_ == 0, "Tensor's dim 0 does not divide equally across group size: ", count,
                " rows, ", size_, " ranks. Give split sizes");
    rows.assign(static_cast<std::size_t>(size_), count / size_);
  }
  const bool negative = std::any_of(rows.begin(), rows.end(), [](int64_t part) { return part < 0; });
  const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK(sum == count && !negative, "Split sizes doesn't match total dim 0 size: ", rows, " are ", sum,
              " rows, and the tensor has ", count);
  const int64_t of_row = count == 0 ? 0 : tensor.numel() / count;
  std::vector<std::size_t> elements;
  elements.reserve(rows.size());
  for (const int64_t part : rows) elements.push_back(static_cast<std::size_t>(part * of_row));
  return elements;
}

WorkPtr GroupBackend::barrier(const c10d::BarrierOptions& opts) {
  Tensors none;
  return start({OpType::BARRIER, "barrier", opts.timeout, opts.asyncOp}, none,
               [&](const OpOptions& options) { return comm_->barrier(options); });
}

// --- one rank gives, or one receives

WorkPtr GroupBackend::broadcast(TensorList& tensors, const c10d::BroadcastOptions& opts) {
  const int root = static_cast<int>(opts.rootRank);
  Tensors used;
  const Elements memory = used.uses(only(tensors), root != rank_);
  return start({OpType::BROADCAST, "broadcast", opts.timeout, opts.asyncOp}, used,
               [&](const OpOptions& options) { return comm_->broadcast(memory, root, options); });
}

WorkPtr GroupBackend::reduce(TensorList& tensors, const c10d::ReduceOptions& opts) {
  const ReduceOp op = reduction_of(opts.reduceOp);
  Tensors used;
  const Elements memory = used.writes(only(tensors));
  return start({OpType::REDUCE, "reduce", opts.timeout, opts.asyncOp}, used, [&](const OpOptions& options) {
    return comm_->reduce(memory, static_cast<int>(opts.rootRank), op, options);
  });
}

WorkPtr GroupBackend::gather(std::vector<TensorList>& outputs, TensorList& inputs,
                             const c10d::GatherOptions& opts) {
  Tensors used;
  const std::vector<Elements> to = used.writes_each(flat(outputs));
  const ConstElements from = used.reads(only(inputs));
  return start({OpType::GATHER, "gather", opts.timeout, opts.asyncOp}, used, [&](const OpOptions& options) {
    return comm_->gather(to, from, static_cast<int>(opts.rootRank), options);
  });
}

WorkPtr GroupBackend::scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                              const c10d::ScatterOptions& opts) {
  Tensors used;
  const Elements to = used.writes(only(outputs));
  const std::vector<ConstElements> from = used.reads_each(flat(inputs));
  return start({OpType::SCATTER, "scatter", opts.timeout, opts.asyncOp}, used, [&](const OpOptions& options) {
    return comm_->scatter(to, from, static_cast<int>(opts.rootRank), options);
  });
}

// --- from rank to rank

WorkPtr GroupBackend::send(TensorList& tensors, int destination, int tag) {
  Tensors used;
  const ConstElements memory = used.reads(only(tensors));
  return start_message(
      {OpType::SEND, "send", c10d::kUnsetTimeout, true}, used, tag,
      [&](const MessageOptions& options) { return comm_->send(memory, destination, options); });
}

WorkPtr GroupBackend::recv(TensorList& tensors, int source, int tag) {
  return receive({OpType::RECV, "recv", c10d::kUnsetTimeout, true}, tensors, source, tag);
}

WorkPtr GroupBackend::recvAnysource(TensorList& tensors, int tag) {
  return receive({OpType::RECVANYSOURCE, "recvAnySource", c10d::kUnsetTimeout, true}, tensors, any_source,
                 tag);
}

WorkPtr GroupBackend::receive(const Operation& operation, TensorList& tensors, int source, int tag) {
  Tensors used;
  const Elements memory = used.writes(only(tensors));
  return start_message(operation, used, tag,
                       [&](const MessageOptions& options) { return comm_->recv(memory, source, options); });
}

}  // namespace headrace::torch_group
