// SPDX-License-Identifier: Apache-2.0
// Which backends there are, with their options resolved: what an agent opens, and what `headrace plugins` and
// `doctor` print.
#pragma once

#include <headrace/agent.hpp>

#include "base/options.hpp"
#include "engine/plugin_host.hpp"

#include <map>
#include <memory>
#include <mutex>

namespace headrace {

/// The caller's options, sorted out: those of the agent, and those of each backend by its name.
struct OptionSplit {
  std::map<std::string, std::string> core;
  std::map<std::string, std::map<std::string, std::string>> backends;
};
OptionSplit split_options(const std::map<std::string, std::string>& options);

class BackendSet {
 public:
  /// Resolves the agent's own options and finds the plugin folders.
  static Result<std::unique_ptr<BackendSet>> open(const std::map<std::string, std::string>& options);

  [[nodiscard]] const Options& core() const { return *core_; }
  engine::PluginHost& plugins() { return *plugins_; }
  /// The rows of a backend's table, as our own kind of rows.
  std::vector<OptionRow> rows(const headrace_backend_v1& table) const;
  /// Every row resolved. `more` wins over what the caller gave at open.
  Result<std::vector<OptionInfo>> resolve(const headrace_backend_v1& table,
                                          const std::map<std::string, std::string>& more = {}) const;
  /// The backend was opened later, with these options: they count as the caller's from now on.
  void created_with(const std::string& backend, const std::map<std::string, std::string>& options);
  /// All of them but the model backend, which is for tests: it is shown to those who name it in an option.
  [[nodiscard]] std::vector<engine::FoundBackend> shown(std::vector<engine::FoundBackend> all) const;
  [[nodiscard]] Result<void> check_names(const std::vector<engine::FoundBackend>& found) const;
  BackendInfo describe(const engine::FoundBackend& found) const;

 private:
  BackendSet() = default;
  [[nodiscard]] std::string nearest_backend(std::string_view name) const;

  mutable std::mutex given_mutex_;
  OptionSplit given_;
  std::optional<Options> core_;
  std::unique_ptr<engine::PluginHost> plugins_;
};

/// The rows of a resolved table with values and where they come from; secrets are hidden.
std::vector<OptionInfo> option_infos(const Options& options, const std::string& prefix,
                                     const std::vector<std::string>& secret);

}  // namespace headrace
