// SPDX-License-Identifier: Apache-2.0
// `headrace inspect`: prints the description of a package, and runs nothing of it.
#include "cli/command.hpp"
#include "cli/common/errors.hpp"
#include "cli/model/model_run.hpp"
#include "cli/model/model_text.hpp"
#include "formats/names.hpp"

#include <fmt/format.h>
#include <memory>

namespace headrace::cli {
namespace {

struct InspectArguments {
  std::string path;
  std::string model_name = "model";
  bool constants = false;
  bool json = false;
};

Result<std::vector<ConstantInfo>> constants_of(const InspectArguments& wanted, const Invocation& invocation) {
  if (!wanted.constants) return std::vector<ConstantInfo>();
  ModelOptions options;
  options.model_name = wanted.model_name;
  options.options = invocation.options;
  HEADRACE_CLI_TRY(model, Model::open(wanted.path, options));
  return model.constants();
}

ModelJson constants_json(const std::vector<ConstantInfo>& constants) {
  ModelJson list = ModelJson::array();
  for (const ConstantInfo& constant : constants) {
    ModelJson shape = ModelJson::array();
    for (const std::int64_t length : constant.shape) shape.push_back(length);
    list.push_back({{"name", constant.name}, {"dtype", dtype_name(constant.dtype)}, {"shape", shape}});
  }
  return list;
}

Result<void> inspect(const InspectArguments& wanted, const Invocation& invocation) {
  HEADRACE_CLI_TRY(info, Model::inspect(wanted.path, wanted.model_name));
  HEADRACE_CLI_TRY(constants, constants_of(wanted, invocation));
  if (!wanted.json) {
    fmt::print("{}", formats::printable(inspect_text(info, constants)));
    return {};
  }
  ModelJson json = ModelJson::parse(model_info_json(info));
  if (wanted.constants) json["constants"] = constants_json(constants);
  print_json(json);
  return {};
}

}  // namespace

void add_inspect(const Command& app, Invocation& invocation) {
  auto wanted = std::make_shared<InspectArguments>();
  const Command command =
      app.add_subcommand("inspect", "Print the inputs, outputs and requirements of a compiled model");
  command.add_option("model", wanted->path, "The .pt2 package, or the folder that it was unpacked to")
      .required()
      .type_name("FILE");
  command.add_option("--name", wanted->model_name, "Model of the package").type_name("NAME").show_default();
  command.add_flag("--constants", wanted->constants,
                   "Print weights and buffers too, except those that the compiler folded; loads the model");
  command.add_flag("--json", wanted->json, "Print JSON");
  command.footer(
      "Without --constants nothing of the package is run, and torch is not needed.\n"
      "Examples:\n"
      "  headrace inspect model.pt2\n"
      "  headrace inspect model.pt2 --constants"

  );
  command.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return inspect(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
