// SPDX-License-Identifier: Apache-2.0
// The messages between the processes of the demo: notifications that are JSON objects with a "type" and the
// "id" of a text.
//
//   front -> prefill   generate {prompt, count, sampling, decode}    cancel    gone {worker}
//   prefill -> decode  reserve {attempt, tokens}    start {attempt, length, token, count, sampling, front}
//                      cancel    alive
//   decode -> prefill  reserved {attempt, pages}    finished
//   prefill -> front   prefilled {token, report of what moved}    alive    lost {worker}
//   decode -> front    token {at, token, logits with several ranks}     status {free_pages, pages}
//   front -> both      status; prefill answers it with alive
//   any -> front       ready
//   rank 0 -> others   begin {pages, length}    take {token}    end; of ranks that share the experts: step
//   others -> rank 0   busy {is}, of ranks that share the experts
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
/// The name of a rank: of the decode worker that several processes are, for which rank 0 speaks, or of the
/// decode workers that share the experts.
[[nodiscard]] inline std::string rank_name(int rank) { return decode_name(static_cast<std::size_t>(rank)); }

/// Sends a message. While the peer's queue is full it waits, at most `patience`.
///   errors  peer_lost, with the peer's name; timed_out
Result<void> send(Agent& agent, const std::string& peer, const Message& message,
                  std::chrono::milliseconds patience = std::chrono::hours(24));

struct Received {
  std::string from;
  Message message;
  [[nodiscard]] std::string type() const { return message.value("type", std::string()); }
  [[nodiscard]] std::uint64_t id() const { return message.value("id", std::uint64_t{0}); }
};
/// The next message; nullopt if none arrives within the time, or if the next notification is no message of
/// ours.
std::optional<Received> receive(Agent& agent, Timeout timeout);
/// The message of a notification; nullopt if it is none of ours.
std::optional<Received> read_message(const Notification& notification);

[[nodiscard]] Message to_json(const Sampling& sampling);
[[nodiscard]] Sampling sampling_of(const Message& message);

/// Looks for a peer in the store until it is found.
///   errors  timed_out
Result<ImportReport> await_peer(Agent& agent, const std::string& name, std::chrono::milliseconds patience);

}  // namespace headrace::cli::demo
