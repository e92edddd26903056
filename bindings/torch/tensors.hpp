// SPDX-License-Identifier: Apache-2.0
// Conversion between the table's tensors and torch's.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace headrace::torch_runtime {

/// torch's element type. Throws torch's exception if this torch has none with that number.
[[nodiscard]] at::ScalarType scalar_type(std::int32_t dtype);
[[nodiscard]] c10::Device device_of(const headrace_tensor_v1& tensor);

/// A tensor over the described memory, which it does not own.
[[nodiscard]] at::Tensor borrow(const headrace_tensor_v1& tensor);

/// Describes a tensor that is row-major without gaps, owns its memory and has at most
/// HEADRACE_MODEL_MOST_DIMENSIONS dimensions. The description's handle keeps the tensor.
void give(at::Tensor tensor, headrace_tensor_v1& out);
/// Describes a tensor; owns nothing.
void describe(const at::Tensor& tensor, headrace_tensor_v1& out);
void release(void* handle) noexcept;

/// A tensor that is row-major without gaps, in memory of its own.
///
/// A model may return one of its inputs or weights unchanged. These are made from foreign memory without an
/// owner, which may be freed or overwritten before the output is.
[[nodiscard]] at::Tensor owned(at::Tensor tensor);

}  // namespace headrace::torch_runtime
