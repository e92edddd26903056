// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/array_view.hpp"

#include "bindings/python/convert.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace::python {
namespace {

/// The usual name of an element type ("int32") for a buffer format, which has the letters of module struct.
std::string element_name(const std::string& format, std::size_t bytes) {
  const bool swapped = !format.empty() && (format[0] == '>' || format[0] == '!');
  const std::size_t prefix = std::min(format.find_first_not_of("@=<>!"), format.size());
  const std::string letter = format.substr(prefix);
  const char* family = letter.empty()                                       ? ""
                       : letter == "?"                                      ? "bool"
                       : letter == "Zf" || letter == "Zd" || letter == "Zg" ? "complex"
                       : letter.size() > 1                                  ? ""
                       : std::strchr("efdg", letter[0]) != nullptr          ? "float"
                       : std::strchr("bhilqn", letter[0]) != nullptr        ? "int"
                       : std::strchr("BHILQN", letter[0]) != nullptr        ? "uint"
                                                                            : "";
  if (*family == '\0') return "'" + format + "'";
  const std::string name = letter == "?" ? "bool" : family + std::to_string(8 * bytes);
  return swapped && bytes > 1 ? "byte-swapped " + name : name;
}

/// Whether a buffer format has elements that are Python objects ("O"). Names of fields are between colons.
bool names_objects(const std::string& format) {
  bool is_name = false;
  for (const char letter : format) {
    if (letter == ':') is_name = !is_name;
    if (letter == 'O' && !is_name) return true;
  }
  return false;
}

}  // namespace

struct ArrayView::Dlpack {
  nb::ndarray<nb::ro> array;
};

std::shared_ptr<ArrayView> ArrayView::open(nb::handle object) {
  const bool has_buffer = PyObject_CheckBuffer(object.ptr()) != 0;
  if (!has_buffer && !nb::hasattr(object, "__dlpack__")) return nullptr;
  auto view = hold<ArrayView>();
  if (has_buffer) {
    view->open_buffer(object);
  } else {
    view->open_dlpack(object);
  }
  return view;
}

std::shared_ptr<ArrayView> ArrayView::open_on_gpu(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return nullptr;
  const int type = nb::cast<int>(object.attr("__dlpack_device__")()[0]);
  if (type != nb::device::cuda::value && type != nb::device::rocm::value &&
      type != nb::device::cuda_managed::value)
    return nullptr;
  auto view = hold<ArrayView>();
  constexpr int no_waiting = -1;
  view->open_dlpack(object.attr("__dlpack__")(nb::arg("stream") = no_waiting));
  return view;
}

ArrayView::~ArrayView() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

void ArrayView::refuse_objects(std::uint64_t page) const {
  if (has_objects)
    raise_invalid(
        "an array of Python objects cannot be registered: its bytes are addresses, which have no meaning for "
        "peers. Give an array of numbers",
        page);
}

void ArrayView::open_buffer(nb::handle object) {
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_FULL_RO) != 0) throw nb::python_error();
  has_buffer_ = true;
  if (buffer_.suboffsets != nullptr)
    raise_invalid("the array is a table of pointers (it has suboffsets): give each row as an array");
  data = static_cast<std::byte*>(buffer_.buf);
  length_bytes = static_cast<std::size_t>(buffer_.len);
  writable = buffer_.readonly == 0;
  element_bytes = static_cast<std::size_t>(buffer_.itemsize);
  const std::string format = buffer_.format != nullptr ? buffer_.format : "B";
  dtype = element_name(format, element_bytes);
  has_objects = names_objects(format);
  // "@", "=" and "<" are the byte order of this machine. Other orders are not read as integers.
  const std::size_t prefix = format.find_first_not_of("@=<");
  if (prefix != std::string::npos && format.size() - prefix == 1) {
    const char letter = format[prefix];
    if (std::strchr("bhilqn", letter) != nullptr) element = Element::signed_integer;
    if (std::strchr("BHILQN", letter) != nullptr) element = Element::unsigned_integer;
  }
  for (int i = 0; i < buffer_.ndim; ++i) {
    shape.push_back(buffer_.shape != nullptr ? buffer_.shape[i] : buffer_.len / buffer_.itemsize);
    strides_bytes.push_back(buffer_.strides != nullptr ? buffer_.strides[i] : buffer_.itemsize);
  }
}

void ArrayView::open_dlpack(nb::handle object) {
  dlpack_ = std::make_unique<Dlpack>();
  nb::ndarray<nb::ro>& array = dlpack_->array;
  if (!nb::try_cast(object, array)) {
    // The import drops the object's own error ("requires grad", "conj bit"): call again to raise it.
    (void)object.attr("__dlpack__")();
    raise_invalid("the memory of " + shown(object) + " could not be imported through DLPack");
  }
  data = reinterpret_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
  length_bytes = array.nbytes();
  writable = true;  // DLPack before 1 cannot say it; read-only objects refuse the export
  element_bytes = array.itemsize();
  const nb::dlpack::dtype type = array.dtype();
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  if (type.lanes == 1 && code == nb::dlpack::dtype_code::Int) element = Element::signed_integer;
  if (type.lanes == 1 && code == nb::dlpack::dtype_code::UInt) element = Element::unsigned_integer;
  const char* family = code == nb::dlpack::dtype_code::Float     ? "float"
                       : code == nb::dlpack::dtype_code::Bfloat  ? "bfloat"
                       : code == nb::dlpack::dtype_code::Complex ? "complex"
                       : code == nb::dlpack::dtype_code::Bool    ? "bool"
                                                                 : "dlpack";
  if (element == Element::signed_integer) family = "int";
  if (element == Element::unsigned_integer) family = "uint";
  dtype = family + std::to_string(type.bits);
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(static_cast<std::int64_t>(array.shape(i)));
    strides_bytes.push_back(array.stride(i) * static_cast<std::int64_t>(element_bytes));
  }
  switch (array.device_type()) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value:
    case nb::device::rocm_host::value:
      break;
    case nb::device::cuda::value:
    case nb::device::rocm::value:
    case nb::device::cuda_managed::value:
      kind = MemoryKind::vram;
      device = array.device_id();
      break;
    default:
      raise_invalid("the array is on a device of DLPack type " + std::to_string(array.device_type()) +
                    ", which is neither host memory nor memory of a CUDA or ROCm GPU");
  }
}

std::int64_t ArrayView::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool ArrayView::is_c_contiguous() const {
  auto expected = static_cast<std::int64_t>(element_bytes);
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides_bytes[i] != expected) return count() == 0;
    expected *= shape[i];
  }
  return true;
}

bool ArrayView::is_dense() const {
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return strides_bytes[a] < strides_bytes[b]; });
  auto expected = static_cast<std::int64_t>(element_bytes);
  for (const std::size_t i : order) {
    if (shape[i] == 1) continue;
    if (strides_bytes[i] != expected) return count() == 0;
    expected *= shape[i];
  }
  return true;
}

std::string ArrayView::described() const {
  std::string text = dtype + " array of shape (";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace headrace::python
