// SPDX-License-Identifier: Apache-2.0
// Log output of Headrace: its level and its sink.
#pragma once

#include <headrace/result.hpp>

#include <functional>
#include <string_view>

namespace headrace {

/// How much is logged. Each level includes the ones before it.
enum class LogLevel : int {
  off = 0,    ///< nothing
  error = 1,  ///< a request or task failed, and no call returned the reason
  warn = 2,   ///< it works, but worse than it should, and an operator can improve it
  info = 3,   ///< once in the life of an agent, peer or backend: started, connected, chosen, gone
  debug = 4,  ///< each step of the control path: to find out why it took a decision
  trace = 5,  ///< each request and frame: slows transfers; to reproduce a fault
};

/// The level's name as it is written in this header.
HEADRACE_API std::string_view log_level_name(LogLevel level) noexcept;

/// Receives one line: its level, the room that logs it ("tcp", "engine"), and the text without a line end.
///   threads  called from any thread, several at once, with no lock of Headrace held; must not throw
using LogSink = std::function<void(LogLevel level, std::string_view room, std::string_view text)>;

/// Sends lines to `sink` instead of stderr. An empty function restores stderr.
///   threads  any; a line that another thread writes at this moment may still reach the old sink
HEADRACE_API void set_log_sink(LogSink sink);

/// Sets the levels, in the syntax of HEADRACE_LOG: one level for all rooms and `room=level` pairs, as in
/// "warn,tcp=debug,engine=off". Levels of rooms from an earlier call are dropped. Without a level for all it
/// is `warn`, which is also the level before any call.
///   errors   invalid_argument (no such level, empty room): nothing is changed
HEADRACE_API Result<void> set_log_level(std::string_view spec);

}  // namespace headrace
