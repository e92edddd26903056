// SPDX-License-Identifier: Apache-2.0
// The options of the agent itself; each backend has its own table.
#pragma once

#include "base/options.hpp"
#include "metadata/open_store.hpp"

#include <algorithm>
#include <array>

namespace headrace {

inline constexpr std::array agent_options{
    OptionRow{"backends", "", "list",
              "Backends that an agent opens unless its caller names some; empty: every backend that loads."},
    OptionRow{
        "plugin_path", "", "list",
        "Folders with further backends; each backend is tested in a child process before its first use."},
    OptionRow{"plugin_cache", "", "text",
              "Folder for the results of these tests; empty: headrace/plugins in the user's cache folder."},
    OptionRow{"runtime_dir", "", "text",
              "Folder for the sockets of agents on one host, mode 0700; empty: headrace in XDG_RUNTIME_DIR, "
              "else headrace-<uid> in /tmp."},
    OptionRow{"store", "", "text",
              "Store for the metadata of agents: etcd://host:port[,host:port][/namespace], file:///folder or "
              "memory:NAME; empty: nowhere."},
    OptionRow{"inbox_capacity", "1048576", "count",
              "Notifications of all peers that may wait for the caller, about; peers that send have equal "
              "shares, at least 1024 each; one that has used up its share is told would_block until some are "
              "taken."},
    OptionRow{"inbox_bytes", "256MiB", "bytes", "The same in bytes; a peer's share is at least 4MiB."},
    OptionRow{
        "max_strangers", "4096", "count",
        "Agents that may be known here though nobody has imported their metadata: they have connected or "
        "sent it; the oldest that are gone are forgotten for new ones."},
    OptionRow{
        "reserved_descriptors", "32", "count",
        "File descriptors that stay free for the rest of the process: a connection or a link that would "
        "leave fewer is refused."},
    OptionRow{
        "check", "no", "boolean",
        "Refuse requests whose destination pages overlap; costs one sort for each request that is made."},
    OptionRow{
        "python", "python3", "text",
        "Python interpreter with torch and headrace: `headrace demo` compiles its model by it, and `headrace "
        "doctor --collectives` asks it about torch."},
    OptionRow{
        "log", "warn", "text",
        "Log level, and room=level pairs for single rooms, as in \"info,tcp=debug\"; the levels are off, "
        "error, warn, info, debug, trace."},
};

/// All options of the core, with those of the stores and of the metadata socket.
inline constexpr auto core_options = [] {
  std::array<OptionRow, agent_options.size() + metadata::option_rows.size()> rows{};
  std::copy(metadata::option_rows.begin(), metadata::option_rows.end(),
            std::copy(agent_options.begin(), agent_options.end(), rows.begin()));
  return rows;
}();

}  // namespace headrace
