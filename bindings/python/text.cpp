// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/text.hpp"

namespace headrace::python {

std::optional<Text> Text::open(nb::handle object) noexcept {
  if (PyUnicode_Check(object.ptr()) == 0) return std::nullopt;
  Text text;
  Py_ssize_t size = 0;
  if (const char* bytes = PyUnicode_AsUTF8AndSize(object.ptr(), &size)) {
    text.text_.assign(bytes, static_cast<std::size_t>(size));
  } else {
    PyErr_Clear();
    text.text_ = shown(object);
    text.can_be_written_ = false;
  }
  return text;
}

const std::string& Text::str() const {
  if (!can_be_written_)
    raise_invalid(text_ +
                  " contains a lone surrogate (half of a character), which UTF-8 cannot encode: give text "
                  "without it, for example text.encode('utf-8', 'replace').decode()");
  return text_;
}

std::string& Text::str() { return const_cast<std::string&>(std::as_const(*this).str()); }

std::string to_text(nb::handle object, const char* what) {
  const auto text = Text::open(object);
  if (!text) raise_invalid(std::string(what) + " must be a str, not " + shown(object));
  return text->str();
}

std::vector<std::string> to_names(const Names& names) {
  std::vector<std::string> texts;
  if (!names) return texts;
  for (const Text& name : *names) texts.push_back(name.str());
  return texts;
}

}  // namespace headrace::python
