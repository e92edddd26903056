// SPDX-License-Identifier: Apache-2.0
// Names, addresses and other text that Python hands over. Stands in for nanobind/stl/string.h: no file
// includes that one.
#pragma once

#include "bindings/python/convert.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::python {

/// A str that was handed over. Not every str can be written as UTF-8: one with half of a character in it (a
/// lone surrogate, as os.fsdecode and "surrogateescape" make them) is taken too, and refused with a sentence
/// where its text is asked for. nanobind's own reading answers that the arguments fit no function.
class Text {
 public:
  Text() = default;
  /// Nothing if the object is no str.
  static std::optional<Text> open(nb::handle object) noexcept;
  /// Raises InvalidArgument if it cannot be written as UTF-8. With the GIL only.
  std::string& str();
  [[nodiscard]] const std::string& str() const;

 private:
  std::string text_;  ///< or, if it cannot be written, what is shown of it
  bool can_be_written_ = true;
};

/// Raises InvalidArgument if the object is no str, naming `what`, or cannot be written as UTF-8.
std::string to_text(nb::handle object, const char* what);

/// None: empty.
using Names = std::optional<std::vector<Text>>;
std::vector<std::string> to_names(const Names& names);

}  // namespace headrace::python

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)

/// In containers, whose casters may not throw while they read: str() is asked later.
template <>
struct type_caster<headrace::python::Text> {
  NB_TYPE_CASTER(headrace::python::Text, const_name("str"))

  template <class Flags>
  bool from_python(handle source, Flags, cleanup_list*) noexcept {
    auto text = headrace::python::Text::open(source);
    if (text) value = *std::move(text);
    return text.has_value();
  }
};

/// As an argument: raises when the function is about to be called.
template <>
struct type_caster<std::string> {
  static constexpr auto Name = const_name("str");
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
