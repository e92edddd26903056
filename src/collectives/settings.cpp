// SPDX-License-Identifier: Apache-2.0
#include "collectives/settings.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "collectives/box.hpp"

#include <headrace/comm.hpp>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::collectives {
namespace {

/// A size that lanes are cut by.
Result<std::size_t> lines_of(const Options& hints, const char* name) {
  HEADRACE_TRY(bytes, hints.bytes(name));
  constexpr std::uint64_t least = 4096, most = std::uint64_t{1} << 30;
  if (bytes < least || bytes > most || bytes % cache_line != 0) {
    return make_error(Code::invalid_argument,
                      "hint {} is {}: it must be a multiple of {} between {} and {} bytes", name, bytes,
                      cache_line, least, most);
  }
  return static_cast<std::size_t>(bytes);
}

/// The backends that HEADRACE_BACKENDS leaves to communicators; nothing if it names none that connects ranks.
std::optional<std::string> left_of_backends() {
  const auto opened = environment_variable("HEADRACE_BACKENDS").value_or("");
  std::string left;
  for (const std::string_view name : split_list(opened))
    if (name == "shm" || name == "tcp") left.append(left.empty() ? "" : ",").append(name);
  static std::atomic<bool> told{false};
  if (left.empty() && !opened.empty() && !told.exchange(true))
    Log(Logger::process_default(), "collectives")
        .warn("HEADRACE_BACKENDS={} names neither shm nor tcp: communicators open both", opened);
  return left.empty() ? std::nullopt : std::optional(left);
}

std::optional<std::string> variable_of_hint(const std::string& name) {
  if (name == "HEADRACE_BACKENDS") return left_of_backends();
  return name == "HEADRACE_CHECK" ? environment_variable(name) : std::nullopt;
}

}  // namespace

Result<Settings> Settings::read(const std::map<std::string, std::string>& given) {
  OptionSources sources;
  sources.given = given;
  sources.environment = variable_of_hint;
  sources.config_file = "";
  auto resolved = Options::resolve(hint_rows, sources);
  if (!resolved) return std::move(resolved).error().within("hints of the communicator");
  const Options& hints = *resolved;
  Settings settings;
  HEADRACE_TRY(backends, hints.list("backends"));
  settings.backends = std::move(backends);
  const std::pair<const char*, std::size_t*> sizes[] = {{"lane_bytes", &settings.lane_bytes},
                                                        {"message_lane_bytes", &settings.message_lane_bytes},
                                                        {"chunk_bytes", &settings.tuning.chunk_bytes},
                                                        {"block_bytes", &settings.tuning.block_bytes}};
  for (const auto& [name, to] : sizes) {
    HEADRACE_TRY(bytes, lines_of(hints, name));
    *to = bytes;
  }
  // Two parts fit into a lane, so that one is written while the other is read.
  const auto half = [](std::size_t lane) { return lane / 2 / cache_line * cache_line; };
  settings.message_chunk_bytes = std::min(settings.tuning.chunk_bytes, half(settings.message_lane_bytes));
  settings.tuning.chunk_bytes = std::min(settings.tuning.chunk_bytes, half(settings.lane_bytes));
  HEADRACE_TRY(one_shot, hints.bytes("one_shot_bytes"));
  settings.tuning.one_shot_bytes = one_shot;
  HEADRACE_TRY(unexpected, hints.bytes("unexpected_bytes"));
  settings.unexpected_bytes = unexpected;
  HEADRACE_TRY(check, hints.boolean("check"));
  settings.check = check;
  HEADRACE_TRY(lazy, hints.boolean("lazy"));
  settings.lazy = lazy;
  return settings;
}

}  // namespace headrace::collectives

namespace headrace {

std::vector<CommHint> list_comm_hints() {
  std::vector<CommHint> hints;
  for (const OptionRow& row : collectives::hint_rows)
    hints.push_back({row.name, row.default_value, row.unit, row.sentence});
  return hints;
}

}  // namespace headrace
