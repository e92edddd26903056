// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/comm/tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_set>

namespace headrace::torch_group {
namespace {

void check(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu(), "the tensor is on ", tensor.device(),
              ", and \"headrace\" takes tensors on the CPU: use another backend for others, as \"nccl\"");
  TORCH_CHECK(tensor.layout() == at::kStrided, "the tensor has the layout ", tensor.layout(),
              ", which all_reduce alone takes: give tensor.to_dense()");
}

/// Whether the elements lie in memory as they are, one after another.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor plain_copy(const at::Tensor& tensor) {
  const at::NoGradGuard no_gradient;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kChar:
      return DType::int8;
    case at::kShort:
      return DType::int16;
    case at::kInt:
      return DType::int32;
    case at::kLong:
      return DType::int64;
    case at::kByte:
      return DType::uint8;
    case at::kUInt16:
      return DType::uint16;
    case at::kUInt32:
      return DType::uint32;
    case at::kUInt64:
      return DType::uint64;
    case at::kBool:
      return DType::boolean;
    case at::kComplexFloat:
      return DType::complex64;
    case at::kComplexDouble:
      return DType::complex128;
    case at::kFloat8_e4m3fn:
      return DType::float8_e4m3fn;
    case at::kFloat8_e5m2:
      return DType::float8_e5m2;
    default:
      break;
  }
  TORCH_CHECK(false, "the tensor has the type ", tensor.scalar_type(),
              ", which \"headrace\" does not have: move its bytes, tensor.view(torch.uint8)");
}

}  // namespace

Elements Tensors::add(const at::Tensor& tensor, bool output, bool written, bool apart) {
  check(tensor);
  const DType dtype = dtype_of(tensor);
  Used& used = used_.emplace_back(Used{tensor, {}, output, written});
  if (!is_plain(tensor)) used.copy = plain_copy(tensor);
  if (apart && !used.copy.defined()) used.copy = tensor.detach().clone();
  const at::Tensor& memory = used.copy.defined() ? used.copy : tensor;
  // A tensor that is read alone stays shared with its copies (torch copies on write).
  void* data = written ? memory.mutable_data_ptr() : const_cast<void*>(memory.const_data_ptr());
  return {data, static_cast<std::size_t>(memory.numel()), dtype};
}

ConstElements Tensors::reads(const at::Tensor& tensor) { return add(tensor, false, false); }
Elements Tensors::writes(const at::Tensor& tensor) { return add(tensor, true, true); }
Elements Tensors::uses(const at::Tensor& tensor, bool written) { return add(tensor, true, written); }

std::vector<ConstElements> Tensors::reads_each(std::span<const at::Tensor> tensors) {
  std::vector<ConstElements> all;
  all.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) all.push_back(reads(tensor));
  return all;
}

std::vector<Elements> Tensors::writes_each(std::span<const at::Tensor> tensors) {
  std::vector<Elements> all;
  all.reserve(tensors.size());
  std::unordered_set<const void*> seen;
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    const bool seen_before = tensor.numel() != 0 && !seen.insert(tensor.const_data_ptr()).second;
    all.push_back(add(tensor, true, true, seen_before));
  }
  return all;
}

bool Tensors::has_copies() const { return std::any_of(used_.begin(), used_.end(), needs_copy); }

void Tensors::copy_back() {
  for (Used& used : used_) {
    if (!needs_copy(used)) continue;
    const at::NoGradGuard no_gradient;
    used.tensor.detach().copy_(used.copy);
  }
}

TensorList Tensors::inputs() const {
  TensorList inputs;
  for (const Used& used : used_)
    if (!used.output) inputs.push_back(used.tensor);
  return inputs.empty() ? outputs() : inputs;
}

TensorList Tensors::outputs() const {
  TensorList outputs;
  for (const Used& used : used_)
    if (used.output) outputs.push_back(used.tensor);
  return outputs;
}

bool of_one_length(std::span<const at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == tensors.front().numel(); });
}

}  // namespace headrace::torch_group
