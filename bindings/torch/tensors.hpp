// SPDX-License-Identifier: Apache-2.0
// Between the table's tensors and torch's.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace headrace::torch_runtime {

/// torch's element type. Throws what torch throws if this torch has none of that number.
[[nodiscard]] at::ScalarType scalar_type(std::int32_t dtype);
[[nodiscard]] c10::Device device_of(const headrace_tensor_v1& tensor);

/// A tensor on the described memory, which it does not own.
[[nodiscard]] at::Tensor borrow(const headrace_tensor_v1& tensor);

/// Describes a tensor that is row-major without gaps, owns its memory and has at most
/// HEADRACE_MODEL_MOST_DIMENSIONS dimensions; the description's handle keeps it.
void give(at::Tensor tensor, headrace_tensor_v1& out);
/// Describes a tensor and owns nothing.
void describe(const at::Tensor& tensor, headrace_tensor_v1& out);
void release(void* handle) noexcept;

/// Row-major without gaps, in memory of its own.
///
/// A model may return one of its inputs or weights as it is; those are made from foreign memory, which nobody
/// owns and which is gone or overwritten before the output is.
[[nodiscard]] at::Tensor owned(at::Tensor tensor);

}  // namespace headrace::torch_runtime
