// SPDX-License-Identifier: Apache-2.0
#include "runner/io_spec.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr int known_form = 1;

Error wrong(std::string_view where, std::string_view what) {
  return make_error(Code::corrupt, "its description of inputs and outputs (headrace.json): {} {}", where,
                    what);
}

const Json* member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::string> text(const Json& object, const char* key, const std::string& where) {
  const Json* const value = member(object, key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return wrong(where, std::string(key) + " is not a text");
  return value->get<std::string>();
}

Result<bool> boolean(const Json& object, const char* key, const std::string& where) {
  const Json* const value = member(object, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return wrong(where, std::string(key) + " is neither true nor false");
  return value->get<bool>();
}

bool is_int64(const Json& value) {
  return value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
}

Result<std::int64_t> length(const Json& value, const std::string& where) {
  if (!is_int64(value) || value.get<std::int64_t>() < 0)
    return wrong(where, "has a length that is not a whole number of 0 or more");
  return value.get<std::int64_t>();
}

Result<DimensionSpec> dimension(const Json& value, const std::string& where) {
  DimensionSpec spec;
  if (!value.is_object()) {
    HEADRACE_TRY(fixed, length(value, where));
    spec.least = fixed;
    spec.most = fixed;
    return spec;
  }
  HEADRACE_TRY(expression, text(value, "expr", where));
  HEADRACE_TRY(name, text(value, "name", where));
  spec.expression = std::move(expression);
  spec.name = std::move(name);
  if (spec.expression.empty() && spec.name.empty())
    return wrong(where, "has a dimension with neither name nor expr");
  if (const Json* const least = member(value, "min")) {
    HEADRACE_TRY(number, length(*least, where));
    spec.least = number;
  }
  if (const Json* const most = member(value, "max")) {
    HEADRACE_TRY(number, length(*most, where));
    spec.most = number;
  }
  if (spec.most && *spec.most < spec.least) return wrong(where, "has a dimension whose max is below its min");
  return spec;
}

Result<std::optional<ValueRange>> values(const Json& object, const std::string& where) {
  const Json* const range = member(object, "values");
  if (range == nullptr) return std::optional<ValueRange>();
  const Json* const least = range->is_object() ? member(*range, "min") : nullptr;
  const Json* const most = range->is_object() ? member(*range, "max") : nullptr;
  if (least == nullptr || most == nullptr || !is_int64(*least) || !is_int64(*most) ||
      least->get<std::int64_t>() > most->get<std::int64_t>())
    return wrong(where, "has values that are not a range of whole numbers");
  return std::optional(ValueRange{least->get<std::int64_t>(), most->get<std::int64_t>()});
}

Result<TensorSpec> tensor(const Json& value, const std::string& where) {
  if (!value.is_object()) return wrong(where, "is not an object");
  TensorSpec spec;
  HEADRACE_TRY(name, text(value, "name", where));
  HEADRACE_TRY(dtype, text(value, "dtype", where));
  HEADRACE_TRY(optional, boolean(value, "optional", where));
  spec.name = std::move(name);
  if (spec.name.empty()) spec.name = where;
  spec.optional = optional;
  HEADRACE_TRY(range, values(value, where));
  spec.values = range;
  if (!dtype.empty()) {
    auto known = dtype_from_name(dtype);
    if (!known) return wrong(where, "has the dtype \"" + dtype + "\", which is unknown");
    spec.dtype = *known;
  }
  if (const Json* const shape = member(value, "shape")) {
    if (!shape->is_array()) return wrong(where, "has a shape that is not a list");
    spec.shape_known = true;
    for (const Json& one : *shape) {
      HEADRACE_TRY(made, dimension(one, where));
      spec.shape.push_back(std::move(made));
    }
  }
  if (const Json* const strides = member(value, "strides")) {
    if (!strides->is_array() || strides->size() != spec.shape.size())
      return wrong(where, "has strides that are not a list with the length of its shape");
    for (const Json& one : *strides) {
      HEADRACE_TRY(stride, length(one, where));
      spec.strides.push_back(stride);
    }
  }
  return spec;
}

Result<std::vector<TensorSpec>> tensors(const Json& whole, const char* key, const char* one) {
  const Json* const list = member(whole, key);
  if (list == nullptr || !list->is_array()) return wrong(key, "is not a list");
  std::vector<TensorSpec> specs;
  for (const Json& value : *list) {
    HEADRACE_TRY(spec, tensor(value, fmt::format("{} {}", one, specs.size())));
    specs.push_back(std::move(spec));
  }
  return specs;
}

Result<void> mark_mutated(const Json& whole, std::vector<TensorSpec>& inputs) {
  const Json* const names = member(whole, "mutated");
  if (names == nullptr) return {};
  if (!names->is_array()) return wrong("mutated", "is not a list");
  for (const Json& name : *names) {
    const auto found =
        std::ranges::find_if(inputs, [&](const TensorSpec& spec) { return name == spec.name; });
    if (found == inputs.end()) return wrong("mutated", "names an input that does not exist");
    found->mutated = true;
  }
  return {};
}

}  // namespace

Result<IoSpec> read_io_spec(std::string_view json) {
  const Json whole = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object()) return wrong("it", "is not a JSON object");
  const Json* const form = member(whole, "headrace_io");
  if (form == nullptr || !form->is_number_integer()) return wrong("headrace_io", "is missing");
  if (*form != known_form)
    return make_error(
        Code::not_supported,
        "its description of inputs and outputs has form {}, and form {} is known here: export it again, or "
        "use a newer Headrace",
        form->dump(), known_form);
  IoSpec spec;
  spec.source = SpecSource::exported;
  HEADRACE_TRY(headrace_version, text(whole, "headrace", "it"));
  HEADRACE_TRY(torch_version, text(whole, "torch", "it"));
  HEADRACE_TRY(inputs, tensors(whole, "inputs", "input"));
  HEADRACE_TRY(outputs, tensors(whole, "outputs", "output"));
  spec.headrace_version = std::move(headrace_version);
  spec.torch_version = std::move(torch_version);
  spec.inputs = std::move(inputs);
  spec.outputs = std::move(outputs);
  HEADRACE_TRY_VOID(mark_mutated(whole, spec.inputs));
  return spec;
}

}  // namespace headrace
