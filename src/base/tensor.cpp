// SPDX-License-Identifier: Apache-2.0
#include <headrace/tensor.hpp>

#include "base/errors.hpp"

#include <fmt/ranges.h>

#include <cstring>
#include <new>

namespace headrace {
namespace {

constexpr std::size_t alignment = 64;

/// Bytes of a tensor with this shape.
Result<std::size_t> bytes_of(DType dtype, const Shape& shape) {
  std::uint64_t bytes = element_bytes(dtype);
  for (const std::int64_t length : shape) {
    if (length < 0)
      return make_error(Code::invalid_argument, "shape {} has a negative length", shape_text(shape));
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes) || bytes > PTRDIFF_MAX)
      return make_error(Code::invalid_argument, "shape {} is larger than any memory", shape_text(shape));
  }
  return static_cast<std::size_t>(bytes);
}

/// Copies the elements below one dimension to `to`; returns the position after them.
std::byte* copy_part(const TensorView& from, const std::byte* data, std::size_t dimension, std::byte* to) {
  const std::size_t width = element_bytes(from.dtype);
  if (dimension == from.shape.rank()) {
    std::memcpy(to, data, width);
    return to + width;
  }
  const std::ptrdiff_t step = from.strides[dimension] * static_cast<std::ptrdiff_t>(width);
  for (std::int64_t i = 0; i < from.shape[dimension]; ++i)
    to = copy_part(from, data + i * step, dimension + 1, to);
  return to;
}

}  // namespace

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

bool TensorView::is_contiguous() const noexcept {
  if (strides.empty()) return true;
  if (strides.rank() != shape.rank()) return false;
  std::int64_t expected = 1;
  bool same = true;
  for (std::size_t i = shape.rank(); i-- > 0;) {
    if (shape[i] == 0) return true;  // no elements: no gaps
    if (shape[i] != 1 && strides[i] != expected) same = false;
    expected *= shape[i];
  }
  return same;
}

Result<Tensor> Tensor::zeros(DType dtype, const Shape& shape) {
  HEADRACE_TRY(bytes, bytes_of(dtype, shape));
  const std::size_t room = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* const memory = ::operator new(room, std::align_val_t(alignment), std::nothrow);
  if (memory == nullptr) return make_error(Code::exhausted, "no memory for {} bytes", bytes);
  std::memset(memory, 0, room);
  return Tensor({memory, dtype, shape, {}, {}}, memory,
                [](void* handle) { ::operator delete(handle, std::align_val_t(alignment)); });
}

Result<Tensor> Tensor::copy_of(const TensorView& view) {
  if (view.device.kind != Device::Kind::cpu)
    return make_error(Code::invalid_argument, "a tensor on {} must be copied by Model::copy_to",
                      device_text(view.device));
  HEADRACE_TRY(copy, zeros(view.dtype, view.shape));
  if (view.shape.count() == 0) return copy;
  if (view.is_contiguous())
    std::memcpy(copy.data(), view.data, copy.bytes());
  else
    copy_part(view, static_cast<const std::byte*>(view.data), 0, static_cast<std::byte*>(copy.data()));
  return copy;
}

}  // namespace headrace
