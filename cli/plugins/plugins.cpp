// SPDX-License-Identifier: Apache-2.0
// `headrace plugins`: lists every backend that was found, its abilities and options, and why others were
// refused.
#include "cli/command.hpp"
#include "cli/common/backend_report.hpp"
#include "cli/common/table.hpp"
#include "cli/common/text.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

namespace headrace::cli {
namespace {

void print_tables(const std::vector<BackendInfo>& backends) {
  Table table({{"backend"}, {"version"}, {"memory"}, {"abilities"}, {"from"}});
  for (const BackendInfo& backend : backends)
    if (backend.loaded)
      table.add({backend.name, backend.version, kinds_text(backend), abilities_text(backend), backend.path});
  if (!table.empty()) fmt::print("{}", table.text());

  for (const BackendInfo& backend : backends) {
    if (!backend.loaded || backend.options.empty()) continue;
    fmt::print("\noptions of {} (--option NAME=VALUE)\n{}", backend.name,
               option_table(backend.options).text());
  }
  const auto refused = std::count_if(backends.begin(), backends.end(),
                                     [](const BackendInfo& b) { return !b.refusal.empty(); });
  if (refused > 0) fmt::print("\nrefused\n");
  for (const BackendInfo& backend : backends)
    if (!backend.refusal.empty())
      fmt::print("{}\n", wrap(fmt::format("  {} ({}): {}", backend.name, backend.path, backend.refusal), 4));
}

Result<void> list_plugins(const Invocation& invocation, bool json) {
  HEADRACE_CLI_TRY(backends, list_backends(invocation.options));
  if (json) {
    Json all = Json::array();
    for (const BackendInfo& backend : backends) all.push_back(backend_json(backend));
    fmt::print("{}\n",
               Json{{"backends", std::move(all)}}.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (backends.empty()) {
    return fail(
        Code::not_found,
        "no backend was found: backends are in the folder `backends` beside libheadrace.so, and in the "
        "folders of option plugin_path");
  } else {
    print_tables(backends);
  }
  return {};
}

}  // namespace

void add_plugins(const Command& app, Invocation& invocation) {
  auto json = std::make_shared<bool>(false);
  const Command plugins = app.add_subcommand(
      "plugins", "List the backends: abilities and options of each, and why one was refused");
  plugins.add_flag("--json", *json, "Print JSON");
  plugins.footer(
      "Examples:\n"
      "  headrace plugins\n"
      "  headrace plugins --option plugin_path=build/mine     with the backends of another folder\n"
      "  headrace plugins --json");
  plugins.callback([json, &invocation] {
    invocation.action = [json, &invocation] { return list_plugins(invocation, *json); };
  });
}

}  // namespace headrace::cli
