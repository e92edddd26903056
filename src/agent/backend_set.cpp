// SPDX-License-Identifier: Apache-2.0
#include "agent/backend_set.hpp"

#include "agent/core_options.hpp"
#include "base/text.hpp"
#include "local/backend.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace headrace {
namespace {

std::string origin_name(const OptionValue& value) {
  switch (value.origin) {
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

std::string cache_folder(const Options& core) {
  if (std::string folder = *core.text("plugin_cache"); !folder.empty()) return folder;
  if (const auto cache = environment_variable("XDG_CACHE_HOME"); cache && cache->starts_with('/'))
    return *cache + "/headrace/plugins";
  if (const auto home = environment_variable("HOME"); home && home->starts_with('/'))
    return *home + "/.cache/headrace/plugins";
  return {};
}

std::vector<std::string> secrets(const headrace_backend_v1& table) {
  std::vector<std::string> names;
  const char* row = reinterpret_cast<const char*>(table.options);
  for (std::size_t i = 0; i < table.option_count; ++i, row += table.option_size) {
    headrace_option_v1 option;
    std::memcpy(&option, row, sizeof option);
    if ((option.flags & HEADRACE_OPTION_SECRET) != 0) names.emplace_back(option.name);
  }
  return names;
}

}  // namespace

OptionSplit split_options(const std::map<std::string, std::string>& options) {
  OptionSplit split;
  for (const auto& [name, value] : options) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) {
      split.core[name] = value;
    } else {
      split.backends[name.substr(0, dot)][name.substr(dot + 1)] = value;
    }
  }
  return split;
}

Result<std::unique_ptr<BackendSet>> BackendSet::open(const std::map<std::string, std::string>& options) {
  std::unique_ptr<BackendSet> set(new BackendSet);
  set->given_ = split_options(options);
  OptionSources sources;
  sources.given = set->given_.core;
  // Tables of the file belong to backends, which are unknown before plugin_path is known: each reads its own
  // table later.
  sources.other_tables = {"*"};
  HEADRACE_TRY(core, Options::resolve(core_options, sources));
  set->core_.emplace(std::move(core));
  HEADRACE_TRY(secret, Secret::read(*set->core_));
  set->secret_ = std::move(secret);
  HEADRACE_TRY(log, set->core_->text("log"));
  if (set->core_->value("log")->origin != OptionOrigin::standard) {
    if (auto chosen = set_log_level(log); !chosen) return std::move(chosen).error().within("option log");
  }
  HEADRACE_TRY(folders, set->core_->list("plugin_path"));
  engine::PluginPaths paths = engine::default_plugin_paths(folders);
  paths.cache_folder = cache_folder(*set->core_);
  set->plugins_ =
      std::make_unique<engine::PluginHost>(std::move(paths), Log(Logger::process_default(), "plugins"));
  set->plugins_->link_in(plugin::table<local::LocalBackend>());
  HEADRACE_TRY_VOID(set->check_log_rooms(log));
  return set;
}

/// A level is for a part of the library or for a backend.
Result<void> BackendSet::check_log_rooms(std::string_view spec) const {
  constexpr std::array<std::string_view, 5> parts{"agent", "engine", "metadata", "model", "plugins"};
  for (const std::string_view part : split_list(spec)) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view room = trim(part.substr(0, equals));
    if (std::ranges::find(parts, room) != parts.end()) continue;
    if (plugins_->find(std::string(room)).table != nullptr) continue;
    const std::string backend = nearest_backend(room);
    std::vector<std::string_view> rooms(parts.begin(), parts.end());
    rooms.emplace_back(backend);
    return make_error(
        Code::invalid_argument,
        "option log: \"{}\" in \"{}\" is no room: did you mean {}? Rooms are {} and the backends", room, spec,
        nearest_name(room, rooms), fmt::join(parts, ", "));
  }
  return {};
}

std::vector<OptionRow> BackendSet::rows(const headrace_backend_v1& table) const {
  std::vector<OptionRow> rows;
  const char* row = reinterpret_cast<const char*>(table.options);
  for (std::size_t i = 0; i < table.option_count; ++i, row += table.option_size) {
    headrace_option_v1 option;
    std::memcpy(&option, row, sizeof option);
    rows.push_back({option.name, option.default_value, option.unit, option.sentence});
  }
  return rows;
}

