// SPDX-License-Identifier: Apache-2.0
// A Python object's memory as a model's input, for the length of one call.
//
// Three ways lead to it, the quickest first: torch's table of C functions for DLPack, which asks no Python at
// all; the buffer protocol (NumPy, bytes, array); `__dlpack__`. NumPy and torch themselves are not needed for
// any.
#pragma once

#include <headrace/tensor.hpp>

#include <nanobind/nanobind.h>

#include <optional>

namespace nb = nanobind;

namespace headrace::python {

/// Which types have torch's table, so that it is looked up once a type. One a model, used with the GIL.
class ExchangeCache {
 public:
  /// The table of the object's type, or null.
  [[nodiscard]] const void* table_of(PyObject* object);
  /// Whether the object, of the type asked for last, is a view whose bytes are not yet its values: torch
  /// negates and conjugates late, and its table does not tell.
  [[nodiscard]] bool is_late(PyObject* object, bool complex) const;

 private:
  nb::object is_neg_, is_conj_;  ///< the names of torch's questions, where the type has them
  PyTypeObject* type_ = nullptr;
  nb::object keep_type_;
  const void* table_ = nullptr;
};

/// Holds the object's memory while it lives. Made and destroyed with the GIL.
class TensorInput {
 public:
  /// Raises InvalidArgument, naming the input, where the object has no memory that can be taken, or a type
  /// that models lack.
  ///   stream  of a GPU, on which the memory will be read: who hands it out by `__dlpack__` sees to it that
  ///   it
  ///           is ready there. None: the default stream
  TensorInput(PyObject* object, const char* name, ExchangeCache& cache, std::optional<void*> stream = {});
  TensorInput(TensorInput&& other) noexcept;
  TensorInput& operator=(TensorInput&&) = delete;
  ~TensorInput();

  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  /// Whether its owner lets nobody write into it.
  [[nodiscard]] bool read_only() const noexcept { return has_buffer_ && buffer_.readonly != 0; }

 private:
  bool take_exchange(PyObject* object, const char* name, ExchangeCache& cache);
  bool take_buffer(PyObject* object, const char* name);
  bool take_dlpack(PyObject* object, const char* name, std::optional<void*> stream);

  TensorView view_;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
  nb::object kept_;  ///< the capsule that owns the memory, where there is one
};

}  // namespace headrace::python
