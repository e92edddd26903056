// SPDX-License-Identifier: Apache-2.0
// What the ranks of a communicator tell each other when they register the memory of a window.
#pragma once

#include "base/errors.hpp"

#include <headrace/tensor.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::collectives {

/// How a step went on one rank.
[[nodiscard]] std::string encode_outcome(const Result<void>& outcome);
/// The outcome, and the bytes that follow it.
struct Outcome {
  Result<void> result;
  std::string_view rest;
};
///   errors  corrupt
[[nodiscard]] Result<Outcome> decode_outcome(std::string_view bytes);

struct WindowCard {
  std::uint64_t window = 0;  ///< its number in the communicator
  std::uint64_t mailbox = 0;
  std::uint32_t elements = 0, signals = 0;  ///< regions; 0: no elements
  std::uint64_t count = 0, address = 0;     ///< of the elements
  DType dtype = DType::float32;
  bool allocated = false;  ///< ranks of the same host can map the elements
  std::string agent, metadata;

  [[nodiscard]] std::string encode() const;
  ///   errors  corrupt
  [[nodiscard]] static Result<WindowCard> decode(std::string_view bytes);
};

}  // namespace headrace::collectives
