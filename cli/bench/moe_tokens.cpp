// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/moe_tokens.hpp"

#include "cli/bench/page_pattern.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace headrace::cli {
namespace {

constexpr std::uint64_t result_places = 1021;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::seed_seq words{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                      static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)};
  std::uint32_t made[2];
  words.generate(std::begin(made), std::end(made));
  return std::uint64_t{made[0]} << 32 | made[1];
}

}  // namespace

MoEBenchTokens::MoEBenchTokens(const MoEConfig& config, ExpertChoice choice, std::uint64_t seed)
    : config_(config), chooser_(choice, config.experts), seed_(seed) {}

MoERoute MoEBenchTokens::route(int group, std::uint64_t round) const {
  BenchRandom random(mixed(seed_ + static_cast<std::uint64_t>(group), round));
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  MoERoute route;
  route.experts.resize(static_cast<std::size_t>(config_.max_tokens) * top_k);
  for (auto rest = std::span(route.experts); !rest.empty(); rest = rest.subspan(top_k))
    chooser_.choose(random, rest.first(top_k));
  for (std::size_t i = 0; i < route.experts.size(); ++i)
    route.weights.push_back(random() % 2 == 0 ? 1.0F : 2.0F);
  return route;
}

std::vector<std::byte> MoEBenchTokens::random_bytes(std::int64_t bytes, std::uint64_t part) const {
  constexpr std::size_t word = 8;
  const auto wanted = static_cast<std::size_t>(bytes);
  std::vector<std::byte> made((wanted + word - 1) / word * word);
  fill_pattern(made, mixed(seed_, part));
  made.resize(wanted);
  return made;
}

std::vector<std::byte> MoEBenchTokens::rows(int group) const {
  return random_bytes(config_.max_tokens * config_.row_bytes(), 2 * static_cast<std::uint64_t>(group));
}

std::vector<std::byte> MoEBenchTokens::scales(int group) const {
  return random_bytes(config_.max_tokens * config_.scale_bytes, 2 * static_cast<std::uint64_t>(group) + 1);
}

MoEExpected::MoEExpected(const MoEConfig& config, const MoEBenchTokens& tokens, std::uint64_t round)
    : config_(config), tokens_(tokens) {
  for (int group = 0; group < config.groups(); ++group) routes_.push_back(tokens.route(group, round));
  // From -3 to 3, times 2 at most: the sum of 32 is below 256, up to which bfloat16 has all whole numbers.
  const auto count = static_cast<std::size_t>(config.hidden) + result_places;
  numbers_.resize(count * element_bytes(config.combine_dtype));
  BenchRandom random(round);
  for (std::size_t i = 0; i < count; ++i)
    write_element(numbers_.data(), config.combine_dtype, static_cast<std::int64_t>(i),
                  static_cast<double>(random() % 7) - 3);
}

std::vector<MoEExpected::Entry> MoEExpected::rows_of(int rank) const {
  std::vector<std::vector<Entry>> of_experts(static_cast<std::size_t>(config_.local_experts(rank)));
  const int first = config_.first_expert(rank), end = config_.first_expert(rank + 1);
  for (int group = 0; group < config_.groups(); ++group) {
    const auto& experts = routes_[static_cast<std::size_t>(group)].experts;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      if (experts[i] < first || experts[i] >= end) continue;
      const auto at = static_cast<std::int64_t>(i);
      of_experts[static_cast<std::size_t>(experts[i] - first)].push_back(
          {group, static_cast<int>(experts[i]), at / config_.top_k, static_cast<int>(at % config_.top_k)});
    }
  }
  std::vector<Entry> rows;
  for (const auto& entries : of_experts) rows.insert(rows.end(), entries.begin(), entries.end());
  return rows;
}

MoEWrong MoEExpected::wrong_counts(const MoERows& got, std::span<const Entry> rows) const {
  MoEWrong wrong;
  const int first = config_.first_expert(config_.rank);
  std::int64_t row = 0;
  for (int local = 0; local < config_.local_experts(); ++local) {
    const auto count = std::ranges::count(rows, first + local, &Entry::expert);
    if (got.counts[local] != count || got.first_rows[local] != row)
      wrong.add(fmt::format("expert {} has {} rows from row {} on, expected {} from row {} on", first + local,
                            got.counts[local], got.first_rows[local], count, row));
    row += count;
  }
  return wrong;
}

