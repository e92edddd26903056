// SPDX-License-Identifier: Apache-2.0
// The description of a package as JSON, for commands and other languages.
#include <headrace/model.hpp>

#include <nlohmann/json.hpp>

namespace headrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson dimension_json(const DimensionSpec& dimension) {
  if (!dimension.expression.empty()) return {{"expr", dimension.expression}};
  if (dimension.fixed()) return dimension.least;
  OrderedJson range{{"name", dimension.name}, {"min", dimension.least}, {"max", nullptr}};
  if (dimension.most) range["max"] = *dimension.most;
  return range;
}

OrderedJson spec_json(const TensorSpec& spec) {
  OrderedJson json{{"name", spec.name}, {"dtype", nullptr}, {"shape", nullptr}, {"strides", nullptr}};
  if (spec.dtype) json["dtype"] = dtype_name(*spec.dtype);
  if (spec.shape_known) json["shape"] = OrderedJson::array();
  for (const DimensionSpec& dimension : spec.shape) json["shape"].push_back(dimension_json(dimension));
  if (!spec.strides.empty()) json["strides"] = spec.strides;
  if (spec.values) json["values"] = {{"min", spec.values->least}, {"max", spec.values->most}};
  if (spec.optional) json["optional"] = true;
  if (spec.mutated) json["mutated"] = true;
  return json;
}

OrderedJson specs_json(const std::vector<TensorSpec>& specs) {
  OrderedJson list = OrderedJson::array();
  for (const TensorSpec& spec : specs) list.push_back(spec_json(spec));
  return list;
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

OrderedJson info_json(const ModelInfo& info) {
  OrderedJson json{{"path", info.path},
                   {"name", info.model_name},
                   {"models", info.model_names},
                   {"bytes", info.package_bytes}};
  json["device"] = info.device.kind == Device::Kind::cpu ? "cpu" : "cuda";
  json["inputs"] = specs_json(info.inputs);
  json["outputs"] = specs_json(info.outputs);
  json["described_by"] = spec_source_name(info.spec_source);
  json["torch"] = text_or_null(info.torch_version);
  json["headrace"] = text_or_null(info.headrace_version);
  json["platform"] = text_or_null(info.platform);
  json["machine"] = text_or_null(info.machine);
  json["cpu_isa"] = text_or_null(info.cpu_isa);
  json["compute_capability"] = text_or_null(info.compute_capability);
  json["metadata"] = info.metadata;
  json["warnings"] = info.warnings;
  json["runs_here"] = info.refusal.empty();
  json["refusal"] = text_or_null(info.refusal);
  return json;
}

}  // namespace

std::string model_info_json(const ModelInfo& info) {
  return info_json(info).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace headrace
