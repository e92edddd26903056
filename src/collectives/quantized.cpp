// SPDX-License-Identifier: Apache-2.0
#include "collectives/quantized.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace headrace::collectives {
namespace {

/// The finalizer of splitmix64: each bit of the answer depends on all bits of `x`.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint16_t rounded(float value, std::uint32_t random16) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  constexpr std::uint32_t exponent = 0x7f800000, quiet = 0x00400000;
  const bool is_finite = (bits & exponent) != exponent;
  if (is_finite) return static_cast<std::uint16_t>((bits + random16) >> 16);
  const bool is_nan = (bits & ~exponent & 0x7fffffff) != 0;
  return static_cast<std::uint16_t>((is_nan ? bits | quiet : bits) >> 16);
}

float widened(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

/// The random numbers of what one rank sends another.
std::uint64_t stream_of(std::uint64_t seed, int from, int to) {
  return mix(mix(seed) ^ (static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to)));
}

/// The elements of one block that every rank sends every other one.
class Block {
 public:
  Block(Exchange& exchange, std::size_t most)
      : exchange_(exchange), most_(most), sent_(most * ranks()), received_(most * ranks()) {}

  Result<void> move(std::span<const float> input, std::size_t part, std::size_t first, std::size_t count,
                    std::uint64_t seed) {
    const int me = exchange_.rank();
    for (int step = 1; step < exchange_.size(); ++step) {
      const int other = (me + step) % exchange_.size();
      const std::size_t at = static_cast<std::size_t>(other);
      round_stochastically(input.subspan(at * part + first, count), &sent_[at * most_],
                           stream_of(seed, me, other), first);
      exchange_.send(other, &sent_[at * most_], count * sizeof(std::uint16_t));
      exchange_.receive(other, &received_[at * most_], count * sizeof(std::uint16_t));
    }
    return exchange_.run();
  }
  /// `own`: this rank's part, which may be `output`.
  void sum(std::span<const float> own, std::span<float> output) const {
    for (std::size_t i = 0; i < output.size(); ++i) {
      float total = 0;
      for (std::size_t rank = 0; rank < ranks(); ++rank)
        total += rank == static_cast<std::size_t>(exchange_.rank()) ? own[i]
                                                                    : widened(received_[rank * most_ + i]);
      output[i] = total;
    }
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(exchange_.size()); }

  Exchange& exchange_;
  const std::size_t most_;
  std::vector<std::uint16_t> sent_, received_;
};

}  // namespace

void round_stochastically(std::span<const float> from, std::uint16_t* to, std::uint64_t stream,
                          std::uint64_t first) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint64_t random = mix(stream + first + i);
    to[i] = rounded(from[i], static_cast<std::uint32_t>(random & 0xffff));
  }
}

Result<void> reduce_scatter_quantized(Exchange& exchange, std::span<const float> input,
                                      std::span<float> output, bool average, std::uint64_t seed,
                                      std::size_t block_bytes) {
  const std::size_t part = output.size();
  // The bytes of a block are those of all ranks.
  constexpr std::size_t least = 1024;
  const std::size_t share = block_bytes / sizeof(float) / static_cast<std::size_t>(exchange.size());
  const std::size_t most = std::min(part, std::max(share, least));
  Block block(exchange, most);
  for (std::size_t first = 0; first < part; first += most) {
    const std::size_t count = std::min(most, part - first);
    HEADRACE_TRY_VOID(block.move(input, part, first, count, seed));
    const std::size_t own = static_cast<std::size_t>(exchange.rank()) * part + first;
    block.sum(input.subspan(own, count), output.subspan(first, count));
  }
  if (average)
    for (float& value : output) value /= static_cast<float>(exchange.size());
  return {};
}

}  // namespace headrace::collectives
