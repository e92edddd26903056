// SPDX-License-Identifier: Apache-2.0
// The sum of sparse COO tensors: every rank gathers the entries of all and adds them.
#include "bindings/torch/c10d/backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace headrace::torch_group {
namespace {

using Counts = std::vector<int64_t>;

Counts entries_of_ranks(Comm& comm, const at::Tensor& mine, const OpOptions& options) {
  const std::vector<int64_t> count{mine._nnz()};
  Counts counts(static_cast<std::size_t>(comm.size()));
  take(comm.all_gather_single(counts, count, options));
  return counts;
}

/// The rows of all ranks in one tensor.
at::Tensor gather_rows(Comm& comm, const at::Tensor& rows, const Counts& counts, const OpOptions& options) {
  auto sizes = rows.sizes().vec();
  sizes[0] = 0;
  for (const int64_t count : counts) sizes[0] += count;
  at::Tensor gathered = at::empty(sizes, rows.options());
  Tensors used;
  const std::vector<Elements> parts = used.writes_each(gathered.split_with_sizes(counts));
  take(comm.all_gather_v(parts, used.reads(rows), options));
  return gathered;
}

}  // namespace

WorkPtr GroupBackend::allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(opts.reduceOp.op_ == c10d::ReduceOp::SUM,
              "a sparse tensor takes ReduceOp.SUM: give tensor.to_dense() for others");
  const at::NoGradGuard no_gradient;
  const at::Tensor& tensor = only(tensors);
  Tensors outputs;
  outputs.returns(tensor);
  auto work = begin({c10d::OpType::_ALLREDUCE_SPARSE, "all_reduce", opts.timeout, opts.asyncOp}, outputs);
  ++number_;
  OpOptions options;
  options.timeout = limit_of(opts.timeout);
  const at::Tensor mine = tensor.coalesce();
  const Counts counts = entries_of_ranks(*comm_, mine, options);
  const at::Tensor indices = gather_rows(*comm_, mine.indices().t(), counts, options);
  const at::Tensor values = gather_rows(*comm_, mine.values(), counts, options);
  tensor.copy_(at::sparse_coo_tensor(indices.t(), values, tensor.sizes()).coalesce());
  return begun(std::move(work));
}

}  // namespace headrace::torch_group