Result<std::vector<OptionInfo>> BackendSet::resolve(const headrace_backend_v1& table,
                                                    const std::map<std::string, std::string>& more) const {
  OptionSources sources;
  {
    const std::lock_guard lock(given_mutex_);
    if (const auto at = given_.backends.find(table.name); at != given_.backends.end())
      sources.given = at->second;
  }
  for (const auto& [name, value] : more) sources.given[name] = value;
  sources.scope = table.name;
  const std::vector<OptionRow> table_rows = rows(table);
  auto options = Options::resolve(table_rows, sources);
  if (!options) return std::move(options).error().within(std::string("options of backend ") + table.name);
  const std::string prefix = std::string(table.name) + ".";
  std::vector<OptionInfo> infos = option_infos(*options, prefix, {});
  const auto token = std::ranges::find(infos, prefix + "auth_token", &OptionInfo::name);
  if (token == infos.end()) return infos;
  if (token->source != "default")
    return make_error(Code::invalid_argument,
                      "option {}: an agent has one secret for all its ports: set auth_token or "
                      "auth_token_file instead",
                      token->name);
  token->value = secret_.token;
  if (const auto listen = std::ranges::find(infos, prefix + "listen", &OptionInfo::name);
      listen != infos.end())
    listen->value = meeting_.data_port(*listen);
  return infos;
}

void BackendSet::created_with(const std::string& backend, const std::map<std::string, std::string>& options) {
  const std::lock_guard lock(given_mutex_);
  for (const auto& [name, value] : options) given_.backends[backend][name] = value;
}

std::vector<engine::FoundBackend> BackendSet::shown(std::vector<engine::FoundBackend> all) const {
  const auto asked = core_->list("backends");
  const bool by_name =
      asked && std::find(asked->begin(), asked->end(), engine::model_backend) != asked->end();
  const std::lock_guard lock(given_mutex_);
  if (!by_name && !given_.backends.contains(std::string(engine::model_backend)))
    std::erase_if(all, [](const engine::FoundBackend& found) { return found.name == engine::model_backend; });
  return all;
}

Result<void> BackendSet::check_names(const std::vector<engine::FoundBackend>& found) const {
  const std::lock_guard lock(given_mutex_);
  for (const auto& [backend, values] : given_.backends) {
    const bool known =
        std::any_of(found.begin(), found.end(), [&](const auto& f) { return f.name == backend; });
    if (known || plugins_->find(backend).table != nullptr) continue;
    return make_error(Code::invalid_argument, "option {}.{}: there is no backend {}: did you mean {}?",
                      backend, values.begin()->first, backend, nearest_backend(backend));
  }
  return {};
}

std::string BackendSet::nearest_backend(std::string_view name) const {
  const auto all = plugins_->find_all();
  if (!all) return {};
  std::vector<std::string_view> names;
  for (const engine::FoundBackend& found : *all)
    if (found.name != engine::model_backend) names.emplace_back(found.name);
  return std::string(nearest_name(name, names));
}

BackendInfo BackendSet::describe(const engine::FoundBackend& found) const {
  BackendInfo info;
  info.name = found.name;
  info.path = found.path;
  info.refusal = found.refusal;
  info.loaded = found.table != nullptr;
  if (found.table == nullptr) return info;
  info.version = found.table->version;
  info.mapping = found.table->map != nullptr;
  for (int kind = 0; kind <= static_cast<int>(MemoryKind::object); ++kind)
    if ((found.table->memory_kinds & HEADRACE_KIND_BIT(kind)) != 0)
      info.kinds.push_back(static_cast<MemoryKind>(kind));
  if (auto options = resolve(*found.table)) {
    info.options = std::move(*options);
    for (const std::string& name : secrets(*found.table))
      for (OptionInfo& option : info.options)
        if (option.name == info.name + "." + name && !option.value.empty()) option.value = "(set)";
  } else {
    info.refusal = options.error().message;
  }
  return info;
}

std::vector<OptionInfo> option_infos(const Options& options, const std::string& prefix,
                                     const std::vector<std::string>& secret) {
  std::vector<OptionInfo> infos;
  for (const OptionRow& row : options.rows()) {
    const OptionValue value = *options.value(row.name);
    const bool hidden =
        std::find(secret.begin(), secret.end(), row.name) != secret.end() && !value.text.empty();
    infos.push_back({prefix + row.name, row.default_value, hidden ? "(set)" : value.text, row.unit,
                     row.sentence, origin_name(value)});
  }
  return infos;
}

}  // namespace headrace
