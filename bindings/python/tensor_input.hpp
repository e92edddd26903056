// SPDX-License-Identifier: Apache-2.0
// The memory of a Python object as a tensor of a model or of a collective, for one call.
//
// It tries three protocols, the fastest first: torch's table of C functions for DLPack, which runs no Python
// code; the buffer protocol (NumPy, bytes, array); `__dlpack__`. None of them needs NumPy or torch itself.
#pragma once

#include <headrace/tensor.hpp>

#include <nanobind/nanobind.h>

#include <optional>

namespace nb = nanobind;

namespace headrace::python {

/// Remembers the DLPack table of the last type, so that it is looked up once. One object a model or
/// communicator; needs the GIL.
class ExchangeCache {
 public:
  /// The table of the object's type, or null.
  [[nodiscard]] const void* table_of(PyObject* object);
  /// Whether the object, which has the last type, is a view whose bytes are not its values: torch negates and
  /// conjugates lazily, and its table does not tell this.
  [[nodiscard]] bool is_late(PyObject* object, bool complex) const;

 private:
  nb::object is_neg_, is_conj_;  ///< the names of torch's methods, if the type has them
  PyTypeObject* type_ = nullptr;
  nb::object keep_type_;
  const void* table_ = nullptr;
};

/// What errors say of a tensor: "input x: ..., which models do not take".
struct TensorRole {
  const char* kind;
  const char* name;
  const char* taker;
};

/// Holds the object's memory while it lives. Made and destroyed with the GIL.
class TensorInput {
 public:
  /// Raises InvalidArgument with the tensor's role if the object has none of the protocols, or a dtype that
  /// is none of DType.
  ///   stream  the CUDA stream that will read the memory: `__dlpack__` makes the memory ready in its order.
  ///   nullopt:
  ///           the default stream
  TensorInput(PyObject* object, const TensorRole& role, ExchangeCache& cache,
              std::optional<void*> stream = {});
  TensorInput(TensorInput&& other) noexcept;
  TensorInput& operator=(TensorInput&&) = delete;
  ~TensorInput();

  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  /// Whether the memory is read-only.
  [[nodiscard]] bool read_only() const noexcept { return has_buffer_ && buffer_.readonly != 0; }

 private:
  bool take_exchange(PyObject* object, const TensorRole& role, ExchangeCache& cache);
  bool take_buffer(PyObject* object, const TensorRole& role);
  bool take_dlpack(PyObject* object, const TensorRole& role, std::optional<void*> stream);

  TensorView view_;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
  nb::object kept_;  ///< the capsule that owns the memory, if there is one
};

}  // namespace headrace::python
