// SPDX-License-Identifier: Apache-2.0
// `headrace inspect`: what a package says of itself, without running anything in it.
#include "cli/command.hpp"
#include "cli/errors.hpp"
#include "cli/model_run.hpp"

#include <CLI/CLI.hpp>

#include <memory>

namespace headrace::cli {
namespace {

struct Wanted {
  std::string path;
  std::string model_name = "model";
  bool constants = false;
};

ModelJson dimension_json(const DimensionSpec& dimension) {
  if (!dimension.expression.empty()) return {{"expr", dimension.expression}};
  if (dimension.fixed()) return dimension.least;
  ModelJson range{{"name", dimension.name}, {"min", dimension.least}, {"max", nullptr}};
  if (dimension.most) range["max"] = *dimension.most;
  return range;
}

ModelJson spec_json(const TensorSpec& spec) {
  ModelJson json{{"name", spec.name}, {"dtype", nullptr}, {"shape", nullptr}, {"strides", nullptr}};
  if (spec.dtype) json["dtype"] = dtype_name(*spec.dtype);
  if (spec.shape_known) json["shape"] = ModelJson::array();
  for (const DimensionSpec& dimension : spec.shape) json["shape"].push_back(dimension_json(dimension));
  if (!spec.strides.empty()) json["strides"] = spec.strides;
  if (spec.optional) json["optional"] = true;
  if (spec.mutated) json["mutated"] = true;
  return json;
}

ModelJson specs_json(const std::vector<TensorSpec>& specs) {
  ModelJson list = ModelJson::array();
  for (const TensorSpec& spec : specs) list.push_back(spec_json(spec));
  return list;
}

ModelJson text_or_null(const std::string& text) {
  return text.empty() ? ModelJson(nullptr) : ModelJson(text);
}

ModelJson info_json(const ModelInfo& info) {
  ModelJson json{{"path", info.path},
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

Result<ModelJson> constants_json(const Wanted& wanted, const Invocation& invocation) {
  ModelOptions options;
  options.model_name = wanted.model_name;
  options.options = invocation.options;
  HEADRACE_CLI_TRY(model, Model::open(wanted.path, options));
  HEADRACE_CLI_TRY(constants, model.constants());
  ModelJson list = ModelJson::array();
  for (const ConstantInfo& constant : constants) {
    ModelJson shape = ModelJson::array();
    for (const std::int64_t length : constant.shape) shape.push_back(length);
    list.push_back({{"name", constant.name}, {"dtype", dtype_name(constant.dtype)}, {"shape", shape}});
  }
  return list;
}

Result<void> inspect(const Wanted& wanted, const Invocation& invocation) {
  HEADRACE_CLI_TRY(info, Model::inspect(wanted.path, wanted.model_name));
  ModelJson json = info_json(info);
  if (wanted.constants) {
    HEADRACE_CLI_TRY(constants, constants_json(wanted, invocation));
    json["constants"] = std::move(constants);
  }
  print_json(json);
  return {};
}

}  // namespace

void add_inspect(CLI::App& app, Invocation& invocation) {
  auto wanted = std::make_shared<Wanted>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a compiled model takes, gives and needs");
  command->add_option("model", wanted->path, "The package, .pt2, or the folder that it was unpacked to")
      ->required()
      ->type_name("FILE");
  command->add_option("--name", wanted->model_name, "Which model of the package")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_flag("--constants", wanted->constants,
                    "Weights and buffers too, for which the model is loaded");
  command->footer(
      "Prints a JSON object. Nothing of the package is run, and no torch is needed, unless its constants are "
      "asked for.\n"
      "Examples:\n"
      "  headrace inspect model.pt2\n"
      "  headrace inspect model.pt2 --constants");
  command->callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return inspect(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
