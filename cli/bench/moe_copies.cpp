// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/moe_copies.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace headrace::cli {

MoECopies::MoECopies(const MoEConfig& config, const std::byte* tokens, const std::byte* scales,
                     std::byte* sums, const std::vector<std::string>& of_ranks)
    : config_(config), tokens_(tokens), token_scales_(scales), sums_(sums) {
  for (const std::string& bytes : of_ranks)
    std::memcpy(&of_ranks_.emplace_back(), bytes.data(), sizeof(MoEAddresses));
}

void MoECopies::find(const MoEExpected& expected) {
  const int group = config_.rank / config_.group_size, member = config_.rank % config_.group_size;
  sent_.clear(), taken_.clear();
  for (int rank = 0; rank < config_.ranks; ++rank) {
    const auto rows = expected.rows_of(rank);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (rows[row].group != group) continue;
      taken_.push_back({rows[row].token, rank, row});
      if (rows[row].token % config_.group_size == member) sent_.push_back(taken_.back());
    }
  }
  const auto is_before = [](const Copy& a, const Copy& b) {
    return std::tie(a.token, a.rank, a.row) < std::tie(b.token, b.rank, b.row);
  };
  std::ranges::sort(sent_, is_before);
  std::ranges::sort(taken_, is_before);
}

void MoECopies::dispatch() const {
  const auto row_bytes = static_cast<std::size_t>(config_.row_bytes());
  const auto scale_bytes = static_cast<std::size_t>(config_.scale_bytes);
  for (const Copy& copy : sent_) {
    const auto token = static_cast<std::size_t>(copy.token);
    const MoEAddresses& to = of_ranks_[static_cast<std::size_t>(copy.rank)];
    std::memcpy(to.rows + copy.row * row_bytes, tokens_ + token * row_bytes, row_bytes);
    if (scale_bytes != 0)
      std::memcpy(to.scales + copy.row * scale_bytes, token_scales_ + token * scale_bytes, scale_bytes);
  }
}

void MoECopies::combine() const {
  const auto bytes = static_cast<std::size_t>(config_.combine_row_bytes());
  for (const Copy& copy : taken_)
    std::memcpy(sums_ + static_cast<std::size_t>(copy.token) * bytes,
                of_ranks_[static_cast<std::size_t>(copy.rank)].results + copy.row * bytes, bytes);
}

MoEWrong MoECopies::wrong_sums() const {
  const auto bytes = static_cast<std::size_t>(config_.combine_row_bytes());
  MoEWrong wrong;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const Copy& copy = taken_[i];
    if (i + 1 < taken_.size() && taken_[i + 1].token == copy.token) continue;
    if (std::memcmp(sums_ + static_cast<std::size_t>(copy.token) * bytes,
                    of_ranks_[static_cast<std::size_t>(copy.rank)].results + copy.row * bytes, bytes) != 0)
      wrong.add(fmt::format("the copy of the last result of token {} differs", copy.token));
  }
  return wrong;
}

}  // namespace headrace::cli
