// SPDX-License-Identifier: Apache-2.0
#include "cli/common/backend_report.hpp"

#include <fmt/format.h>

namespace headrace::cli {

std::string kinds_text(const BackendInfo& backend) {
  std::string text;
  for (const MemoryKind kind : backend.kinds) text.append(text.empty() ? "" : " ").append(kind_name(kind));
  return text;
}

std::string abilities_text(const BackendInfo& backend) {
  std::string text;
  const auto add = [&text](bool can, const char* what) {
    if (can) text.append(text.empty() ? "" : ", ").append(what);
  };
  add(backend.local, "own agent");
  add(backend.remote, "peers");
  add(backend.notifications, "notifications");
  add(backend.mapping, "mapping");
  add(backend.query, "query");
  return text;
}

Json option_json(const OptionInfo& option) {
  return {{"name", option.name}, {"value", option.value},           {"source", option.source},
          {"unit", option.unit}, {"default", option.default_value}, {"sentence", option.sentence}};
}

Json backend_json(const BackendInfo& backend) {
  Json json{{"name", backend.name},
            {"version", backend.version},
            {"path", backend.path},
            {"loaded", backend.loaded}};
  if (!backend.refusal.empty()) json["refusal"] = backend.refusal;
  if (!backend.loaded) return json;
  json["kinds"] = Json::array();
  for (const MemoryKind kind : backend.kinds) json["kinds"].push_back(kind_name(kind));
  json["local"] = backend.local;
  json["remote"] = backend.remote;
  json["notifications"] = backend.notifications;
  json["mapping"] = backend.mapping;
  json["query"] = backend.query;
  json["options"] = Json::array();
  for (const OptionInfo& option : backend.options) json["options"].push_back(option_json(option));
  return json;
}

Table option_table(const std::vector<OptionInfo>& options) {
  Table table({{"option"}, {"value"}, {"from"}, {"meaning"}});
  for (const OptionInfo& option : options) {
    std::string what = fmt::format("{} ({})", option.sentence, option.unit);
    if (option.value != option.default_value)
      what += fmt::format("; default {}", option.default_value.empty() ? "none" : option.default_value);
    table.add({option.name, option.value.empty() ? "-" : option.value, option.source, what});
  }
  return table;
}

}  // namespace headrace::cli
