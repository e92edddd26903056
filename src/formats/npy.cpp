// SPDX-License-Identifier: Apache-2.0
#include "formats/npy.hpp"

#include "base/errors.hpp"

#include <charconv>
#include <cstring>
#include <optional>

namespace headrace::formats {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t largest_npy_header = 1 << 20;
constexpr std::size_t npy_alignment = 64;

/// Parses the part of Python's syntax that a header uses: {'key': 'text' | True | False | (1, 2), ...}
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  bool take(char c) {
    skip();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  [[nodiscard]] char next() {
    skip();
    return rest_.empty() ? '\0' : rest_.front();
  }
  std::optional<std::string> text() {
    const char quote = next();
    if (quote != '\'' && quote != '"') return std::nullopt;
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string value(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return value;
  }
  std::optional<bool> boolean() {
    skip();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return value;
    }
    return std::nullopt;
  }
  Result<std::vector<std::uint64_t>> lengths() {
    const auto no_lengths = [] {
      return make_error(Code::corrupt, "npy: its shape is not a tuple of lengths");
    };
    if (!take('(')) return no_lengths();
    std::vector<std::uint64_t> values;
    while (!take(')')) {
      skip();
      std::uint64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error == std::errc::result_out_of_range)
        return make_error(Code::corrupt, "npy: its shape has a length of more than 64 bits");
      if (error != std::errc()) return no_lengths();
      if (values.size() == most_dimensions)
        return make_error(Code::not_supported,
                          "npy: its shape has more than {} dimensions, which is the limit: reshape the array",
                          most_dimensions);
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      values.push_back(value);
      if (!take(',') && next() != ')') return no_lengths();
    }
    return values;
  }

 private:
  void skip() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

Error corrupt_npy(std::string_view what) { return make_error(Code::corrupt, "npy: {}", what); }

/// The header without the magic word, the version and its length: Python's dictionary.
Result<std::string_view> dictionary_text(std::string_view file) {
  if (!file.starts_with(magic) || file.size() < 10) return corrupt_npy("it does not begin like an .npy file");
  const auto major = static_cast<unsigned char>(file[6]);
  if (major < 1 || major > 3)
    return make_error(Code::not_supported, "npy: format version {} is not supported; 1 to 3 are", major);
  const std::size_t prefix = major == 1 ? 10 : 12;
  std::uint32_t length = 0;
  if (file.size() < prefix) return corrupt_npy("it ends inside its header");
  std::memcpy(&length, file.data() + 8, prefix - 8);
  if (length > largest_npy_header || length > file.size() - prefix)
    return make_error(Code::corrupt, "npy: the header claims {} bytes", length);
  return file.substr(prefix, length);
}

struct Dictionary {
  std::string descr;
  bool fortran = false;
  std::vector<std::uint64_t> shape;
};

Result<Dictionary> read_dictionary(Literal literal) {
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<std::uint64_t>> shape;
  if (!literal.take('{')) return corrupt_npy("the header is not a dictionary");
  while (!literal.take('}')) {
    const auto key = literal.text();
    if (!key || !literal.take(':')) return corrupt_npy("the header is not a dictionary");
    if (*key == "descr") {
      if (literal.next() == '[')
        return make_error(Code::not_supported,
                          "npy: its elements are structures: save each field as a separate array");
      descr = literal.text();
    } else if (*key == "fortran_order") {
      fortran = literal.boolean();
    } else if (*key == "shape") {
      HEADRACE_TRY(lengths, literal.lengths());
      shape = std::move(lengths);
    } else {
      return corrupt_npy("the header has an unknown key");
    }
    if (!literal.take(',') && literal.next() != '}') return corrupt_npy("the header is not a dictionary");
  }
  if (!descr || !fortran || !shape) return corrupt_npy("the header lacks descr, fortran_order or shape");
  return Dictionary{std::move(*descr), *fortran, std::move(*shape)};
}

/// NumPy spells one-byte types with a bar: "|u1".
Result<const ElementType*> type_of(const std::string& descr) {
  if (const ElementType* const type = element_type_from_npy(descr)) return type;
  if (descr.starts_with('>'))
    return make_error(Code::not_supported, "npy: elements are big-endian ({}): save them little-endian",
                      descr);
  if (descr.find('O') != std::string::npos)
    return make_error(Code::not_supported, "npy: elements are Python objects, which cannot be moved");
  return make_error(Code::not_supported, "npy: elements of type {} are not supported", descr);
}

}  // namespace

Result<NpyHeader> read_npy(std::span<const std::byte> file) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  HEADRACE_TRY(text, dictionary_text(all));
  HEADRACE_TRY(dictionary, read_dictionary(Literal(text)));
  HEADRACE_TRY(type, type_of(dictionary.descr));
  if (dictionary.fortran && dictionary.shape.size() > 1)
    return make_error(Code::not_supported,
                      "npy: it has Fortran order: save numpy.ascontiguousarray(array) instead");
  auto bytes = tensor_bytes(*type, dictionary.shape);
  if (!bytes) return make_error(Code::corrupt, "npy: {}", bytes.error().message);
  const auto header_bytes = static_cast<std::uint64_t>(text.data() + text.size() - all.data());
  return NpyHeader{type, std::move(dictionary.shape), header_bytes, *bytes};
}

std::string write_npy(const TensorInfo& tensor) {
  std::string shape;
  for (const std::uint64_t length : tensor.shape) shape += fmt::format("{}, ", length);
  if (tensor.shape.size() > 1) shape.resize(shape.size() - 2);  // (1, 2), but (1,)
  if (tensor.shape.size() == 1) shape.pop_back();
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", tensor.type->npy, shape);
  constexpr std::size_t prefix = 10;
  const std::size_t whole = (prefix + text.size() + 1 + npy_alignment - 1) / npy_alignment * npy_alignment;
  text.resize(whole - prefix - 1, ' ');
  text += '\n';
  std::string header(magic);
  header += '\x01';
  header += '\x00';
  const auto length = static_cast<std::uint16_t>(text.size());
  header.append(reinterpret_cast<const char*>(&length), sizeof length);
  return header + text;
}

}  // namespace headrace::formats
