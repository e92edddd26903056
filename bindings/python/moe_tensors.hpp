// SPDX-License-Identifier: Apache-2.0
// The tensors of a dispatch or a combine, checked against a configuration.
#pragma once

#include <headrace/moe.hpp>

#include "bindings/python/tensor_input.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace headrace::python {

/// A tensor with two dimensions whose rows have no gaps inside.
struct RowsOfTensor {
  void* data = nullptr;
  std::int64_t count = 0;
  std::int64_t stride = 0;  ///< bytes from one row to the next
  DType dtype = DType::float32;
};

/// Holds the memory of a call's tensors while it lives. Made and destroyed with the GIL.
class MoETensors {
 public:
  /// `device`: where all tensors are; `stream`: which reads them, if that is a GPU.
  MoETensors(ExchangeCache& cache, Device device, void* stream = nullptr)
      : cache_(cache), device_(device), stream_(stream) {}

  /// Raises InvalidArgument, with the argument's name, unless the tensor has this type and row, on the
  /// device.
  ///   columns  elements of a row
  RowsOfTensor rows(nb::handle object, const char* name, DType dtype, std::int64_t columns,
                    bool writes = false);
  /// The same for rows of so many bytes of any type.
  RowsOfTensor row_bytes(nb::handle object, const char* name, std::int64_t bytes);
  /// Scales of rows of so many bytes, with any strides.
  struct Scales {
    const void* data = nullptr;
    std::int64_t count = 0;
    std::int64_t stride = 0, unit_bytes = 0, unit_stride = 0;  ///< as in headrace::MoETokens
  };
  Scales scales(nb::handle object, std::int64_t bytes);
  /// One number of int32 in memory that others may change.
  const std::int32_t* count(nb::handle object);
  /// The same as rows, without gaps between the rows. `dtype`: of the configuration; a type of the same size
  /// may stand for a small float, which NumPy does not have.
  RowsOfTensor dense(nb::handle object, const char* name, DType dtype, std::int64_t columns);
  /// Weights of entries. What is not contiguous is copied; on a GPU it is refused.
  RowsOfTensor weights(nb::handle object, std::int64_t top_k);
  /// Numbers of experts, of one of their types. The same.
  RowsOfTensor experts(nb::handle object, std::int64_t top_k);

 private:
  const TensorView& open(nb::handle object, const char* name, bool writes);
  RowsOfTensor contiguous(const TensorView& view, const char* name);
  void check_device(const TensorView& view, const char* name) const;

  ExchangeCache& cache_;
  const Device device_;
  void* const stream_;
  std::deque<TensorInput> inputs_;
  std::deque<std::vector<std::byte>> copies_;
};

}  // namespace headrace::python
