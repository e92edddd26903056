// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/expert_choice.hpp"

#include "cli/bench/coll_choices.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace headrace::cli {
namespace {

constexpr std::array expert_choices{ExpertChoice::uniform, ExpertChoice::zipf, ExpertChoice::k_hot,
                                    ExpertChoice::masked};
constexpr double hot_entries = 0.9, masked_entries = 0.3;

/// Of an expert, beside those of the others.
double chance_of(ExpertChoice choice, int expert, int experts) {
  if (choice == ExpertChoice::zipf) return 1.0 / (expert + 1);
  if (choice != ExpertChoice::k_hot) return 1;
  const int hot = (experts + 7) / 8;
  return expert < hot ? hot_entries / hot : (1 - hot_entries) / (experts - hot);
}

}  // namespace

std::string_view expert_choice_name(ExpertChoice choice) noexcept {
  switch (choice) {
    case ExpertChoice::zipf:
      return "zipf";
    case ExpertChoice::k_hot:
      return "k-hot";
    case ExpertChoice::masked:
      return "masked";
    default:
      return "uniform";
  }
}

Result<std::vector<ExpertChoice>> chosen_expert_choices(const std::string& list) {
  std::vector<ExpertChoice> chosen;
  for (const std::string& word : words_of(list)) {
    if (word == "all") {
      chosen.insert(chosen.end(), expert_choices.begin(), expert_choices.end());
      continue;
    }
    const auto at = std::ranges::find(expert_choices, word, expert_choice_name);
    if (at == expert_choices.end()) {
      std::vector<std::string_view> names;
      std::ranges::transform(expert_choices, std::back_inserter(names), expert_choice_name);
      return fail(Code::invalid_argument, "--routing: there is no \"{}\". There are: all, {}", word,
                  fmt::join(names, ", "));
    }
    chosen.push_back(*at);
  }
  return chosen;
}

ExpertChooser::ExpertChooser(ExpertChoice choice, int experts) : masks_(choice == ExpertChoice::masked) {
  double sum = 0;
  for (int expert = 0; expert < experts; ++expert)
    until_.push_back(sum += chance_of(choice, expert, experts));
}

std::int64_t ExpertChooser::draw(BenchRandom& random) const {
  const double at = std::uniform_real_distribution<>(0, until_.back())(random);
  const auto expert = std::ranges::upper_bound(until_, at) - until_.begin();
  return std::min<std::int64_t>(expert, static_cast<std::int64_t>(until_.size()) - 1);
}

void ExpertChooser::choose(BenchRandom& random, std::span<std::int64_t> entries) const {
  for (std::size_t k = 0; k < entries.size(); ++k) {
    const auto before = entries.first(k);
    do {
      entries[k] = draw(random);
    } while (std::ranges::find(before, entries[k]) != before.end());
  }
  if (!masks_) return;
  for (std::int64_t& entry : entries)
    if (std::uniform_real_distribution<>()(random) < masked_entries) entry = -1;
}

}  // namespace headrace::cli
