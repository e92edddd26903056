// SPDX-License-Identifier: Apache-2.0
// Finds, checks and loads backends: shared objects `headrace_backend_<name>.so` in a list of folders, or
// linked in.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/result.hpp>

#include "base/log.hpp"

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::engine {

/// One backend that was found: its table, or the sentence that says why it was refused.
struct FoundBackend {
  std::string name;
  std::string path;  ///< "linked in" for those that are
  const headrace_backend_v1* table = nullptr;
  std::string refusal;
  Code code = Code::backend_failed;  ///< of the refusal
};

/// The one that is for tests: opened, listed and proposed only to those who name it.
inline constexpr std::string_view model_backend = "fake";

/// The one of moves inside an agent, which every agent has beside those that its caller names.
inline constexpr std::string_view local_backend = "local";

struct PluginPaths {
  std::vector<std::string> own_folders;    ///< came with Headrace: trusted to initialise in this process
  std::vector<std::string> other_folders;  ///< tried in a child process first
  std::string probe_program;               ///< the child: plugin_trial.hpp
  std::string cache_folder;                ///< verdicts of the child by the file's content; empty: not kept
};

/// Where this installation keeps its backends (beside the library), and the folders of option plugin_path.
PluginPaths default_plugin_paths(const std::vector<std::string>& plugin_path);

/// Checks a table as far as it can be checked without calling its `create`. The sentence names what is wrong.
Result<void> check_table(const headrace_backend_v1* table, std::string_view expected_name);

class PluginHost {
 public:
  PluginHost(PluginPaths paths, Log log) : paths_(std::move(paths)), log_(std::move(log)) {}

  /// A backend that is part of this program.
  void link_in(const headrace_backend_v1* table);
  /// The backend of that name from the first folder that has it. Loaded once a host; never unloaded.
  FoundBackend find(const std::string& name);
  /// All there are, by name.
  ///   errors  exhausted (no descriptor to read a folder)
  Result<std::vector<FoundBackend>> find_all();

 private:
  using Files = std::map<std::string, std::pair<std::string, bool>>;  ///< name -> path, own
  [[nodiscard]] FoundBackend unknown(const std::string& name, const Files& all) const;
  FoundBackend load(const std::string& name, const std::string& path, bool own);
  Result<const headrace_backend_v1*> checked_table(const std::string& name, const std::string& path,
                                                   bool own) const;
  [[nodiscard]] Result<void> try_stranger(const std::string& path) const;
  Result<Files> files() const;

  const PluginPaths paths_;
  const Log log_;
  std::mutex mutex_;
  std::map<std::string, FoundBackend> found_;
};

}  // namespace headrace::engine
