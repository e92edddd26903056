// SPDX-License-Identifier: Apache-2.0
// The memory of a Python object, by the buffer protocol or by DLPack.
#pragma once

#include <headrace/memory.hpp>

#include "bindings/python/interpreter.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headrace::python {

/// While it lives, the object can be neither freed nor resized. It needs neither NumPy nor torch: their
/// arrays have the protocols that Python and DLPack define.
class ArrayView final : public Held {
 public:
  /// Null if the object has neither protocol. Raises the object's own error if it refuses.
  static std::shared_ptr<ArrayView> open(nb::handle object);
  /// Opens an object in GPU memory whose bytes are read in the order of a stream that the caller names.
  /// DLPack is told to make no stream wait for another, which would be an error during a capture. Null if the
  /// object is not in GPU memory.
  static std::shared_ptr<ArrayView> open_on_gpu(nb::handle object);
  ~ArrayView() override;

  enum class Element { other, signed_integer, unsigned_integer };

  std::byte* data = nullptr;
  std::size_t length_bytes = 0;
  bool writable = false;
  MemoryKind kind = MemoryKind::dram;
  int device = -1;
  Element element = Element::other;
  std::size_t element_bytes = 1;
  std::string dtype;         ///< for error messages: "int32", or the buffer's format if it has no such name
  bool has_objects = false;  ///< elements are, or contain, addresses of Python objects
  std::vector<std::int64_t> shape;          ///< empty: a scalar
  std::vector<std::int64_t> strides_bytes;  ///< of each dimension; `data` is the address of element 0, 0, ...

  /// Row-major without gaps.
  [[nodiscard]] bool is_c_contiguous() const;
  /// The elements fill length_bytes from `data` without a gap, in any order of dimensions.
  [[nodiscard]] bool is_dense() const;
  [[nodiscard]] std::int64_t count() const;
  /// The distance from one element to the next along a dimension; may be negative.
  [[nodiscard]] std::int64_t stride_bytes(std::size_t dimension) const { return strides_bytes[dimension]; }
  /// Raises InvalidArgument, about object `page` of several, if it has_objects.
  void refuse_objects(std::uint64_t page) const;
  /// "int32 array of shape (3, 4)", for error messages.
  [[nodiscard]] std::string described() const;

 private:
  friend std::shared_ptr<ArrayView> hold<ArrayView>();
  ArrayView() = default;
  void open_buffer(nb::handle object);
  void open_dlpack(nb::handle object);

  struct Dlpack;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
  std::unique_ptr<Dlpack> dlpack_;
};

}  // namespace headrace::python
