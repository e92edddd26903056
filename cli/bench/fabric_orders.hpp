// SPDX-License-Identifier: Apache-2.0
// What client and server of `headrace bench fabric` tell each other, and how long they wait.
#pragma once

#include "cli/bench/fabric_side.hpp"

#include <sys/resource.h>

#include <chrono>
#include <string>

namespace headrace::cli {

/// For the end of a post.
inline constexpr auto fabric_patience = std::chrono::seconds(60);

[[nodiscard]] inline Json binary(const std::string& bytes) {
  return Json::binary({bytes.begin(), bytes.end()});
}
[[nodiscard]] inline std::string bytes_of(const Json& json) {
  const auto& bytes = json.get_binary();
  return {bytes.begin(), bytes.end()};
}

/// What a side says of itself.
[[nodiscard]] inline Json introduction(FabricSide& side) {
  Json groups = Json::array();
  for (const FabricGroup& group : side.groups()) groups.push_back(group_text(group));
  return {{"groups", std::move(groups)},
          {"address", binary(side.fabric().address().bytes())},
          {"spins", side.spins()}};
}

/// CPU time of this process, all threads.
[[nodiscard]] inline double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace headrace::cli
