// SPDX-License-Identifier: Apache-2.0
#include "collectives/algorithms.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace headrace::collectives {
namespace {

/// Calls `each` for all other ranks. Each rank begins with the one after it, so that not all write to the
/// same.
template <class Each>
void for_others(const Exchange& exchange, const Each& each) {
  for (int step = 1; step < exchange.size(); ++step) each((exchange.rank() + step) % exchange.size());
}

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

void copy_own(Part to, ConstPart from) {
  if (to.data != from.data && from.bytes != 0) std::memmove(to.data, from.data, from.bytes);
}

/// The part of each rank of `count` elements: equal parts, the last ones may be smaller or empty.
class Parts {
 public:
  Parts(std::size_t count, int ranks, std::size_t width) : count_(count) {
    const std::size_t grain = cache_line / std::min(width, cache_line);
    const std::size_t share = (count + index(ranks) - 1) / index(ranks);
    share_ = BoxLayout::round_up(share, grain);
  }
  [[nodiscard]] std::size_t first(int rank) const { return std::min(count_, index(rank) * share_); }
  [[nodiscard]] std::size_t count(int rank) const { return first(rank + 1) - first(rank); }

 private:
  std::size_t count_, share_;
};

Result<void> all_reduce_block(Exchange& exchange, const std::byte* input, std::byte* output,
                              std::size_t count, const Reduction& reduction) {
  const std::size_t width = reduction.width();
  const Parts parts(count, exchange.size(), width);
  const int me = exchange.rank();
  const std::size_t mine = parts.first(me) * width;
  for_others(exchange, [&](int rank) {
    exchange.send(rank, input + parts.first(rank) * width, parts.count(rank) * width);
  });
  exchange.reduce(input + mine, output + mine, parts.count(me), reduction);
  if (auto reduced = exchange.run(); !reduced) return reduced;
  for_others(exchange, [&](int rank) {
    exchange.send(rank, output + mine, parts.count(me) * width);
    exchange.receive(rank, output + parts.first(rank) * width, parts.count(rank) * width);
  });
  return exchange.run();
}

}  // namespace

Result<void> all_reduce_one_shot(Exchange& exchange, const void* input, void* output, std::size_t count,
                                 const Reduction& reduction) {
  for_others(exchange, [&](int rank) { exchange.send(rank, input, count * reduction.width()); });
  exchange.reduce(input, output, count, reduction);
  return exchange.run();
}

Result<void> all_reduce_two_shot(Exchange& exchange, const void* input, void* output, std::size_t count,
                                 const Reduction& reduction, std::size_t block_bytes) {
  const std::size_t block = block_bytes / reduction.width() * index(exchange.size());
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t at = first * reduction.width();
    auto done =
        all_reduce_block(exchange, static_cast<const std::byte*>(input) + at,
                         static_cast<std::byte*>(output) + at, std::min(block, count - first), reduction);
    if (!done) return done;
  }
  return {};
}

Result<void> all_gather(Exchange& exchange, std::span<const Part> outputs, ConstPart input) {
  for_others(exchange, [&](int rank) {
    exchange.send(rank, input.data, input.bytes);
    exchange.receive(rank, outputs[index(rank)].data, outputs[index(rank)].bytes);
  });
  copy_own(outputs[index(exchange.rank())], input);
  return exchange.run();
}

Result<void> reduce_scatter(Exchange& exchange, Part output, std::span<const ConstPart> inputs,
                            const Reduction& reduction) {
  for_others(exchange,
             [&](int rank) { exchange.send(rank, inputs[index(rank)].data, inputs[index(rank)].bytes); });
  exchange.reduce(inputs[index(exchange.rank())].data, output.data, output.bytes / reduction.width(),
                  reduction);
  return exchange.run();
}

Result<void> all_to_all(Exchange& exchange, std::span<const Part> outputs,
                        std::span<const ConstPart> inputs) {
  for_others(exchange, [&](int rank) {
    exchange.send(rank, inputs[index(rank)].data, inputs[index(rank)].bytes);
    exchange.receive(rank, outputs[index(rank)].data, outputs[index(rank)].bytes);
  });
  copy_own(outputs[index(exchange.rank())], inputs[index(exchange.rank())]);
  return exchange.run();
}

Result<void> broadcast(Exchange& exchange, Part inout, int root) {
  if (exchange.rank() == root)
    for_others(exchange, [&](int rank) { exchange.send(rank, inout.data, inout.bytes); });
  else
    exchange.receive(root, inout.data, inout.bytes);
  return exchange.run();
}

Result<void> reduce(Exchange& exchange, Part inout, int root, const Reduction& reduction) {
  if (exchange.rank() == root)
    exchange.reduce(inout.data, inout.data, inout.bytes / reduction.width(), reduction);
  else
    exchange.send(root, inout.data, inout.bytes);
  return exchange.run();
}

Result<void> gather(Exchange& exchange, std::span<const Part> outputs, ConstPart input, int root) {
  if (exchange.rank() != root) {
    exchange.send(root, input.data, input.bytes);
    return exchange.run();
  }
  for_others(exchange, [&](int rank) {
    exchange.receive(rank, outputs[index(rank)].data, outputs[index(rank)].bytes);
  });
  copy_own(outputs[index(root)], input);
  return exchange.run();
}

Result<void> scatter(Exchange& exchange, Part output, std::span<const ConstPart> inputs, int root) {
  if (exchange.rank() != root) {
    exchange.receive(root, output.data, output.bytes);
    return exchange.run();
  }
  for_others(exchange,
             [&](int rank) { exchange.send(rank, inputs[index(rank)].data, inputs[index(rank)].bytes); });
  copy_own(output, inputs[index(root)]);
  return exchange.run();
}

Result<void> barrier(Exchange& exchange) {
  const std::byte token{1};
  std::vector<std::byte> tokens(index(exchange.size()));
  for_others(exchange, [&](int rank) {
    exchange.send(rank, &token, 1);
    exchange.receive(rank, &tokens[index(rank)], 1);
  });
  return exchange.run();
}

Result<void> monitored_barrier(Exchange& exchange) {
  const std::byte here{1};
  std::vector<std::byte> tokens(index(exchange.size()));
  const auto meet = [&](int rank) {
    exchange.send(rank, &here, 1);
    exchange.receive(rank, &tokens[index(rank)], 1);
  };
  if (exchange.rank() == 0) {
    for_others(exchange, meet);
    HEADRACE_TRY_VOID(exchange.run());
    for_others(exchange, [&](int rank) { exchange.send(rank, &here, 1); });
    return exchange.run();
  }
  meet(0);
  HEADRACE_TRY_VOID(exchange.run());
  exchange.restart_limit(std::chrono::seconds(1));
  exchange.receive(0, tokens.data(), 1);
  return exchange.run();
}

}  // namespace headrace::collectives
