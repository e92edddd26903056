// SPDX-License-Identifier: Apache-2.0
// Ranks as threads against the reference, bit for bit.
#include "moe/rank.hpp"

#include "ranks.hpp"

#include <cstdlib>
#include <deque>
#include <functional>
#include <string>

namespace headrace::moe {
namespace {

/// One step of all ranks: a dispatch, and a combine of results that are made up.
class RandomStep {
 public:
  RandomStep(Random& random, const MoEConfig& config, Choice choice)
      : config_(config),
        inputs_(random_inputs(random, config, choice)),
        results_(random_results(random, config)),
        expected_(moe_reference::dispatch(config, inputs_)) {
    options_.weighted = below(random, 4) != 0;
    gap_ = below(random, 2) * 24;
    small_numbers_ = below(random, 2) == 0;
    if (below(random, 3) == 0) add_biases(random);
    if (below(random, 3) == 0) add_old(random);
    sums_ = moe_reference::combine(config, inputs_, expected_, results_, options_);
  }

  void dispatch_send(Rank& rank, int number, Routing& routing) const {
    const Tokens& tokens = inputs_[at(number)];
    MoETokens argument = argument_of(tokens);
    const Bytes rows = with_gaps(tokens.rows, config_.row_bytes());
    const Bytes scales = with_gaps(tokens.scales, config_.scale_bytes);
    argument.rows = rows.data(), argument.row_stride = config_.row_bytes() + gap_;
    if (!scales.empty()) argument.scales = scales.data(), argument.scale_stride = config_.scale_bytes + gap_;
    const std::vector<std::int32_t> experts(tokens.experts.begin(), tokens.experts.end());
    if (small_numbers_) argument.experts = experts.data(), argument.experts_dtype = DType::uint32;
    const auto sent = rank.dispatch_send(argument, routing);
    ASSERT_TRUE(sent) << sent.error().message;
  }
  void dispatch_receive(Rank& rank, int number, Routing& routing) const {
    Output out(moe_reference::of_rank(config_, number));
    const auto received = rank.dispatch_receive(out.argument(), routing);
    const Dispatched& expected = expected_[at(number)];
    const bool fits = expected.needed <= expected.available;
    EXPECT_EQ(received.code(), fits ? Code::ok : Code::exhausted);
    if (!received)
      EXPECT_NE(received.error().message.find(std::to_string(expected.needed)), std::string::npos);
    expect_same(out.got, expected);
  }
  void combine_send(Rank& rank, int number, Routing& routing) const {
    MoEResults results;
    const Bytes rows = with_gaps(results_[at(number)], config_.combine_row_bytes());
    results.rows = rows.data(), results.row_stride = config_.combine_row_bytes() + gap_;
    results.weighted = options_.weighted;
    const auto sent = rank.combine_send(results, routing);
    ASSERT_TRUE(sent) << sent.error().message;
  }
  void combine_receive(Rank& rank, int number, Routing& routing) const {
    Bytes rows = options_.old.empty() ? Bytes(sums_[at(number)].size()) : options_.old[at(number)];
    MoESums sums;
    sums.rows = rows.data();
    sums.accumulate = !options_.old.empty();
    if (!options_.biases.empty())
      for (std::size_t i = 0; i < options_.biases[at(number)].size(); ++i)
        sums.biases[i] = options_.biases[at(number)][i].data();
    const auto received = rank.combine_receive(sums, routing);
    ASSERT_TRUE(received) << received.error().message;
    EXPECT_TRUE(rows == sums_[at(number)]);
  }
  void whole(Rank& rank, int number, Routing& routing) const {
    dispatch_send(rank, number, routing);
    dispatch_receive(rank, number, routing);
    combine_send(rank, number, routing);
    combine_receive(rank, number, routing);
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] Bytes with_gaps(const Bytes& rows, std::int64_t row_bytes) const {
    Bytes wide;
    for (auto row = rows.begin(); row != rows.end(); row += row_bytes) {
      wide.insert(wide.end(), row, row + row_bytes);
      wide.insert(wide.end(), static_cast<std::size_t>(gap_), std::byte{0x77});
    }
    return wide;
  }
  [[nodiscard]] Bytes rows_of_tokens(Random& random, std::size_t rank) const {
    return random_rows(random, config_.combine_dtype, inputs_[rank].count * config_.hidden);
  }
  void add_biases(Random& random) {
    for (std::size_t rank = 0; rank < inputs_.size(); ++rank)
      options_.biases.push_back({rows_of_tokens(random, rank), rows_of_tokens(random, rank)});
  }
  void add_old(Random& random) {
    for (std::size_t rank = 0; rank < inputs_.size(); ++rank)
      options_.old.push_back(rows_of_tokens(random, rank));
  }

