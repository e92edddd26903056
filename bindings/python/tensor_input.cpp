// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/tensor_input.hpp"

#include "bindings/python/convert.hpp"
#include "bindings/python/dlpack_structs.hpp"

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace headrace::python {
namespace {

constexpr std::uint32_t known_major = 1;

[[noreturn]] void refuse(const TensorRole& role, const std::string& reason) {
  raise_invalid(std::string(role.kind) + " " + role.name + ": " + reason);
}
[[noreturn]] void refuse_many_dimensions(const TensorRole& role, std::size_t rank) {
  refuse(role, "it has " + std::to_string(rank) + " dimensions; " + role.taker + " take at most 8");
}

/// The first line of the current Python error, which it clears: torch's message without the C++ stack below
/// it.
std::string first_line_of_error() {
  const nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  return text.substr(0, text.find('\n'));
}

/// The view of a DLPack tensor. Raises if its dtype, device or rank is not taken.
TensorView view_of(const DlTensor& tensor, const TensorRole& role) {
  const auto dtype = dtype_from_dlpack(tensor.type);
  if (!dtype)
    refuse(role, "its elements have DLPack type " + std::to_string(tensor.type.code) + " with " +
                     std::to_string(tensor.type.bits) + " bits, which " + role.taker + " do not take");
  const auto device = device_from_dlpack(tensor.device);
  if (!device)
    refuse(role, "it is on a device of DLPack type " + std::to_string(tensor.device.type) + ", which " +
                     role.taker + " do not use");
  const auto rank = static_cast<std::size_t>(tensor.rank);
  if (!Shape::fits(rank)) refuse_many_dimensions(role, rank);
  TensorView view{static_cast<const std::byte*>(tensor.data) + tensor.byte_offset,
                  *dtype,
                  Shape(std::span<const std::int64_t>(tensor.shape, rank)),
                  {},
                  *device};
  if (tensor.strides != nullptr) view.strides = Shape(std::span<const std::int64_t>(tensor.strides, rank));
  if (view.is_contiguous()) view.strides = {};
  return view;
}

/// The dtype of a buffer format: a letter of module struct, in the byte order of this machine.
std::optional<DType> dtype_of(const char* format, Py_ssize_t bytes) {
  if (format == nullptr) return DType::uint8;
  std::string letter = format;
  if (!letter.empty() && std::strchr("@=<", letter[0]) != nullptr) letter.erase(0, 1);
  const auto by_width = [bytes](DType one, DType two, DType four, DType eight) -> std::optional<DType> {
    return bytes == 1   ? one
           : bytes == 2 ? two
           : bytes == 4 ? four
           : bytes == 8 ? std::optional(eight)
                        : std::nullopt;
  };
  if (letter == "?") return DType::boolean;
  if (letter == "e") return DType::float16;
  if (letter == "f") return DType::float32;
  if (letter == "d") return DType::float64;
  if (letter == "Zf") return DType::complex64;
  if (letter == "Zd") return DType::complex128;
  if (letter.size() != 1) return std::nullopt;
  if (std::strchr("bhilqn", letter[0]) != nullptr)
    return by_width(DType::int8, DType::int16, DType::int32, DType::int64);
  if (std::strchr("BHILQN", letter[0]) != nullptr)
    return by_width(DType::uint8, DType::uint16, DType::uint32, DType::uint64);
  return std::nullopt;
}

}  // namespace

const void* ExchangeCache::table_of(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (type == type_) return table_;
  type_ = type;
  keep_type_ =
      nb::borrow(reinterpret_cast<PyObject*>(type));  // so that no other type can get the same address
  table_ = nullptr;
  const nb::object capsule =
      nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* const table =
      static_cast<const DlExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr)
    PyErr_Clear();
  else if (table->version.major == known_major && table->describe != nullptr)
    table_ = table;
  const bool asks = nb::hasattr(object, "is_neg") && nb::hasattr(object, "is_conj");
  is_neg_ = asks ? nb::object(nb::str("is_neg")) : nb::object();
  is_conj_ = asks ? nb::object(nb::str("is_conj")) : nb::object();
  return table_;
}

bool ExchangeCache::is_late(PyObject* object, bool complex) const {
  const auto is = [object](const nb::object& question) {
    const nb::object answer = nb::steal(PyObject_CallMethodNoArgs(object, question.ptr()));
    if (!answer.is_valid()) throw nb::python_error();
    return answer.ptr() == Py_True;
  };
  return is_neg_.is_valid() && (is(is_neg_) || (complex && is(is_conj_)));
}

