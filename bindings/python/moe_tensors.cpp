// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/moe_tensors.hpp"

#include "bindings/python/convert.hpp"

#include <cstring>
#include <optional>

namespace headrace::python {
namespace {

std::string text_of(std::string_view view) { return std::string(view); }

/// Whether the elements of a row lie side by side.
bool has_dense_rows(const TensorView& view) {
  return view.strides.empty() || view.shape[1] <= 1 || view.strides[1] == 1;
}

RowsOfTensor rows_of(const TensorView& view) {
  const auto width = static_cast<std::int64_t>(element_bytes(view.dtype));
  const bool is_plain = view.strides.empty() || view.shape[0] <= 1;
  return {const_cast<void*>(view.data), view.shape[0], (is_plain ? view.shape[1] : view.strides[0]) * width,
          view.dtype};
}

/// NumPy has no bfloat16 and no float8: their bytes come as integers of the same size.
bool stands_for(DType given, DType expected) {
  if (given == expected) return true;
  const bool is_small =
      expected == DType::bfloat16 || expected == DType::float8_e4m3fn || expected == DType::float8_e5m2;
  const bool is_integer =
      given == DType::uint8 || given == DType::int8 || given == DType::uint16 || given == DType::int16;
  return is_small && is_integer && element_bytes(given) == element_bytes(expected);
}

[[noreturn]] void raise_shape(const char* name, const TensorView& view, const std::string& expected) {
  raise_invalid("the argument " + text_of(name) + " has shape " + shape_text(view.shape) + " of " +
                text_of(dtype_name(view.dtype)) + ", expected " + expected);
}

void check_two_dimensions(const TensorView& view, const char* name, const std::string& expected) {
  if (view.shape.rank() != 2) raise_shape(name, view, expected);
  if (!has_dense_rows(view))
    raise_invalid("the argument " + text_of(name) + " has strides " + shape_text(view.strides) +
                  " elements: the elements of a row must lie side by side, as tensor.contiguous() or "
                  "numpy.ascontiguousarray makes them");
  if (!view.strides.empty() && view.shape[0] > 1 && view.strides[0] < view.shape[1])
    raise_invalid("the argument " + text_of(name) + " has strides " + shape_text(view.strides) +
                  " elements: rows must not overlap, and lie in ascending order");
}

}  // namespace

const TensorView& MoETensors::open(nb::handle object, const char* name, bool writes) {
  const bool on_gpu = device_.kind == Device::Kind::cuda;
  const TensorInput& input =
      inputs_.emplace_back(object.ptr(), TensorRole{"the argument", name, "operations of a MoE"}, cache_,
                           on_gpu ? std::optional(stream_) : std::nullopt);
  const TensorView& view = input.view();
  check_device(view, name);
  if (writes && input.read_only())
    raise_invalid("the argument " + text_of(name) + " is read-only, and is written: give memory that is not");
  return view;
}

void MoETensors::check_device(const TensorView& view, const char* name) const {
  if (view.device == device_ || view.shape.count() == 0) return;
  const std::string here = "the argument " + text_of(name) + " is on " + device_text(view.device);
  if (device_.kind == Device::Kind::cpu)
    raise_invalid(here + ": this MoE moves host memory; give a copy there, as tensor.cpu() makes");
  raise_invalid(here + ": this MoE moves memory of " + device_text(device_) +
                "; give a copy there, as tensor.to(\"" + device_text(device_) + "\") makes");
}

RowsOfTensor MoETensors::rows(nb::handle object, const char* name, DType dtype, std::int64_t columns,
                              bool writes) {
  const TensorView& view = open(object, name, writes);
  const std::string expected = "[any, " + std::to_string(columns) + "] of " + text_of(dtype_name(dtype));
  check_two_dimensions(view, name, expected);
  if (view.shape[1] != columns || !stands_for(view.dtype, dtype)) raise_shape(name, view, expected);
  return rows_of(view);
}

RowsOfTensor MoETensors::row_bytes(nb::handle object, const char* name, std::int64_t bytes) {
  const TensorView& view = open(object, name, false);
  const std::string expected = "two dimensions, " + std::to_string(bytes) + " bytes in each row";
  check_two_dimensions(view, name, expected);
  if (view.shape[1] * static_cast<std::int64_t>(element_bytes(view.dtype)) != bytes)
    raise_shape(name, view, expected);
  return rows_of(view);
}

MoETensors::Scales MoETensors::scales(nb::handle object, std::int64_t bytes) {
  const TensorView& view = open(object, "scales", false);
  const auto width = static_cast<std::int64_t>(element_bytes(view.dtype));
  if (view.shape.rank() != 2 || view.shape[1] * width != bytes)
    raise_shape("scales", view, "two dimensions, " + std::to_string(bytes) + " bytes in each row");
  if (view.strides.empty()) return {view.data, view.shape[0], bytes, width, width};
  // A stride of 0 stands for rows side by side, as they are if there is one row or one element.
  const std::int64_t row = view.shape[0] <= 1 ? bytes : view.strides[0] * width;
  const std::int64_t unit = view.shape[1] <= 1 ? width : view.strides[1] * width;
  if (row == 0 || unit == 0)
    raise_invalid("the argument scales has strides " + shape_text(view.strides) +
                  " elements: rows and their elements must not share memory");
  return {view.data, view.shape[0], row, width, unit};
}

const std::int32_t* MoETensors::count(nb::handle object) {
  const TensorView& view = open(object, "count", false);
  if (view.shape.count() != 1 || view.dtype != DType::int32) raise_shape("count", view, "[1] of int32");
  return static_cast<const std::int32_t*>(view.data);
}

RowsOfTensor MoETensors::dense(nb::handle object, const char* name, DType dtype, std::int64_t columns) {
  const RowsOfTensor tensor = rows(object, name, dtype, columns);
  if (tensor.count > 1 && tensor.stride != columns * static_cast<std::int64_t>(element_bytes(dtype)))
    raise_invalid("the argument " + text_of(name) + " has gaps between its rows: give contiguous memory");
  return tensor;
}

RowsOfTensor MoETensors::contiguous(const TensorView& view, const char* name) {
  const std::int64_t rows = view.shape[0], columns = view.shape[1];
  const auto width = static_cast<std::int64_t>(element_bytes(view.dtype));
  const bool has_gaps = rows > 1 && !view.strides.empty() && view.strides[0] != columns;
  const bool is_dense = rows == 0 || (has_dense_rows(view) && !has_gaps);
  if (is_dense) return {const_cast<void*>(view.data), rows, columns * width, view.dtype};
  if (device_.kind != Device::Kind::cpu)
    raise_invalid("the argument " + text_of(name) + " has strides " + shape_text(view.strides) +
                  " elements: on a GPU give contiguous memory, as tensor.contiguous() makes");
  auto& copy = copies_.emplace_back(static_cast<std::size_t>(rows * columns * width));
  std::byte* to = copy.data();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column, to += width) {
      const std::int64_t at = (row * view.strides[0] + column * view.strides[1]) * width;
      std::memcpy(to, static_cast<const std::byte*>(view.data) + at, static_cast<std::size_t>(width));
    }
  }
  return {copy.data(), rows, columns * width, view.dtype};
}

RowsOfTensor MoETensors::weights(nb::handle object, std::int64_t top_k) {
  const TensorView& view = open(object, "weights", false);
  if (view.shape.rank() != 2 || view.shape[1] != top_k || view.dtype != DType::float32)
    raise_shape("weights", view, "[any, " + std::to_string(top_k) + "] of float32");
  return contiguous(view, "weights");
}

RowsOfTensor MoETensors::experts(nb::handle object, std::int64_t top_k) {
  const TensorView& view = open(object, "experts", false);
  const bool is_number =
      view.dtype == DType::int64 || view.dtype == DType::int32 || view.dtype == DType::uint32;
  if (view.shape.rank() != 2 || view.shape[1] != top_k || !is_number)
    raise_shape("experts", view, "[tokens, " + std::to_string(top_k) + "] of int64, int32 or uint32");
  return contiguous(view, "experts");
}

}  // namespace headrace::python
