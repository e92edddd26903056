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
        results_(random_results(random, config)) {
    cast_ = possible_cast(random, config);
    if (cast_ != MoECast::none) {
      for (Tokens& tokens : inputs_)
        tokens.rows = random_rows(random, DType::bfloat16, tokens.count * config.hidden);
      for (std::size_t rank = 0; rank < inputs_.size(); ++rank)
        if (rank % static_cast<std::size_t>(config.group_size) != 0) inputs_[rank] = inputs_[rank - 1];
    }
    std::vector<Tokens> travelling = inputs_;
    if (cast_ != MoECast::none)
      for (Tokens& tokens : travelling) tokens = moe_reference::cast_tokens(config, tokens, cast_);
    expected_ = moe_reference::dispatch(config, travelling);
    count_in_memory_ = below(random, 3) == 0;
    in_window_ = config.layout == MoELayout::by_rank && !config.float8_combine && below(random, 2) == 0;
    by_column_ = below(random, 2) == 0;
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
    argument.cast = cast_;
    const std::int64_t row_bytes = cast_ == MoECast::none ? config_.row_bytes() : config_.hidden * 2;
    const Bytes rows = with_gaps(tokens.rows, row_bytes);
    argument.rows = rows.data(), argument.row_stride = row_bytes + gap_;
    const Bytes scales = by_column_ ? by_column(tokens) : with_gaps(tokens.scales, config_.scale_bytes);
    argument.scales = scales.empty() || cast_ != MoECast::none ? nullptr : scales.data();
    argument.scale_stride = by_column_ ? 4 : config_.scale_bytes + gap_;
    if (by_column_) argument.scale_unit_stride = 4 * std::max<std::int64_t>(1, tokens.count);
    std::vector<Bytes> payloads;
    for (std::size_t i = 0; i < tokens.payloads.size(); ++i) {
      payloads.push_back(with_gaps(tokens.payloads[i], config_.payload_bytes[i]));
      argument.payloads[i] = {payloads[i].data(), config_.payload_bytes[i] + gap_};
    }
    const std::vector<std::int32_t> experts(tokens.experts.begin(), tokens.experts.end());
    if (small_numbers_) argument.experts = experts.data(), argument.experts_dtype = DType::uint32;
    const auto count = static_cast<std::int32_t>(tokens.count);
    if (count_in_memory_) argument.count_at = &count, argument.count = config_.max_tokens;
    const auto sent = rank.dispatch_send(argument, routing);
    ASSERT_TRUE(sent) << sent.error().message;
    EXPECT_EQ(routing.given, static_cast<std::uint64_t>(argument.count));
  }
  void dispatch_receive(Rank& rank, int number, Routing& routing) const {
    Output out(moe_reference::of_rank(config_, number));
    const Dispatched& expected = expected_[at(number)];
    MoERows argument = out.argument();
    const std::int64_t rows = std::ssize(out.got.rows) / config_.row_bytes();
    if (by_column_ && config_.layout == MoELayout::batched) {
      argument.scale_expert_stride = config_.rows_of_expert() * config_.scale_bytes;
      argument.scale_stride = 4, argument.scale_unit_stride = 4 * config_.rows_of_expert();
    } else if (by_column_) {
      argument.scale_stride = 4, argument.scale_unit_stride = 4 * std::max<std::int64_t>(1, rows);
    }
    const auto received = rank.dispatch_receive(argument, routing);
    const bool fits = expected.needed <= expected.available;
    EXPECT_EQ(received.code(), fits ? Code::ok : Code::exhausted);
    if (!received)
      EXPECT_NE(received.error().message.find(std::to_string(expected.needed)), std::string::npos);
    if (by_column_) out.got.scales = by_row(out.got.scales, rows);
    expect_same(out.got, expected);
  }
  void combine_send(Rank& rank, int number, Routing& routing) const {
    MoEResults results;
    const Bytes rows = with_gaps(results_[at(number)], config_.combine_row_bytes());
    results.rows = rows.data(), results.row_stride = config_.combine_row_bytes() + gap_;
    results.weighted = options_.weighted;
    if (in_window_) {
      write_results(rank, number, routing);
      results = {.in_window = true};
    }
    const auto sent = rank.combine_send(results, routing);
    ASSERT_TRUE(sent) << sent.error().message;
  }
  /// As an expert that writes where combine_memory says.
  void write_results(Rank& rank, int number, Routing& routing) const {
    std::vector<MoEWindowRows> to(static_cast<std::size_t>(config_.ranks));
    const auto given = rank.combine_memory(routing, to);
    ASSERT_TRUE(given) << given.error().message;
    const std::byte* from = results_[at(number)].data();
    for (const MoEWindowRows& of_source : to) {
      const auto bytes = static_cast<std::size_t>(of_source.count * config_.combine_row_bytes());
      if (bytes != 0) std::memcpy(of_source.rows, from, bytes);
      from += bytes;
    }
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
  static MoECast possible_cast(Random& random, const MoEConfig& config) {
    if (config.dtype != DType::float8_e4m3fn) return MoECast::none;
    const std::int64_t blocks = (config.hidden + 127) / 128;
    const bool is_float = config.scale_bytes == 4 * blocks,
               is_packed = config.scale_bytes == (blocks + 3) / 4 * 4;
    if (is_packed && (!is_float || below(random, 2) == 0)) return MoECast::ue8m0;
    return is_float ? MoECast::float32 : MoECast::none;
  }
  /// The scales of tokens, words of a column side by side.
  [[nodiscard]] Bytes by_column(const Tokens& tokens) const {
    const auto rows = static_cast<std::size_t>(tokens.count);
    return transposed(tokens.scales, rows, static_cast<std::size_t>(config_.scale_bytes / 4));
  }
  /// The scales of a rank's rows, written by column; of each expert apart, if that is the layout.
  [[nodiscard]] Bytes by_row(const Bytes& scales, std::int64_t rows) const {
    const auto words = static_cast<std::size_t>(config_.scale_bytes / 4);
    if (config_.layout != MoELayout::batched)
      return transposed(scales, words, static_cast<std::size_t>(rows));
    Bytes all;
    const auto bytes = static_cast<std::ptrdiff_t>(config_.rows_of_expert() * config_.scale_bytes);
    for (auto expert = scales.begin(); expert != scales.end(); expert += bytes) {
      const Bytes one =
          transposed({expert, expert + bytes}, words, static_cast<std::size_t>(config_.rows_of_expert()));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  /// Of words of 4 bytes.
  static Bytes transposed(const Bytes& from, std::size_t rows, std::size_t columns) {
    Bytes to(from.size());
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j)
        std::memcpy(to.data() + (j * rows + i) * 4, from.data() + (i * columns + j) * 4, 4);
    return to;
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
  MoECast cast_ = MoECast::none;
  bool count_in_memory_ = false, in_window_ = false;
  bool by_column_ = false;  ///< scales lie so
  std::vector<Dispatched> expected_;
  std::vector<Bytes> sums_;
};

MoEConfig random_config(Random& random, int ranks, int ranks_per_node) {
  MoEConfig config;
  config.ranks = ranks, config.ranks_per_node = ranks_per_node;
  for (const int size : {4, 3, 2})
    if (config.ranks % size == 0 && below(random, 4) == 0) config.group_size = size;
  config.experts = 1 + static_cast<int>(below(random, 40));
  config.top_k = 1 + static_cast<int>(below(random, std::min(config.experts, 9)));
  constexpr DType types[] = {DType::bfloat16, DType::float16, DType::float32, DType::float8_e4m3fn};
  config.dtype = types[below(random, 4)];
  config.combine_dtype = types[below(random, 3)];
  config.hidden = 16 * (1 + below(random, 4));
  if (config.dtype == DType::float8_e4m3fn) {
    config.hidden = 16 * (1 + below(random, 10));
    config.scale_bytes = 4 * (1 + below(random, 5));
    const std::int64_t blocks = (config.hidden + 127) / 128;
    if (below(random, 2) == 0) config.scale_bytes = below(random, 2) == 0 ? 4 * blocks : (blocks + 3) / 4 * 4;
  }
  config.float8_combine = below(random, 4) == 0;
  if (below(random, 3) == 0)
    for (std::int64_t i = 1 + below(random, 8); i > 0; --i)
      config.payload_bytes.push_back(1 + below(random, 40));
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
///   ranks           0: any number
///   ranks_per_node  0: all are on one node
void run_case(std::uint64_t seed, int ranks_wanted = 0, int ranks_per_node = 0) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  if (ranks_wanted == 0) ranks_wanted = 1 + static_cast<int>(below(random, 8));
  const MoEConfig config = random_config(random, ranks_wanted, ranks_per_node);
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

struct NodeShape {
  int ranks, ranks_per_node;
};
constexpr NodeShape node_shapes[] = {{2, 1}, {4, 1}, {4, 2}, {6, 3}, {5, 2}};

TEST(MoENodes, make_of_random_tokens_what_the_reference_makes) {
  std::uint64_t seed = first_seed();
  for (const NodeShape& shape : node_shapes) run_case(seed++, shape.ranks, shape.ranks_per_node);
}

TEST(MoENodes_slow, make_of_random_tokens_what_the_reference_makes) {
  const std::uint64_t first = first_seed();
  for (const NodeShape& shape : node_shapes)
    for (std::uint64_t seed = first; seed < first + 200 && !testing::Test::HasFailure(); ++seed)
      run_case(seed, shape.ranks, shape.ranks_per_node);
}

}  // namespace
}  // namespace headrace::moe
