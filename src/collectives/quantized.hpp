// SPDX-License-Identifier: Apache-2.0
// reduce_scatter of float32 whose bytes travel as bfloat16, rounded stochastically: up or down by chance, so
// that the mean of the error is 0.
#pragma once

#include "collectives/exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::collectives {

/// Rounds to one of the two neighbours in bfloat16, to the nearer one more often; a bfloat16 stays as it is.
/// The same numbers for the same `stream` and `first`, the number of from[0] in the stream.
void round_stochastically(std::span<const float> from, std::uint16_t* to, std::uint64_t stream,
                          std::uint64_t first);

/// `input`: as many elements for each rank as `output` has, in a row. A rank's own part is not rounded. Sums
/// are float32, in the order of ranks.
[[nodiscard]] Result<void> reduce_scatter_quantized(Exchange& exchange, std::span<const float> input,
                                                    std::span<float> output, bool average, std::uint64_t seed,
                                                    std::size_t block_bytes);

}  // namespace headrace::collectives
