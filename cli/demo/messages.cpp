// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/messages.hpp"

#include "cli/common/errors.hpp"

#include <chrono>
#include <thread>

namespace headrace::cli::demo {

using namespace std::chrono_literals;

std::string decode_name(std::size_t number) { return fmt::format("decode-{}", number); }

Result<void> send(Agent& agent, const std::string& peer, const Message& message,
                  std::chrono::milliseconds patience) {
  const std::string text = message.dump();
  const auto end = std::chrono::steady_clock::now() + patience;
  Result<void> sent = agent.notify(peer, text);
  while (!sent && sent.code() == Code::would_block) {
    if (std::chrono::steady_clock::now() >= end)
      return fail(Code::timed_out, "the message queue of {} is full and does not drain", peer);
    std::this_thread::sleep_for(200us);  // the peer's queue is full
    sent = agent.notify(peer, text);
  }
  return sent;
}

std::optional<Received> read_message(const Notification& notification) {
  Message message = Message::parse(notification.payload, nullptr, false);
  if (!message.is_object()) return std::nullopt;
  return Received{notification.peer, std::move(message)};
}

std::optional<Received> receive(Agent& agent, Timeout timeout) {
  auto notification = agent.wait_notification(timeout);
  return notification ? read_message(*notification) : std::nullopt;
}

Message to_json(const Sampling& sampling) {
  return {{"temperature", sampling.temperature}, {"top_p", sampling.top_p}, {"seed", sampling.seed}};
}

Sampling sampling_of(const Message& message) {
  const Message& said = message.at("sampling");
  return {said.at("temperature").get<double>(), said.at("top_p").get<double>(),
          said.at("seed").get<std::uint64_t>()};
}

Result<ImportReport> await_peer(Agent& agent, const std::string& name, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    auto found = agent.find(name, 1s);
    if (found || std::chrono::steady_clock::now() >= end) return found;
    std::this_thread::sleep_for(20ms);
  }
}

}  // namespace headrace::cli::demo
