// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/tensors.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace headrace::torch_runtime {
namespace {

constexpr std::array types{
    std::pair{HEADRACE_FLOAT32, at::kFloat},
    std::pair{HEADRACE_FLOAT64, at::kDouble},
    std::pair{HEADRACE_FLOAT16, at::kHalf},
    std::pair{HEADRACE_BFLOAT16, at::kBFloat16},
    std::pair{HEADRACE_INT8, at::kChar},
    std::pair{HEADRACE_INT16, at::kShort},
    std::pair{HEADRACE_INT32, at::kInt},
    std::pair{HEADRACE_INT64, at::kLong},
    std::pair{HEADRACE_UINT8, at::kByte},
    std::pair{HEADRACE_UINT16, at::kUInt16},
    std::pair{HEADRACE_UINT32, at::kUInt32},
    std::pair{HEADRACE_UINT64, at::kUInt64},
    std::pair{HEADRACE_BOOLEAN, at::kBool},
    std::pair{HEADRACE_COMPLEX64, at::kComplexFloat},
    std::pair{HEADRACE_COMPLEX128, at::kComplexDouble},
    std::pair{HEADRACE_FLOAT8_E4M3FN, at::kFloat8_e4m3fn},
    std::pair{HEADRACE_FLOAT8_E5M2, at::kFloat8_e5m2},
};

std::int32_t dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : types)
    if (theirs == type) return ours;
  TORCH_CHECK(false, "a tensor of type ", c10::toString(type), " has no counterpart outside torch");
}

}  // namespace

at::ScalarType scalar_type(std::int32_t dtype) {
  for (const auto& [ours, theirs] : types)
    if (ours == dtype) return theirs;
  TORCH_CHECK(false, "there is no element type of number ", dtype);
}

c10::Device device_of(const headrace_tensor_v1& tensor) {
  if (tensor.device_kind == HEADRACE_CPU) return {c10::DeviceType::CPU};
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(tensor.device_index)};
}

at::Tensor borrow(const headrace_tensor_v1& tensor) {
  const c10::Device device = device_of(tensor);
  const at::IntArrayRef shape(tensor.shape, tensor.rank);
  // torch asks the driver for the memory's device, and refuses memory of another GPU. An empty tensor has no
  // memory to ask about.
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  return at::for_blob(const_cast<void*>(tensor.data), shape)
      .strides(at::IntArrayRef(tensor.strides, tensor.rank))
      .options(at::TensorOptions().dtype(scalar_type(tensor.dtype)).device(device))
      .target_device(empty ? std::optional(device) : std::nullopt)
      .make_tensor();
}

void describe(const at::Tensor& tensor, headrace_tensor_v1& out) {
  const at::IntArrayRef sizes = tensor.sizes();
  const at::IntArrayRef strides = tensor.strides();
  TORCH_CHECK(sizes.size() <= HEADRACE_MODEL_MOST_DIMENSIONS, "a tensor has ", sizes.size(),
              " dimensions, and at most ", HEADRACE_MODEL_MOST_DIMENSIONS, " are supported");
  out.data = tensor.const_data_ptr();
  out.handle = nullptr;
  out.dtype = dtype_of(tensor.scalar_type());
  out.device_kind = tensor.is_cpu() ? HEADRACE_CPU : HEADRACE_CUDA;
  out.device_index = tensor.is_cpu() ? 0 : tensor.device().index();
  out.rank = static_cast<std::uint32_t>(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out.shape[i] = sizes[i];
    out.strides[i] = strides[i];
  }
}

void give(at::Tensor tensor, headrace_tensor_v1& out) {
  describe(tensor, out);
  // The reference itself is the handle: no allocation besides the tensor's own.
  out.handle = tensor.unsafeReleaseTensorImpl();
}

void release(void* handle) noexcept {
  if (handle == nullptr) return;
  c10::raw::intrusive_ptr::decref(static_cast<c10::TensorImpl*>(handle));
}

at::Tensor owned(at::Tensor tensor) {
  if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg())
    return tensor.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
  // Memory from torch's allocator has a context for its release; memory from a foreign pointer has none.
  const bool borrowed = tensor.numel() > 0 && tensor.storage().data_ptr().get_context() == nullptr;
  return borrowed ? tensor.clone(at::MemoryFormat::Contiguous) : std::move(tensor);
}

}  // namespace headrace::torch_runtime
