// SPDX-License-Identifier: Apache-2.0
// What the two ends of a link tell each other in messages of a provider. docs/decisions/0016, sections 3, 4.
#pragma once

#include "base/errors.hpp"
#include "rail/mark.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::rail {

/// Count `amount` for (scope, immediate) when all marks of the number have come.
struct Announcement {
  std::uint64_t number = 0;
  std::uint32_t chunks = 0;  ///< 0: all bytes are there, or there are none
  std::uint32_t scope = 0;
  std::uint32_t immediate = 0;
  std::uint32_t amount = 0;  ///< 0: the request failed, and only its number is used up
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

/// All numbers below are counted; those from there on whose bit is set are, too.
struct CountedNumbers {
  std::uint64_t below = 1;
  std::array<std::uint64_t, number_window / 64> bits{};

  [[nodiscard]] bool has(std::uint64_t number) const {
    if (number < below) return true;
    const std::uint64_t at = number - below;
    return at < number_window && (bits[at / 64] >> (at % 64) & 1) != 0;
  }
  friend bool operator==(const CountedNumbers&, const CountedNumbers&) = default;
};

struct CountedBelow {
  std::uint64_t below = 0;
  friend bool operator==(const CountedBelow&, const CountedBelow&) = default;
};

/// The sender has dropped its peer on this rail: it places and posts nothing there any more.
struct RailDown {
  std::uint32_t rail = 0;
  std::uint32_t epoch = 0;
  std::uint64_t next = 0;  ///< numbers of its sender from here on have never used the rail
  CountedNumbers counted;  ///< of the receiver's numbers
  friend bool operator==(const RailDown&, const RailDown&) = default;
};

/// A message of the sender's user waits for a receive. A short one travels along; a longer one is read.
struct Offer {
  std::uint64_t id = 0;  ///< of the link and direction: from 1 on, without gaps
  std::uint64_t bytes = 0;
  std::string content = {};            ///< the message, or
  std::vector<std::string> keys = {};  ///< of the memory that holds it alone, by the sender's NIC
  friend bool operator==(const Offer&, const Offer&) = default;
};

/// The sender wants the memory of that message back. `Done` answers.
struct Withdraw {
  std::uint64_t id = 0;
  friend bool operator==(const Withdraw&, const Withdraw&) = default;
};

/// The receiver does not touch the memory of that message any more.
struct Done {
  std::uint64_t id = 0;
  Code code = Code::ok;    ///< or invalid_argument (longer than the receive), canceled, backend_failed
  std::uint64_t room = 0;  ///< of the receive
  friend bool operator==(const Done&, const Done&) = default;
};

/// Its sender lives, and so does the rail.
struct Beat {
  friend bool operator==(const Beat&, const Beat&) = default;
};

using LinkMessage = std::variant<Announcement, CountedBelow, RailDown, Offer, Withdraw, Done, Beat>;

inline constexpr std::size_t max_link_message_bytes = 2048;
inline constexpr std::size_t max_inline_bytes = 1024;  ///< of a message that travels with its offer
inline constexpr std::uint32_t max_rails = 64;
inline constexpr std::uint16_t max_bytes_of_nic = 256;  ///< of an address or a key

[[nodiscard]] std::string encode(const LinkMessage& message);
/// Bytes of a peer.
///   errors  corrupt
[[nodiscard]] Result<LinkMessage> read_link_message(std::string_view bytes);

/// What a provider carries to the far side when a rail connects.
struct RailHello {
  std::uint64_t engine = 0;  ///< drawn at its start by the engine that connects
  std::uint64_t link = 0;    ///< drawn by it for each link
  std::uint32_t rail = 0;
  std::uint32_t rails = 0;
  std::uint32_t nics = 0;   ///< of the engine that connects
  std::uint32_t epoch = 0;  ///< from 1: how often this rail was connected
  std::uint32_t nic = 0;    ///< of the engine that connects, by its address
  friend bool operator==(const RailHello&, const RailHello&) = default;
};

[[nodiscard]] std::string encode(const RailHello& hello);
///   errors  corrupt, not_supported (another version)
[[nodiscard]] Result<RailHello> read_rail_hello(std::string_view bytes);

}  // namespace headrace::rail
