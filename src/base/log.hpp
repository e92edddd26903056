// SPDX-License-Identifier: Apache-2.0
// Logging: a Logger holds the levels and the sink, a Log writes the lines of one room.
#pragma once

#include <headrace/log.hpp>

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace spdlog {
class logger;
}

namespace headrace {

/// Owns the levels of all rooms and the sink. Thread-safe. Must outlive the Logs that use it.
class Logger {
 public:
  /// Level warn, to stderr.
  Logger();
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// The logger that the public set_log_* functions change. It is the only global of this room: a
  /// function-local static that is never destroyed, because threads may log until the process ends. Objects
  /// take a Logger from their owner; only those without an owner (the agent, the command) call this. A
  /// plugin's copy of this room has its own logger; the plugin host points its sink at the host's.
  [[nodiscard]] static Logger& process_default();

  /// See set_log_level in <headrace/log.hpp>.
  Result<void> set_level(std::string_view spec);
  /// See set_log_sink in <headrace/log.hpp>.
  void set_sink(LogSink sink);

  /// The level of a room. The address stays valid as long as the logger, and later changes are seen through
  /// it.
  [[nodiscard]] const std::atomic<LogLevel>& level_of(std::string_view room);

  /// Writes one line without checking the level: the Log has checked it, or a plugin's host.
  void write(LogLevel level, std::string_view room, std::string_view text) noexcept;

 private:
  LogLevel configured(std::string_view room) const;

  std::mutex mutex_;
  LogLevel general_ = LogLevel::warn;
  std::map<std::string, LogLevel, std::less<>> chosen_;  // rooms that the spec names
  std::map<std::string, std::unique_ptr<std::atomic<LogLevel>>, std::less<>> rooms_;  // rooms that have a Log
  std::shared_ptr<const LogSink> sink_;                                               // none: stderr_
  const std::unique_ptr<spdlog::logger> stderr_;
};

/// Writes the lines of one room. Copyable. If its level is off, a call costs one relaxed load and formats
/// nothing.
class Log {
 public:
  Log(Logger& logger, std::string_view room)
      : logger_(&logger), room_(room), level_(&logger.level_of(room)) {}

  [[nodiscard]] bool enabled(LogLevel level) const noexcept {
    return level <= level_->load(std::memory_order_relaxed);
  }

  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    say(LogLevel::error, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) const {
    say(LogLevel::warn, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    say(LogLevel::info, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    say(LogLevel::debug, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void trace(fmt::format_string<Args...> text, Args&&... args) const {
    say(LogLevel::trace, text, std::forward<Args>(args)...);
  }

 private:
  template <class... Args>
  void say(LogLevel level, fmt::format_string<Args...> text, Args&&... args) const {
    if (enabled(level)) logger_->write(level, room_, fmt::format(text, std::forward<Args>(args)...));
  }

  Logger* logger_;
  std::string room_;
  const std::atomic<LogLevel>* level_;
};

}  // namespace headrace
