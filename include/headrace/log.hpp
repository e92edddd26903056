// SPDX-License-Identifier: Apache-2.0
// What Headrace says about itself while it runs, how much of it, and where it goes.
#pragma once

#include <headrace/result.hpp>

#include <functional>
#include <string_view>

namespace headrace {

/// How much is said. Each level includes the ones before it.
enum class LogLevel : int {
  off = 0,    ///< nothing at all
  error = 1,  ///< something that was asked for did not happen and no call returned the reason
  warn = 2,   ///< it works, but worse than it should, and somebody can do something about it
  info = 3,   ///< once in the life of an agent, peer or backend: started, connected, chosen, gone
  debug = 4,  ///< each step of the control path: for finding out why one thing went the way it did
  trace = 5,  ///< each request and frame: slows transfers down, for reproducing a fault
};

/// The level's name as it is written in this header.
HEADRACE_API std::string_view log_level_name(LogLevel level) noexcept;

/// Receives one line: its level, the room that says it ("tcp", "engine") and the text without a line end.
///   threads  called from any thread, several at once, with no lock of ours held; must not throw
using LogSink = std::function<void(LogLevel level, std::string_view room, std::string_view text)>;

/// Sends lines to `sink` instead of stderr; an empty function goes back to stderr.
///   threads  any; a line that another thread is writing at this moment may still reach the old sink
HEADRACE_API void set_log_sink(LogSink sink);

/// Sets what is said, in the syntax of HEADRACE_LOG: one level for all and `room=level` pairs,
/// "warn,tcp=debug,engine=off". What an earlier call set for a room is forgotten. Without a level for all it
/// is `warn`, as it is before any call.
///   errors   invalid_argument (no such level, empty room): nothing is changed
HEADRACE_API Result<void> set_log_level(std::string_view spec);

}  // namespace headrace
