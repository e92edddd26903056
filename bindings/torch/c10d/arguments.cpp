// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/c10d/arguments.hpp"

#include <ATen/ATen.h>

namespace headrace::torch_group {
namespace {

double factor_of(const c10d::ReduceOp& op) {
  const auto* premul = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(premul != nullptr, "PREMUL_SUM has no factor: torch.distributed._make_nccl_premul_sum");
  return premul->tensor_factor.defined() ? premul->tensor_factor.item<double>() : premul->double_factor;
}

}  // namespace

const at::Tensor& only(const TensorList& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, tensors.size(),
                    " tensors were given: an operation takes one, or its _coalesced form");
  return tensors.front();
}

ReduceOp reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    case c10d::ReduceOp::PREMUL_SUM:
      return {ReduceOp::premul_sum, factor_of(op)};
    case c10d::ReduceOp::UNUSED:
      break;
  }
  TORCH_CHECK_VALUE(
      false, "reduction ", static_cast<int>(op.op_),
      " is none of Headrace: it has SUM, PRODUCT, MIN, MAX, AVG, BAND, BOR, BXOR and PREMUL_SUM");
}

}  // namespace headrace::torch_group
