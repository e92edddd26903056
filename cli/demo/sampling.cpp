// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace headrace::cli::demo {
namespace {

/// 64 random bits, the same for the same seed and position: splitmix64's output function (Steele, Lea, Flood,
/// OOPSLA 2014).
std::uint64_t mix(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t z = seed + (position + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// Adds in order: another order gives another rounding, and so another token.
double add_up(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Sets all weights to 0 except the largest, which together hold `top_p` of the total.
void keep_likeliest(std::vector<double>& weights, double top_p) {
  const double enough = top_p * add_up(weights);
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  double running = 0;
  std::size_t kept = 0;
  while (kept < order.size()) {
    running += weights[order[kept++]];
    if (running >= enough) break;
  }
  for (; kept < order.size(); ++kept) weights[order[kept]] = 0;
}

}  // namespace

std::int64_t choose_token(std::span<const float> logits, const Sampling& sampling, std::uint64_t position) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature == 0) return likeliest - logits.begin();
  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    weights[i] =
        std::exp((static_cast<double>(logits[i]) - static_cast<double>(*likeliest)) / sampling.temperature);
  if (sampling.top_p < 1) keep_likeliest(weights, sampling.top_p);
  const double threshold =
      static_cast<double>(mix(sampling.seed, position) >> 11) * 0x1p-53 * add_up(weights);
  double running = 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    running += weights[i];
    if (running > threshold) return static_cast<std::int64_t>(i);
    if (weights[i] > 0) last = static_cast<std::int64_t>(i);
  }
  return last;
}

}  // namespace headrace::cli::demo
