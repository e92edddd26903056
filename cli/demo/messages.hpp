// SPDX-License-Identifier: Apache-2.0
// What the processes of the demo say to one another: notifications that are JSON objects with a "type" and
// the "id" of a text.
//
//   front -> prefill   generate {prompt, count, sampling, decode}    cancel    gone {worker}
//   prefill -> decode  reserve {attempt, tokens}    start {attempt, length, token, count, sampling, front}
//                      cancel    alive
//   decode -> prefill  reserved {attempt, pages}    finished
//   prefill -> front   prefilled {token, and what moved}    alive    lost {worker}
//   decode -> front    token {at, token}     status {free_pages, pages}
//   front -> both      status, which prefill answers with alive
//   any -> front       ready
#pragma once

#include <headrace/agent.hpp>

#include "cli/demo/sampling.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::cli::demo {

using Message = nlohmann::json;

inline constexpr const char* front_name = "front";
inline constexpr const char* prefill_name = "prefill";
[[nodiscard]] std::string decode_name(std::size_t number);

/// Hands it over; waits while the peer's queue is full, at most so long.
///   errors  peer_lost, with the peer's name; timed_out
Result<void> send(Agent& agent, const std::string& peer, const Message& message,
                  std::chrono::milliseconds patience = std::chrono::hours(24));

struct Received {
  std::string from;
  Message message;
  [[nodiscard]] std::string type() const { return message.value("type", std::string()); }
  [[nodiscard]] std::uint64_t id() const { return message.value("id", std::uint64_t{0}); }
};
/// The next one, or nothing within that time. What is no message of ours is passed over.
std::optional<Received> receive(Agent& agent, Timeout timeout);
/// The same of a notification at hand.
std::optional<Received> read_message(const Notification& notification);

[[nodiscard]] Message to_json(const Sampling& sampling);
[[nodiscard]] Sampling sampling_of(const Message& message);

/// Looks for a peer in the store until it is there.
///   errors  timed_out
Result<ImportReport> await_peer(Agent& agent, const std::string& name, std::chrono::milliseconds patience);

}  // namespace headrace::cli::demo
