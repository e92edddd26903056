// SPDX-License-Identifier: Apache-2.0
// What ranks tell one another before weights move. Each message is a notification of an agent, behind a
// prefix (weights_talk.hpp).
#pragma once

#include "moe/routing.hpp"

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::moe {

/// Where the weights of a rank's first place lie; those of the next places follow side by side.
struct WeightsLocation {
  std::uint32_t region = 0;  ///< of the rank's agent; 0: the rank has no places
  std::uint64_t offset_bytes = 0;
  friend bool operator==(const WeightsLocation&, const WeightsLocation&) = default;
};

/// Answers the first message of a rank, which is only a number of 64 bits: where the answers go.
struct WeightsCard {
  std::uint64_t life = 0;                  ///< where the messages to this rank go from now on
  std::uint64_t table = 0;                 ///< hash of the experts that places keep
  std::string tensors;                     ///< in words, the same on all ranks
  std::vector<WeightsLocation> locations;  ///< of each tensor
  friend bool operator==(const WeightsCard&, const WeightsCard&) = default;
};

/// Begins a call.
struct WeightsCounts {
  std::uint64_t call = 0;             ///< from 1
  Mask active = 0;                    ///< as this rank knows it
  std::vector<std::uint32_t> counts;  ///< of the tokens of the rank's group, for each expert
  std::vector<std::uint32_t> kept;    ///< experts that the rank's places keep; no_rank: the place is free
  std::vector<std::uint32_t> held;    ///< experts that the rank's places hold now; no_rank: none
  friend bool operator==(const WeightsCounts&, const WeightsCounts&) = default;
};

/// Ends a call.
struct WeightsEnd {
  std::uint64_t call = 0;
  std::uint64_t plan = 0;  ///< hash of the plan; 0: the call has failed here
  Code code = Code::ok;    ///< why
  std::string text;        ///< why
  friend bool operator==(const WeightsEnd&, const WeightsEnd&) = default;
};

/// The longest text: that of so many tensors fits.
inline constexpr std::uint16_t most_weights_text = 16384;
inline constexpr std::size_t most_weights_tensors = 64;

[[nodiscard]] std::string encode(const WeightsCard& card);
[[nodiscard]] std::string encode(const WeightsCounts& counts);
[[nodiscard]] std::string encode(const WeightsEnd& end);

/// The kind of a message, by its first byte.
enum class WeightsKind : std::uint8_t { card = 1, counts = 2, end = 3 };

/// errors: corrupt (at which byte; another kind; bytes behind the end)
[[nodiscard]] Result<WeightsKind> weights_kind(std::string_view bytes);
[[nodiscard]] Result<WeightsCard> decode_weights_card(std::string_view bytes);
[[nodiscard]] Result<WeightsCounts> decode_weights_counts(std::string_view bytes);
[[nodiscard]] Result<WeightsEnd> decode_weights_end(std::string_view bytes);

}  // namespace headrace::moe
