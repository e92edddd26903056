// SPDX-License-Identifier: Apache-2.0
#include "runner/model_options.hpp"

#include "runner/package_cache.hpp"

#include <headrace/agent.hpp>
#include <headrace/model.hpp>

#include <array>

namespace headrace {
namespace {

constexpr std::string_view scope = "model";

constexpr std::array option_rows{
    OptionRow{"debug", "false", "boolean",
              "Print for every run to stderr: type, shape, strides, device, least, most, mean and non-finite "
              "elements of each input and "
              "output, and the time of each step"},
    OptionRow{
        "cache_dir", "", "text",
        "Folder for unpacked packages, also set by HEADRACE_CACHE_DIR; empty: headrace in $XDG_CACHE_HOME "
        "or ~/.cache"},
    OptionRow{"library", "", "text", "Path of libheadrace_torch.so; empty: the one beside libheadrace.so"},
};

/// The cache folder also has a variable of its own, because all of Headrace uses it.
std::optional<std::string> environment(const std::string& name) {
  auto value = environment_variable(name);
  if (!value && name == "HEADRACE_MODEL_CACHE_DIR") value = environment_variable("HEADRACE_CACHE_DIR");
  return value;
}

std::string_view origin_name(OptionOrigin origin) {
  switch (origin) {
    case OptionOrigin::caller:
      return "caller";
    case OptionOrigin::environment:
      return "environment";
    case OptionOrigin::file:
      return "file";
    case OptionOrigin::standard:
      break;
  }
  return "default";
}

}  // namespace

Result<Options> resolve_model_options(const std::map<std::string, std::string>& given) {
  OptionSources sources;
  sources.scope = scope;
  sources.environment = environment;
  for (const auto& [name, value] : given)
    sources.given[name.starts_with("model.") ? name.substr(scope.size() + 1) : name] = value;
  return Options::resolve(option_rows, sources);
}

Result<ModelSettings> model_settings(const std::map<std::string, std::string>& given) {
  HEADRACE_TRY(options, resolve_model_options(given));
  HEADRACE_TRY(debug, options.boolean("debug"));
  HEADRACE_TRY(cache, options.text("cache_dir"));
  HEADRACE_TRY(library, options.text("library"));
  return ModelSettings{debug, default_cache_folder(cache).string(), library};
}

Result<std::vector<OptionInfo>> list_model_options(const std::map<std::string, std::string>& given) {
  HEADRACE_TRY(options, resolve_model_options(given));
  std::vector<OptionInfo> infos;
  for (const OptionRow& row : options.rows()) {
    HEADRACE_TRY(value, options.value(row.name));
    infos.push_back({fmt::format("{}.{}", scope, row.name), row.default_value, value.text, row.unit,
                     row.sentence, std::string(origin_name(value.origin))});
  }
  return infos;
}

}  // namespace headrace
