// SPDX-License-Identifier: Apache-2.0
// Chooses a token from logits. python/headrace/demo_model/generate.py specifies every step, so that both give
// the same text.
#pragma once

#include <cstdint>
#include <span>

namespace headrace::cli::demo {

struct Sampling {
  double temperature = 0.8;  ///< 0: the likeliest token
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

/// Chooses the token at `position`, which is the number of tokens before it.
[[nodiscard]] std::int64_t choose_token(std::span<const float> logits, const Sampling& sampling,
                                        std::uint64_t position);

}  // namespace headrace::cli::demo
