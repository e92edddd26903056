// SPDX-License-Identifier: Apache-2.0
// How the tokens of a benchmark choose their experts.
#pragma once

#include "cli/common/errors.hpp"

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

using BenchRandom = std::mt19937_64;

enum class ExpertChoice : std::uint8_t {
  uniform,  ///< all alike
  zipf,     ///< the n-th expert with a chance of 1 / n, as by Zipf's law
  k_hot,    ///< nine of ten entries go to an eighth of the experts
  masked,   ///< as uniform; three of ten entries are -1: none
};
[[nodiscard]] std::string_view expert_choice_name(ExpertChoice choice) noexcept;
/// The names in a list, with commas between them; "all" names every one.
///   errors  invalid_argument (there is none of that name: those that there are)
[[nodiscard]] Result<std::vector<ExpertChoice>> chosen_expert_choices(const std::string& list);

class ExpertChooser {
 public:
  ExpertChooser(ExpertChoice choice, int experts);
  /// Fills the entries of a token. It names no expert twice.
  void choose(BenchRandom& random, std::span<std::int64_t> entries) const;

 private:
  [[nodiscard]] std::int64_t draw(BenchRandom& random) const;

  const bool masks_;
  std::vector<double> until_;  // the chances of the experts up to this one
};

}  // namespace headrace::cli
