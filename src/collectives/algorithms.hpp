// SPDX-License-Identifier: Apache-2.0
// The algorithms of collectives, as phases of an Exchange. Arguments have been checked.
#pragma once

#include "collectives/exchange.hpp"

#include <cstddef>
#include <span>

namespace headrace::collectives {

/// Bytes of one rank.
struct Part {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};
struct ConstPart {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// One phase: every rank sends all its elements to all others and reduces all inputs itself. The fewest
/// waits; each rank reduces everything.
[[nodiscard]] Result<void> all_reduce_one_shot(Exchange& exchange, const void* input, void* output,
                                               std::size_t count, const Reduction& reduction);
/// Two phases a block: each rank reduces a part of the block, then sends it to all. The fewest bytes; a block
/// is small enough to stay in the cache between the phases.
[[nodiscard]] Result<void> all_reduce_two_shot(Exchange& exchange, const void* input, void* output,
                                               std::size_t count, const Reduction& reduction,
                                               std::size_t block_bytes);
/// Every rank sends its part to all others: each byte is copied once for each receiver, which no other way
/// does with fewer copies within a host.
[[nodiscard]] Result<void> all_gather(Exchange& exchange, std::span<const Part> outputs, ConstPart input);
/// Every rank sends each other rank its part; the receiver reduces the parts of all as they arrive.
[[nodiscard]] Result<void> reduce_scatter(Exchange& exchange, Part output, std::span<const ConstPart> inputs,
                                          const Reduction& reduction);
[[nodiscard]] Result<void> all_to_all(Exchange& exchange, std::span<const Part> outputs,
                                      std::span<const ConstPart> inputs);
/// The root sends to each rank. A tree would copy as often, one copy after another.
[[nodiscard]] Result<void> broadcast(Exchange& exchange, Part inout, int root);
/// Every rank sends to the root, which reduces all inputs in one pass over its own.
[[nodiscard]] Result<void> reduce(Exchange& exchange, Part inout, int root, const Reduction& reduction);
[[nodiscard]] Result<void> gather(Exchange& exchange, std::span<const Part> outputs, ConstPart input,
                                  int root);
[[nodiscard]] Result<void> scatter(Exchange& exchange, Part output, std::span<const ConstPart> inputs,
                                   int root);
/// A byte from each rank to each: one wait, where a tree has several.
[[nodiscard]] Result<void> barrier(Exchange& exchange);
/// Rank 0 hears of all before it lets them go on. The others know by its first byte that it is there; then
/// they wait for it longer than it waits for the last of them.
[[nodiscard]] Result<void> monitored_barrier(Exchange& exchange);

}  // namespace headrace::collectives
