// SPDX-License-Identifier: Apache-2.0
// The known backends with their resolved options: for agents that open them, and for `headrace plugins` and
// `doctor`.
#pragma once

#include <headrace/agent.hpp>

#include "agent/ports.hpp"
#include "agent/secret.hpp"
#include "base/options.hpp"
#include "engine/plugin_host.hpp"

#include <map>
#include <memory>
#include <mutex>

namespace headrace {

/// The caller's options, sorted: those of the agent, and those of each backend by its name.
struct OptionSplit {
  std::map<std::string, std::string> core;
  std::map<std::string, std::map<std::string, std::string>> backends;
};
OptionSplit split_options(const std::map<std::string, std::string>& options);

class BackendSet {
 public:
  /// Resolves the agent's own options and finds the plugin folders.
  static Result<std::unique_ptr<BackendSet>> open(const std::map<std::string, std::string>& options);
  /// Before the first backend opens.
  void meet_at(Meeting meeting) { meeting_ = std::move(meeting); }
  [[nodiscard]] const Meeting& meeting() const { return meeting_; }

  [[nodiscard]] const Options& core() const { return *core_; }
  [[nodiscard]] const Secret& secret() const { return secret_; }
  engine::PluginHost& plugins() { return *plugins_; }
  /// The rows of a backend's table, as OptionRow.
  std::vector<OptionRow> rows(const headrace_backend_v1& table) const;
  /// Resolves every row. A backend with the row auth_token gets the agent's secret, and its data port is
  /// where `Meeting::data_port` says. Values in `more` win over those that the caller gave at open.
  Result<std::vector<OptionInfo>> resolve(const headrace_backend_v1& table,
                                          const std::map<std::string, std::string>& more = {}) const;
  /// A backend was opened later with these options: from now on they count as the caller's.
  void created_with(const std::string& backend, const std::map<std::string, std::string>& options);
  /// All of them except the test backend, which is shown only if an option names it.
  [[nodiscard]] std::vector<engine::FoundBackend> shown(std::vector<engine::FoundBackend> all) const;
  [[nodiscard]] Result<void> check_names(const std::vector<engine::FoundBackend>& found) const;
  BackendInfo describe(const engine::FoundBackend& found) const;

 private:
  BackendSet() = default;
  [[nodiscard]] std::string nearest_backend(std::string_view name) const;
  [[nodiscard]] Result<void> check_log_rooms(std::string_view spec) const;

  mutable std::mutex given_mutex_;
  OptionSplit given_;
  std::optional<Options> core_;
  Secret secret_;
  Meeting meeting_;
  std::unique_ptr<engine::PluginHost> plugins_;
};

/// The rows of a resolved table with values and their sources; secrets are hidden.
std::vector<OptionInfo> option_infos(const Options& options, const std::string& prefix,
                                     const std::vector<std::string>& secret);

}  // namespace headrace