TensorInput::TensorInput(PyObject* object, const TensorRole& role, ExchangeCache& cache,
                         std::optional<void*> stream) {
  if (object == Py_None) {  // left out: a view without memory; the model checks whether it may be
    view_.shape = {1};
    return;
  }
  if (take_exchange(object, role, cache) || take_buffer(object, role) || take_dlpack(object, role, stream))
    return;
  refuse(role, shown(object) +
                   " is not an array: give a torch tensor, a NumPy array, or another object with the buffer "
                   "protocol or DLPack");
}

TensorInput::TensorInput(TensorInput&& other) noexcept
    : view_(other.view_),
      buffer_(other.buffer_),
      has_buffer_(std::exchange(other.has_buffer_, false)),
      kept_(std::move(other.kept_)) {}

TensorInput::~TensorInput() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

bool TensorInput::take_exchange(PyObject* object, const TensorRole& role, ExchangeCache& cache) {
  const auto* const table = static_cast<const DlExchangeTable*>(cache.table_of(object));
  if (table == nullptr) return false;
  DlTensor tensor{};
  if (table->describe(object, &tensor) != 0)
    refuse(role, "its memory cannot be used: " + first_line_of_error());
  view_ = view_of(tensor, role);
  const bool complex = view_.dtype == DType::complex64 || view_.dtype == DType::complex128;
  const bool real = view_.dtype == DType::float32 || view_.dtype == DType::float64 ||
                    view_.dtype == DType::float16;  // the parts of a complex tensor
  if ((real || complex) && cache.is_late(object, complex))
    refuse(role, "it is a lazily negated or conjugated view: give its resolve_neg() or resolve_conj()");
  return true;
}

bool TensorInput::take_buffer(PyObject* object, const TensorRole& role) {
  if (PyObject_CheckBuffer(object) == 0) return false;
  if (PyObject_GetBuffer(object, &buffer_, PyBUF_FULL_RO) != 0) {
    const std::string reason = first_line_of_error();
    if (PyObject_HasAttrString(object, "__dlpack__") == 0)
      refuse(role, "its memory cannot be used: " + reason);
    return false;  // an output on a GPU, or with a dtype that the buffer protocol does not have
  }
  has_buffer_ = true;
  if (buffer_.suboffsets != nullptr) refuse(role, "it is a table of pointers (it has suboffsets)");
  const auto dtype = dtype_of(buffer_.format, buffer_.itemsize);
  if (!dtype)
    refuse(role, "its elements have the format '" + std::string(buffer_.format) + "', which " + role.taker +
                     " do not take");
  const auto rank = static_cast<std::size_t>(buffer_.ndim);
  if (!Shape::fits(rank)) refuse_many_dimensions(role, rank);
  view_ = {buffer_.buf, *dtype, {}, {}, {}};
  std::array<std::int64_t, most_tensor_dimensions> shape{}, strides{};
  for (std::size_t i = 0; i < rank; ++i) {
    shape[i] = buffer_.shape != nullptr ? buffer_.shape[i] : buffer_.len / buffer_.itemsize;
    if (buffer_.strides == nullptr) continue;
    if (buffer_.strides[i] % buffer_.itemsize != 0)
      refuse(role, "its strides are not multiples of the element size: copy it first");
    strides[i] = buffer_.strides[i] / buffer_.itemsize;
  }
  view_.shape = Shape(std::span<const std::int64_t>(shape.data(), rank));
  if (buffer_.strides != nullptr) view_.strides = Shape(std::span<const std::int64_t>(strides.data(), rank));
  if (view_.is_contiguous()) view_.strides = {};
  return true;
}

bool TensorInput::take_dlpack(PyObject* object, const TensorRole& role, std::optional<void*> stream) {
  if (PyObject_HasAttrString(object, "__dlpack__") == 0) return false;
  nb::kwargs how = nb::steal<nb::kwargs>(PyDict_New());
  if (stream) how["stream"] = dlpack_stream(*stream);
  kept_ = nb::handle(object).attr("__dlpack__")(**how);
  // Not renamed to "used_dltensor": the capsule stays the owner and is freed with this object.
  const auto* const managed =
      static_cast<const DlManagedTensor*>(PyCapsule_GetPointer(kept_.ptr(), "dltensor"));
  if (managed == nullptr) {
    PyErr_Clear();
    refuse(role, "its __dlpack__ returned " + shown(kept_) + ", which is no capsule of DLPack");
  }
  view_ = view_of(managed->tensor, role);
  return true;
}

}  // namespace headrace::python
