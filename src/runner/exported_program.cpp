// SPDX-License-Identifier: Apache-2.0
#include "runner/exported_program.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr int known_major = 8;
// torch writes its infinity as a very large number.
constexpr std::int64_t beyond_any_length = std::int64_t{1} << 60;

/// The numbers of element types in torch's serialization.
constexpr std::array dtypes{
    std::pair{1, DType::uint8},       std::pair{2, DType::int8},           std::pair{3, DType::int16},
    std::pair{4, DType::int32},       std::pair{5, DType::int64},          std::pair{6, DType::float16},
    std::pair{7, DType::float32},     std::pair{8, DType::float64},        std::pair{10, DType::complex64},
    std::pair{11, DType::complex128}, std::pair{12, DType::boolean},       std::pair{13, DType::bfloat16},
    std::pair{28, DType::uint16},     std::pair{29, DType::float8_e4m3fn}, std::pair{30, DType::float8_e5m2},
    std::pair{34, DType::uint32},     std::pair{35, DType::uint64}};

/// "s23" of "Symbol('s23', positive=True, integer=True)"; empty for any other expression.
std::string symbol(const std::string& expression) {
  constexpr std::string_view begin = "Symbol('";
  if (!expression.starts_with(begin)) return {};
  const std::size_t end = expression.find('\'', begin.size());
  if (end == std::string::npos || expression.find(')') != expression.size() - 1) return {};
  return expression.substr(begin.size(), end - begin.size());
}

DimensionSpec dimension(const Json& size, const Json& ranges) {
  DimensionSpec spec;
  if (size.contains("as_int")) {
    spec.least = size.at("as_int").get<std::int64_t>();
    spec.most = spec.least;
    return spec;
  }
  const auto expression = size.at("as_expr").at("expr_str").get<std::string>();
  spec.name = symbol(expression);
  if (spec.name.empty()) {
    spec.expression = expression;
    return spec;
  }
  if (!ranges.contains(spec.name)) return spec;
  const Json& range = ranges.at(spec.name);
  if (range.at("min_val").is_number_integer())
    spec.least = std::max<std::int64_t>(range.at("min_val").get<std::int64_t>(), 0);
  if (range.at("max_val").is_number_integer() && range.at("max_val").get<std::int64_t>() < beyond_any_length)
    spec.most = range.at("max_val").get<std::int64_t>();
  return spec;
}

/// The strides if all are numbers; empty if they are those of a tensor without gaps.
std::vector<std::int64_t> strides(const Json& value, const std::vector<DimensionSpec>& shape) {
  std::vector<std::int64_t> found;
  for (const Json& stride : value) {
    if (!stride.contains("as_int")) return {};
    found.push_back(stride.at("as_int").get<std::int64_t>());
  }
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (found.at(i) != expected) return found;
    if (i > 0 && !shape[i].fixed()) return found;
    expected *= shape[i].most.value_or(1);
  }
  return {};
}

TensorSpec tensor(const std::string& name, const Json& graph, const Json& ranges) {
  const Json& value = graph.at("tensor_values").at(name);
  TensorSpec spec;
  spec.name = name;
  const int number = value.at("dtype").get<int>();
  for (const auto& [theirs, ours] : dtypes)
    if (theirs == number) spec.dtype = ours;
  spec.shape_known = true;
  for (const Json& size : value.at("sizes")) spec.shape.push_back(dimension(size, ranges));
  spec.strides = strides(value.at("strides"), spec.shape);
  return spec;
}

std::optional<IoSpec> read(const Json& program) {
  if (program.at("schema_version").at("major").get<int>() != known_major) return std::nullopt;
  const Json& graph = program.at("graph_module").at("graph");
  const Json& signature = program.at("graph_module").at("signature");
  const Json& ranges = program.at("range_constraints");
  IoSpec spec;
  spec.source = SpecSource::exported_program;
  if (program.contains("torch_version")) spec.torch_version = program.at("torch_version").get<std::string>();
  for (const Json& input : signature.at("input_specs")) {
    if (!input.contains("user_input")) continue;
    const Json& argument = input.at("user_input").at("arg");
    if (!argument.contains("as_tensor")) return std::nullopt;
    spec.inputs.push_back(tensor(argument.at("as_tensor").at("name").get<std::string>(), graph, ranges));
  }
  for (const Json& output : signature.at("output_specs")) {
    if (output.contains("user_input_mutation")) {
      const auto name = output.at("user_input_mutation").at("user_input_name").get<std::string>();
      for (TensorSpec& input : spec.inputs) input.mutated |= input.name == name;
    }
    if (!output.contains("user_output") || !output.at("user_output").at("arg").contains("as_tensor"))
      continue;
    TensorSpec described = tensor(
        output.at("user_output").at("arg").at("as_tensor").at("name").get<std::string>(), graph, ranges);
    described.strides.clear();  // a run returns outputs without gaps, for any layout in the program
    spec.outputs.push_back(std::move(described));
  }
  return spec;
}

}  // namespace

std::optional<IoSpec> read_exported_program(std::string_view json) {
  const Json program = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  try {
    return read(program);
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const std::out_of_range&) {
    return std::nullopt;
  }
}

}  // namespace headrace
