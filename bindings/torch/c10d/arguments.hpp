// SPDX-License-Identifier: Apache-2.0
// Arguments of torch's calls that Headrace has under other names.
#pragma once

#include <headrace/comm_call.hpp>

#include "bindings/torch/comm/tensors.hpp"

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace headrace::torch_group {

/// The tensor of a list of one: torch passes lists, which had an entry for each GPU of a process.
const at::Tensor& only(const TensorList& tensors);
/// errors: c10::ValueError (torch has it, and Headrace does not)
ReduceOp reduction_of(const c10d::ReduceOp& op);

}  // namespace headrace::torch_group
