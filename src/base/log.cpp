// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include "base/errors.hpp"
#include "base/text.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <optional>

namespace headrace {
namespace {

constexpr std::array levels = {LogLevel::off,  LogLevel::error, LogLevel::warn,
                               LogLevel::info, LogLevel::debug, LogLevel::trace};

std::optional<LogLevel> level_named(std::string_view name) {
  for (const LogLevel level : levels) {
    if (log_level_name(level) == name) return level;
  }
  return std::nullopt;
}

std::unique_ptr<spdlog::logger> stderr_logger() {
  // Not registered with spdlog: the registry would be another global.
  auto logger =
      std::make_unique<spdlog::logger>("headrace", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::trace);  // the room's level has been checked before
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%f %v");
  return logger;
}

}  // namespace

std::string_view log_level_name(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::off:
      return "off";
    case LogLevel::error:
      return "error";
    case LogLevel::warn:
      return "warn";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
    case LogLevel::trace:
      return "trace";
  }
  return "unknown_level";
}

Logger::Logger() : stderr_(stderr_logger()) {}
Logger::~Logger() = default;

Logger& Logger::process_default() {
  static Logger& logger = *new Logger;
  return logger;
}

Result<void> Logger::set_level(std::string_view spec) {
  LogLevel general = LogLevel::warn;
  std::map<std::string, LogLevel, std::less<>> chosen;
  for (const std::string_view part : split_list(spec)) {
    const std::size_t equals = part.find('=');
    const bool for_room = equals != std::string_view::npos;
    const std::string_view room = for_room ? trim(part.substr(0, equals)) : std::string_view();
    const std::string_view name = for_room ? trim(part.substr(equals + 1)) : part;
    const std::optional<LogLevel> level = level_named(name);
    if (!level) {
      return make_error(Code::invalid_argument,
                        "log level \"{}\" in \"{}\" is not one of off, error, warn, info, debug, trace", name,
                        spec);
    }
    if (for_room && room.empty()) {
      return make_error(Code::invalid_argument, "\"{}\" in \"{}\" names no room: write room=level", part,
                        spec);
    }
    if (for_room) {
      chosen[std::string(room)] = *level;
    } else {
      general = *level;
    }
  }
  const std::scoped_lock lock(mutex_);
  general_ = general;
  chosen_ = std::move(chosen);
  for (const auto& [room, level] : rooms_) level->store(configured(room), std::memory_order_relaxed);
  return {};
}

void Logger::set_sink(LogSink sink) {
  auto next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  const std::scoped_lock lock(mutex_);
  sink_.swap(next);
}

const std::atomic<LogLevel>& Logger::level_of(std::string_view room) {
  const std::scoped_lock lock(mutex_);
  auto found = rooms_.find(room);
  if (found == rooms_.end()) {
    found = rooms_.emplace(room, std::make_unique<std::atomic<LogLevel>>(configured(room))).first;
  }
  return *found->second;
}

LogLevel Logger::configured(std::string_view room) const {
  const auto found = chosen_.find(room);
  return found == chosen_.end() ? general_ : found->second;
}

void Logger::write(LogLevel level, std::string_view room, std::string_view text) noexcept {
  try {
    std::shared_ptr<const LogSink> sink;
    {
      const std::scoped_lock lock(mutex_);
      sink = sink_;
    }
    // Called without our lock: a sink that waits for the Python interpreter would deadlock with a thread that
    // holds the interpreter and logs.
    if (sink) {
      (*sink)(level, room, text);
    } else {
      stderr_->log(spdlog::level::critical, "{:<5} {}: {}", log_level_name(level), room, text);
    }
  } catch (...) {
    // A line that cannot be written is lost; the transfer continues.
  }
}

}  // namespace headrace
