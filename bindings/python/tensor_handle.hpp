// SPDX-License-Identifier: Apache-2.0
// Tensors of models and windows for Python.
#pragma once

#include <headrace/model.hpp>
#include <headrace/tensor.hpp>

#include <Python.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

namespace headrace::python {

/// A run whose end has not been waited for.
struct Pending {
  std::shared_ptr<Model> model;
  void* stream = nullptr;
};

/// A tensor. Arrays of it share its memory and keep it alive.
struct PyTensor {
  std::shared_ptr<Tensor> tensor;
  std::optional<Pending> pending;  ///< set: it is ready only in the order of that stream
  std::array<Py_ssize_t, most_tensor_dimensions> shape{}, strides_bytes{};

  explicit PyTensor(Tensor from, std::optional<Pending> run = {})
      : tensor(std::make_shared<Tensor>(std::move(from))), pending(std::move(run)) {
    auto stride = static_cast<Py_ssize_t>(headrace::element_bytes(tensor->dtype()));
    for (std::size_t i = tensor->shape().rank(); i-- > 0;) {
      shape[i] = static_cast<Py_ssize_t>(tensor->shape()[i]);
      strides_bytes[i] = stride;
      stride *= std::max<Py_ssize_t>(shape[i], 1);
    }
  }
};

}  // namespace headrace::python
