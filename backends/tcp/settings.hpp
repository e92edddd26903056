// SPDX-License-Identifier: Apache-2.0
// The options of the tcp backend: the table that users see, and the values once read.
#pragma once

#include <headrace/plugin/backend.hpp>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::tcp {

struct Settings {
  std::vector<std::string> listen;
  std::vector<std::string> advertise;
  unsigned sockets = 1;
  unsigned threads = 1;
  std::string congestion;  // empty: the system's
  std::uint64_t socket_buffer_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t window_bytes = 0;
  unsigned cores = 1;
  std::uint64_t direct_bytes = 0;
  std::uint64_t gpu_ring_bytes = 0;
  std::uint64_t gpu_chunk_bytes = 0;
  std::chrono::nanoseconds spin{};
  std::chrono::nanoseconds heartbeat_interval{};
  std::chrono::nanoseconds heartbeat_timeout{};
  std::chrono::nanoseconds handshake_timeout{};
  std::chrono::nanoseconds connect_timeout{};
  unsigned max_pending = 0;
  std::string token;
  std::uint64_t reserved_descriptors = 0;  ///< no option of its own: the agent's

  [[nodiscard]] static std::span<const headrace_option_v1> rows();
  ///   errors  invalid_argument (names the option and its value)
  [[nodiscard]] static Result<Settings> read(const plugin::CreateArgs& args);
};

}  // namespace headrace::tcp