void MoEExpected::spoil_rows(const MoERows& out) const {
  const std::size_t rows = rows_of(config_.rank).size();
  constexpr int spoilt = 0xff;
  std::memset(out.rows, spoilt, rows * static_cast<std::size_t>(config_.row_bytes()));
  std::memset(out.scales, spoilt, rows * static_cast<std::size_t>(config_.scale_bytes));
}

MoEWrong MoEExpected::wrong_rows(const MoERows& got) const {
  const std::vector<Entry> rows = rows_of(config_.rank);
  MoEWrong wrong = wrong_counts(got, rows);
  const auto row_bytes = static_cast<std::size_t>(config_.row_bytes());
  const auto scale_bytes = static_cast<std::size_t>(config_.scale_bytes);
  const auto same = [](const void* in, std::size_t i, const std::vector<std::byte>& from, std::int64_t j,
                       std::size_t bytes) {
    return bytes == 0 || std::memcmp(static_cast<const std::byte*>(in) + i * bytes,
                                     from.data() + static_cast<std::size_t>(j) * bytes, bytes) == 0;
  };
  for (int group = 0; group < config_.groups(); ++group) {  // those of one group in memory at a time
    const auto sent = tokens_.rows(group), scales = tokens_.scales(group);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Entry& entry = rows[i];
      if (entry.group != group) continue;
      if (same(got.rows, i, sent, entry.token, row_bytes) &&
          same(got.scales, i, scales, entry.token, scale_bytes))
        continue;
      wrong.add(fmt::format("row {} is not token {} of rank {}, entry {}, for expert {}", i, entry.token,
                            entry.group * config_.group_size, entry.k, entry.expert));
    }
  }
  return wrong;
}

/// A row of small numbers, another one for each entry.
const std::byte* MoEExpected::result_of(const Entry& entry) const {
  const auto place =
      (static_cast<std::uint64_t>(entry.expert) * 389 + static_cast<std::uint64_t>(entry.token) * 97 +
       static_cast<std::uint64_t>(entry.group) * 31 + static_cast<std::uint64_t>(entry.k)) %
      result_places;
  return numbers_.data() + place * element_bytes(config_.combine_dtype);
}

void MoEExpected::fill_results(std::byte* rows) const {
  const auto bytes = static_cast<std::size_t>(config_.combine_row_bytes());
  for (const Entry& entry : rows_of(config_.rank)) {
    std::memcpy(rows, result_of(entry), bytes);
    rows += bytes;
  }
}

MoEWrong MoEExpected::wrong_sums(const std::byte* sums) const {
  MoEWrong wrong;
  const int group = config_.rank / config_.group_size;
  const MoERoute& route = routes_[static_cast<std::size_t>(group)];
  std::vector<std::byte> expected(static_cast<std::size_t>(config_.combine_row_bytes()));
  std::vector<double> sum(static_cast<std::size_t>(config_.hidden));
  for (std::int64_t token = 0; token < config_.max_tokens; ++token, sums += expected.size()) {
    std::ranges::fill(sum, 0);
    for (int k = 0; k < config_.top_k; ++k) {
      const auto at = static_cast<std::size_t>(token * config_.top_k + k);
      if (route.experts[at] < 0) continue;
      const std::byte* const row = result_of({group, static_cast<int>(route.experts[at]), token, k});
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += double{route.weights[at]} *
                  read_element(row, config_.combine_dtype, static_cast<std::int64_t>(i));
    }
    for (std::size_t i = 0; i < sum.size(); ++i)
      write_element(expected.data(), config_.combine_dtype, static_cast<std::int64_t>(i), sum[i]);
    if (std::memcmp(sums, expected.data(), expected.size()) != 0)
      wrong.add(fmt::format("the sum of token {} is wrong", token));
  }
  return wrong;
}

}  // namespace headrace::cli
