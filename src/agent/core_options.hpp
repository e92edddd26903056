// SPDX-License-Identifier: Apache-2.0
// The options of the agent itself; each backend has a table of its own.
#pragma once

#include "base/options.hpp"
#include "metadata/open_store.hpp"

#include <algorithm>
#include <array>

namespace headrace {

inline constexpr std::array agent_options{
    OptionRow{"backends", "", "list",
              "Backends that an agent opens unless its caller names some; empty: every one that loads."},
    OptionRow{"plugin_path", "", "list",
              "Folders with further backends, each tried in a child process before its first use."},
    OptionRow{"plugin_cache", "", "text",
              "Folder for the verdicts of those trials; empty: headrace/plugins in the user's cache folder."},
    OptionRow{"runtime_dir", "", "text",
              "Folder for the sockets of agents on one host, mode 0700; empty: headrace in XDG_RUNTIME_DIR, "
              "else in /tmp by user."},
    OptionRow{"store", "", "text",
              "Where agents publish metadata: etcd://host:port[,host:port][/namespace], file:///folder or "
              "memory:NAME; empty: nowhere."},
    OptionRow{"inbox_capacity", "1048576", "count",
              "Notifications that may wait to be taken; what comes beyond is dropped, counted and logged as "
              "an error."},
    OptionRow{"inbox_bytes", "256MiB", "bytes",
              "Payload of the notifications that may wait to be taken; what comes beyond is dropped in the "
              "same way."},
    OptionRow{"check", "no", "boolean",
              "Refuse requests whose destination pages overlap: costs a sort of every request made."},
    OptionRow{"python", "python3", "text",
              "Interpreter with torch and headrace, with which `headrace demo` compiles its model."},
    OptionRow{"log", "warn", "text",
              "What is logged: a level, and room=level pairs, as in \"info,tcp=debug\"; levels are off, "
              "error, warn, info, debug, trace."},
};

/// With the rows of the stores and of the metadata socket.
inline constexpr auto core_options = [] {
  std::array<OptionRow, agent_options.size() + metadata::option_rows.size()> rows{};
  std::copy(metadata::option_rows.begin(), metadata::option_rows.end(),
            std::copy(agent_options.begin(), agent_options.end(), rows.begin()));
  return rows;
}();

}  // namespace headrace
