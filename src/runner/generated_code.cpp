// SPDX-License-Identifier: Apache-2.0
#include "runner/generated_code.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

namespace headrace {
namespace {

constexpr std::int64_t compilers_own_bound = 2;

/// The same as string_view::find, and several times faster: the text is long, and its letters are common.
std::size_t position(std::string_view text, std::string_view mark) {
  const void* const found = ::memmem(text.data(), text.size(), mark.data(), mark.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

/// Moves through a text, always forward.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  /// Moves to the position after the next `mark`.
  bool after(std::string_view mark) {
    const std::size_t at = position(rest_, mark);
    if (at == std::string_view::npos) return false;
    rest_.remove_prefix(at + mark.size());
    return true;
  }
  /// Returns the text before the next `mark`, and moves to the position after the mark.
  std::optional<std::string_view> until(std::string_view mark) {
    const std::size_t at = position(rest_, mark);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view found = rest_.substr(0, at);
    rest_.remove_prefix(at + mark.size());
    return found;
  }

 private:
  std::string_view rest_;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

/// 256 for "256", "256L", "-1"; nullopt for any other text.
std::optional<std::int64_t> number(std::string_view text) {
  text = trimmed(text);
  while (text.ends_with('L')) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The conditions of one check function, for each dimension.
struct Conditions {
  std::map<std::size_t, std::int64_t> equal, least, most, stride;

  [[nodiscard]] std::size_t rank() const {
    std::size_t rank = 0;
    for (const auto* const table : {&equal, &least, &most, &stride})
      if (!table->empty()) rank = std::max(rank, table->rbegin()->first + 1);
    return rank;
  }
};

/// The index in "arg4_1_size[1]" if the text has that form and the kind ("_size[", "_stride[").
std::optional<std::size_t> index_in(std::string_view text, std::string_view kind) {
  const std::size_t at = text.find(kind);
  if (at == std::string_view::npos || !text.ends_with(']')) return std::nullopt;
  const auto index = number(text.substr(at + kind.size(), text.size() - at - kind.size() - 1));
  if (!index || *index < 0 || *index >= 64) return std::nullopt;
  return static_cast<std::size_t>(*index);
}

/// Reads "256 != x_size[1]", "x_size[0] < 2", "x_size[0] > 64"; ignores everything else.
void take(std::string_view condition, Conditions& conditions) {
  for (const std::string_view sign : {" != ", " < ", " > "}) {
    const std::size_t at = condition.find(sign);
    if (at == std::string_view::npos) continue;
    const std::string_view left = trimmed(condition.substr(0, at));
    const std::string_view right = trimmed(condition.substr(at + sign.size()));
    if (sign == " != ") {
      const auto value = number(left);
      if (!value) return;
      if (const auto index = index_in(right, "_size[")) conditions.equal[*index] = *value;
      if (const auto index = index_in(right, "_stride[")) conditions.stride[*index] = *value;
      return;
    }
    const auto value = number(right);
    const auto index = index_in(left, "_size[");
    if (value && index) (sign == " < " ? conditions.least : conditions.most)[*index] = *value;
    return;
  }
}

/// Splits "{s77, 256L}" at its commas.
std::vector<std::string_view> parts(std::string_view list) {
  std::vector<std::string_view> found;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    if (const std::string_view part = trimmed(list.substr(0, end)); !part.empty()) found.push_back(part);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return found;
}

bool is_symbol(std::string_view text) {
  return !text.empty() && text.front() == 's' &&
         std::ranges::all_of(text.substr(1), [](char c) { return c >= '0' && c <= '9'; }) && text.size() > 1;
}

/// The sizes in run_impl: "assert_size_stride(arg4_1, {s77, 256L}, {256L, 1L}". They have the rank and the
/// names, which the check functions lack. Nullopt if this torch does not write it.
struct Sizes {
  std::vector<std::string_view> sizes, strides;
};
std::optional<Sizes> sizes_of(std::string_view code, std::string_view argument) {
  Scanner scanner(code);
  if (!scanner.after(std::string("assert_size_stride(") + std::string(argument) + ", {")) return std::nullopt;
  const auto sizes = scanner.until("}, {");
  const auto strides = scanner.until("}");
  if (!sizes || !strides) return std::nullopt;
  Sizes found{parts(*sizes), parts(*strides)};
  if (found.sizes.size() != found.strides.size()) return std::nullopt;
  return found;
}

/// The strides; empty if they are those of a tensor without gaps, or if not all are known.
std::vector<std::int64_t> strides_of(const TensorSpec& spec, const Conditions& conditions) {
  std::vector<std::int64_t> found;
  bool without_gaps = true;
  std::int64_t expected = 1;
  bool known = true;
  for (std::size_t i = spec.shape.size(); i-- > 0;) {
    const auto stride = conditions.stride.find(i);
    if (stride == conditions.stride.end())
      return {};  // a stride depends on a dynamic length: then the tensor has no gaps
    found.insert(found.begin(), stride->second);
    if (known && stride->second != expected && spec.shape[i].most != 1) without_gaps = false;
    known = known && spec.shape[i].fixed();
    expected *= spec.shape[i].most.value_or(1);
  }
  return without_gaps ? std::vector<std::int64_t>{} : found;
}

std::optional<TensorSpec> input(std::string_view code, std::string_view body) {
  Scanner scanner(body);
  if (!scanner.after("ConstantHandle ")) return std::nullopt;
  const auto argument = scanner.until(" = ");
  if (!argument || !scanner.after("_expected_dtype = aoti_torch_dtype_")) return std::nullopt;
  const auto type = scanner.until("()");
  if (!type) return std::nullopt;
  TensorSpec spec;
  spec.name = *argument;
  if (auto dtype = dtype_from_name(*type)) spec.dtype = *dtype;

  Conditions conditions;
  for (Scanner rest = scanner; rest.after("if (");)
    if (const auto condition = rest.until(") {")) take(*condition, conditions);
  const auto sizes = sizes_of(code, *argument);
  if (sizes && sizes->sizes.size() < conditions.rank()) return std::nullopt;
  spec.shape_known = true;
  spec.shape.resize(sizes ? sizes->sizes.size() : conditions.rank());
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    DimensionSpec& dimension = spec.shape[i];
    if (const auto equal = conditions.equal.find(i); equal != conditions.equal.end()) {
      dimension.least = equal->second;
      dimension.most = equal->second;
      continue;
    }
    if (const auto least = conditions.least.find(i); least != conditions.least.end())
      dimension.least = least->second == compilers_own_bound ? 1 : least->second;
    if (const auto most = conditions.most.find(i); most != conditions.most.end())
      dimension.most = most->second;
    if (sizes && is_symbol(sizes->sizes[i]))
      dimension.name = sizes->sizes[i];
    else if (sizes)
      dimension.expression = sizes->sizes[i];
    else
      dimension.name = fmt::format("{}_{}", spec.name, i);
  }
  spec.strides = strides_of(spec, conditions);
  return spec;
}

}  // namespace

std::optional<InputOutputCount> read_counts(std::string_view code) {
  Scanner scanner(code);
  if (!scanner.after(": AOTInductorModelBase(")) return std::nullopt;
  const auto inputs = scanner.until(",");
  const auto outputs = scanner.until(",");
  if (!inputs || !outputs) return std::nullopt;
  const auto in = number(*inputs), out = number(*outputs);
  if (!in || !out || *in < 0 || *out < 0 || *in > 100'000 || *out > 100'000) return std::nullopt;
  return InputOutputCount{static_cast<std::size_t>(*in), static_cast<std::size_t>(*out)};
}

std::optional<IoSpec> read_generated_code(std::string_view code) {
  const auto counts = read_counts(code);
  if (!counts) return std::nullopt;
  IoSpec spec;
  spec.source = SpecSource::generated_code;
  for (std::size_t i = 0; i < counts->inputs; ++i) {
    Scanner scanner(code);
    if (!scanner.after(fmt::format("static void check_input_{}(", i))) return std::nullopt;
    const auto body = scanner.until("\n}\n");
    if (!body) return std::nullopt;
    auto described = input(code, *body);
    if (!described) return std::nullopt;
    spec.inputs.push_back(std::move(*described));
  }
  spec.outputs.resize(counts->outputs);
  for (std::size_t i = 0; i < counts->outputs; ++i) spec.outputs[i].name = fmt::format("output{}", i);
  return spec;
}

}  // namespace headrace
