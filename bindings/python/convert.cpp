// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/convert.hpp"

#include "bindings/python/text.hpp"

#include <algorithm>
#include <cmath>

namespace headrace::python {
namespace {

/// The exception class of a code, from headrace/errors.py.
nb::object exception_class(Code code) {
  const char* name = "Error";
  switch (code) {
    case Code::would_block:
      name = "WouldBlock";
      break;
    case Code::invalid_argument:
      name = "InvalidArgument";
      break;
    case Code::not_found:
      name = "NotFound";
      break;
    case Code::not_supported:
      name = "NotSupported";
      break;
    case Code::timed_out:
      name = "TimedOut";
      break;
    case Code::canceled:
      name = "Canceled";
      break;
    case Code::peer_lost:
      name = "PeerLost";
      break;
    case Code::exhausted:
      name = "Exhausted";
      break;
    case Code::corrupt:
      name = "Corrupt";
      break;
    case Code::backend_failed:
      name = "BackendFailed";
      break;
    case Code::internal:
      name = "Internal";
      break;
    case Code::ok:
      break;
  }
  return nb::module_::import_("headrace.errors").attr(name);
}

class Buffer {
 public:
  Buffer(nb::handle object, const char* what) {
    if (PyObject_CheckBuffer(object.ptr()) == 0) {
      PyErr_Format(PyExc_TypeError, "%s must be bytes or another contiguous buffer, not %R", what,
                   object.type().ptr());
      throw nb::python_error();
    }
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::string copy() const {
    return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

std::string option_text(nb::handle name, nb::handle value) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True ? "true" : "false";
  if (nb::isinstance<nb::str>(value)) return to_text(value, "an option's value");
  if (nb::isinstance<nb::int_>(value) || nb::isinstance<nb::float_>(value)) return nb::str(value).c_str();
  raise_invalid("option " + shown(name) + " is " + shown(value) + ": give a str, bool, int or float");
}

}  // namespace

nb::object to_exception(const Error& error) {
  nb::object exception = exception_class(error.code)(to_str(error.message));
  if (error.page != no_page) exception.attr("page") = error.page;
  return exception;
}

void raise(const Error& error) {
  const nb::object exception = to_exception(error);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

void raise_invalid(const std::string& message, std::uint64_t page) {
  raise(Error{Code::invalid_argument, message, page});
}

bool interrupted_by_signal() {
  const CallbackScope scope;
  return scope && PyErr_CheckSignals() != 0;
}

Timeout to_timeout(const Seconds& seconds) {
  if (!seconds) return forever;
  if (std::isnan(*seconds) || *seconds < 0)
    raise_invalid("the timeout is " + std::to_string(*seconds) +
                  ": give a number of seconds >= 0, or None for no limit");
  constexpr double a_century = 3.2e9;
  if (*seconds >= a_century) return forever;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(*seconds * 1e9));
}

nb::str to_str(std::string_view text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(made);
}

nb::bytes to_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::list to_strs(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(to_str(text));
  return list;
}

std::string from_bytes(nb::handle object, const char* what) { return Buffer(object, what).copy(); }

std::map<std::string, std::string> to_options(const std::optional<nb::dict>& options) {
  std::map<std::string, std::string> texts;
  if (!options) return texts;
  for (const auto& [name, value] : *options) {
    texts[to_text(name, "an option's name")] = option_text(name, value);
  }
  return texts;
}

Op to_op(std::string_view name) {
  if (name == "read") return Op::read;
  if (name == "write") return Op::write;
  raise_invalid("there is no operation \"" + std::string(name) + "\": it is \"read\" or \"write\"");
}

std::string_view op_name(Op op) { return op == Op::read ? "read" : "write"; }

std::uint64_t to_u64(nb::handle value, const char* what, std::uint64_t page) {
  const std::string where =
      page == no_page ? std::string(what) : std::string(what) + " of page " + std::to_string(page);
  const auto refuse = [&]() {
    raise_invalid(where + " is " + shown(value) + ": give an int from 0 to 2^64 - 1", page);
  };
  // An int is used directly; NumPy's scalars and others need __index__.
  nb::object number = PyLong_Check(value.ptr()) ? nb::borrow(value) : nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    refuse();
  }
  const unsigned long long converted = PyLong_AsUnsignedLongLong(number.ptr());
  if (converted == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse();
  }
  return converted;
}

std::string shown(nb::handle value) {
  constexpr std::size_t enough = 80;
  nb::object text = nb::steal(PyObject_Repr(value.ptr()));
  if (!text.is_valid()) {
    PyErr_Clear();
    return "something without a repr";
  }
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    return "something without a repr";
  }
  std::string shown(bytes, static_cast<std::size_t>(size));
  if (shown.size() <= enough) return shown;
  std::size_t end = enough;
  while (end > 0 && (static_cast<unsigned char>(shown[end]) & 0xC0) == 0x80) --end;  // not inside a character
  return shown.substr(0, end) + "...";
}

}  // namespace headrace::python
