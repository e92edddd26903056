// SPDX-License-Identifier: Apache-2.0
// Text arguments from Python: names, addresses. Replaces nanobind/stl/string.h, which no file includes.
#pragma once

#include "bindings/python/convert.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::python {

/// A str argument. A str with a lone surrogate (half of a character, from os.fsdecode or "surrogateescape")
/// has no UTF-8. It is accepted here and refused with a clear error when its text is read. nanobind's own
/// caster would report that no overload fits.
class Text {
 public:
  Text() = default;
  /// nullopt if the object is not a str.
  static std::optional<Text> open(nb::handle object) noexcept;
  /// Raises InvalidArgument if it cannot be written as UTF-8. With the GIL only.
  std::string& str();
  [[nodiscard]] const std::string& str() const;

 private:
  std::string text_;  ///< the text; if it has no UTF-8, its repr
  bool can_be_written_ = true;
};

/// Raises InvalidArgument, with `what`, if the object is not a str; also if it has no UTF-8.
std::string to_text(nb::handle object, const char* what);

/// None: empty.
using Names = std::optional<std::vector<Text>>;
std::vector<std::string> to_names(const Names& names);

}  // namespace headrace::python

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)

/// For containers: their casters must not throw, so str() is called later.
template <>
struct type_caster<headrace::python::Text> {
  NB_TYPE_CASTER(headrace::python::Text, const_name("str"))

  template <class Flags>
  bool from_python(handle source, Flags, cleanup_list*) noexcept {
    auto text = headrace::python::Text::open(source);
    if (!text) return false;
    value = *std::move(text);
    return true;
  }
};

/// For a plain argument: raises when the function is called.
template <>
struct type_caster<std::string> {
  static constexpr auto Name = const_name("str");  // NOLINT(readability-identifier-naming): nanobind reads it
  template <class T>
  using Cast = movable_cast_t<T>;
  template <class T>
  static constexpr bool can_cast() {
    return true;
  }
  explicit operator std::string&() { return text.value.str(); }
  explicit operator std::string&&() { return std::move(text.value.str()); }

  template <class Flags>
  bool from_python(handle source, Flags flags, cleanup_list* cleanup) noexcept {
    return text.from_python(source, flags, cleanup);
  }

  static handle from_cpp(std::string_view made, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeUTF8(made.data(), static_cast<Py_ssize_t>(made.size()), "surrogateescape");
  }

  type_caster<headrace::python::Text> text;
};

NAMESPACE_END(detail)
NAMESPACE_END(NB_NAMESPACE)