  MoEConfig config_;
  std::vector<Tokens> inputs_;
  std::vector<Bytes> results_;
  moe_reference::CombineOptions options_;
  std::int64_t gap_ = 0;        ///< bytes between rows that are given
  bool small_numbers_ = false;  ///< experts are given as uint32
  std::vector<Dispatched> expected_;
  std::vector<Bytes> sums_;
};

MoEConfig random_config(Random& random) {
  MoEConfig config;
  config.ranks = 1 + static_cast<int>(below(random, 8));
  for (const int size : {4, 3, 2})
    if (config.ranks % size == 0 && below(random, 4) == 0) config.group_size = size;
  config.experts = 1 + static_cast<int>(below(random, 40));
  config.top_k = 1 + static_cast<int>(below(random, std::min(config.experts, 9)));
  constexpr DType types[] = {DType::bfloat16, DType::float16, DType::float32, DType::float8_e4m3fn};
  config.dtype = types[below(random, 4)];
  config.combine_dtype = types[below(random, 3)];
  config.hidden = 16 * (1 + below(random, 4));
  if (config.dtype == DType::float8_e4m3fn) config.scale_bytes = 4 * (1 + below(random, 5));
  config.max_tokens = 1 + below(random, 60);
  config.layout = static_cast<MoELayout>(below(random, 3));
  if (config.layout == MoELayout::by_expert) {
    config.row_alignment = std::int64_t{1} << below(random, 6);
    config.zero_padding = below(random, 2) == 0;
  }
  if (below(random, 5) == 0) config.row_budget = 1 + below(random, 100);
  if (below(random, 2) == 0) {  // unevenly: some ranks have none
    config.experts_of_ranks.assign(static_cast<std::size_t>(config.ranks), 0);
    for (int i = 0; i < config.experts; ++i)
      ++config.experts_of_ranks[static_cast<std::size_t>(below(random, config.ranks))];
  }
  config.wait_limit = std::chrono::minutes(1);
  return config;
}

/// Steps of one configuration, some of them two at a time.
void run_case(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const MoEConfig config = random_config(random);
  ASSERT_TRUE(config.check()) << config.check().error().message;
  SCOPED_TRACE(config_text(config));
  std::deque<RandomStep> steps;
  for (int i = 0; i < 4; ++i) steps.emplace_back(random, config, static_cast<Choice>(below(random, 5)));
  Ranks ranks(config);
  ranks.run([&](int number) {
    Rank& rank = ranks[number];
    Routing one = rank.new_routing(), two = rank.new_routing();
    steps[0].whole(rank, number, one);
    steps[1].dispatch_send(rank, number, one);
    steps[2].dispatch_send(rank, number, two);
    steps[1].dispatch_receive(rank, number, one);
    steps[1].combine_send(rank, number, one);
    steps[2].dispatch_receive(rank, number, two);
    steps[2].combine_send(rank, number, two);
    steps[1].combine_receive(rank, number, one);
    steps[2].combine_receive(rank, number, two);
    steps[3].whole(rank, number, two);
  });
}

std::uint64_t first_seed() {
  const char* const given = std::getenv("HEADRACE_TEST_SEED");
  if (given != nullptr) return std::strtoull(given, nullptr, 10);
  return std::random_device()() % 1'000'000'000;
}

TEST(MoERanks, make_of_random_tokens_what_the_reference_makes) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 20 && !testing::Test::HasFailure(); ++seed) run_case(seed);
}

TEST(MoERanks_slow, make_of_random_tokens_what_the_reference_makes) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 3000 && !testing::Test::HasFailure(); ++seed)
    run_case(seed);
}

}  // namespace
}  // namespace headrace::moe
