// SPDX-License-Identifier: Apache-2.0
// Replicas of hot experts, whose weights come from the ranks that keep them.
#include <headrace/moe_weights.hpp>

#include "agent_ranks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using moe::AgentRanks;
using moe_reference::of_rank;

constexpr int hidden = 16, tokens_of_rank = 60, experts_of_all = 6;

/// Three ranks with four places each, two of which are free: six experts.
MoEConfig weights_config() {
  MoEConfig config;
  config.ranks = 3, config.experts = 12, config.top_k = 2, config.hidden = hidden, config.max_tokens = 100;
  config.dtype = config.combine_dtype = DType::float32;
  config.wait_limit = 30s;
  return config;
}
const std::vector<std::int32_t> kept_experts{0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1};

float weight_of(std::int64_t expert, int column) {
  return 1.0F + 0.37F * static_cast<float>(expert) + 0.011F * static_cast<float>(column);
}

/// Ranks whose weights lie in registered memory: of each place a row of float32, and a byte.
class RanksWithWeights {
 public:
  explicit RanksWithWeights(const MoEConfig& config, const AgentOptions& options = {.backends = {"shm"}})
      : config_(config), ranks(config, options) {
    for (int rank = 0; rank < config.ranks; ++rank) {
      const auto places = static_cast<std::size_t>(of_rank(config, rank).local_experts());
      rows_.push_back(ranks.agent(rank).allocate(places * hidden * sizeof(float)).value());
      bytes_.push_back(ranks.agent(rank).allocate(places + 1).value());
      for (std::size_t place = 0; place < places; ++place) {
        const std::int32_t expert = kept_experts[static_cast<std::size_t>(config.first_expert(rank)) + place];
        if (expert < 0) continue;
        for (int column = 0; column < hidden; ++column) row(rank, place)[column] = weight_of(expert, column);
        byte(rank, place) = static_cast<std::uint8_t>(expert + 10);
      }
    }
    ranks.exchange_and_join();
  }

  [[nodiscard]] std::vector<TensorView> tensors(int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    const std::int64_t places = of_rank(config_, rank).local_experts();
    return {{.data = rows_[at].bytes().data(), .dtype = DType::float32, .shape = {places, hidden}},
            {.data = bytes_[at].bytes().data() + 1, .dtype = DType::uint8, .shape = {places}}};
  }
  [[nodiscard]] float* row(int rank, std::size_t place) {
    return reinterpret_cast<float*>(rows_[static_cast<std::size_t>(rank)].bytes().data()) + place * hidden;
  }
  [[nodiscard]] std::uint8_t& byte(int rank, std::size_t place) {
    return reinterpret_cast<std::uint8_t&>(bytes_[static_cast<std::size_t>(rank)].bytes()[place + 1]);
  }
  [[nodiscard]] Result<MoEWeights> open(int rank, std::chrono::nanoseconds timeout = 30s) {
    return MoEWeights::open(ranks.agent(rank), ranks[rank], kept_experts, tensors(rank), "layer0", timeout);
  }
  void open_all() {
    weights.resize(static_cast<std::size_t>(config_.ranks));
    ranks.run([&](int rank) {
      auto opened = open(rank);
      ASSERT_TRUE(opened) << opened.error().message;
      of(rank).emplace(*std::move(opened));
    });
  }
  [[nodiscard]] std::optional<MoEWeights>& of(int rank) { return weights[static_cast<std::size_t>(rank)]; }

  /// A dispatch, the experts with the weights that the places have, and a combine: each sum is compared with
  /// what the weights of its experts make.
  void step(int rank, const std::vector<std::int64_t>& experts, const std::vector<std::int64_t>& lost = {}) {
    const MoEConfig config = of_rank(config_, rank);
    std::vector<float> rows(static_cast<std::size_t>(tokens_of_rank * hidden));
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = 0.1F + static_cast<float>((i * 7919 + static_cast<std::size_t>(rank)) % 101);
    const MoEReplicas replicas = of(rank)->replicas();
    MoETokens tokens;
    tokens.count = tokens_of_rank, tokens.rows = rows.data(), tokens.experts = experts.data();
    tokens.replicas = &replicas;
    auto routing = ranks[rank].new_routing();
    moe::Output out(config);
    const auto sent = ranks[rank].dispatch(tokens, out.argument(), *routing);
    ASSERT_TRUE(sent || sent.code() == Code::peer_lost) << sent.error().message;
    auto* const came = reinterpret_cast<float*>(out.got.rows.data());
    for (int place = 0; place < config.local_experts(); ++place) {
      const auto at = static_cast<std::size_t>(place);
      for (std::int64_t i = out.got.first_rows[at]; i < out.got.first_rows[at + 1]; ++i)
        for (int column = 0; column < hidden; ++column) came[i * hidden + column] *= row(rank, at)[column];
    }
    got_entries[static_cast<std::size_t>(rank)] =
        std::accumulate(out.got.counts.begin(), out.got.counts.end(), std::int64_t{0});
    std::vector<float> sums(rows.size());
    const auto done = ranks[rank].combine({.rows = came}, {.rows = sums.data()}, *routing);
    ASSERT_TRUE(done) << done.error().message;
    const auto part = [&](std::int64_t expert, float value, int column) {
      return std::ranges::find(lost, expert) == lost.end() ? value * weight_of(expert, column) : 0.0F;
    };
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t token = i / hidden;
      const int column = static_cast<int>(i % hidden);
      const float expected =
          part(experts[token * 2], rows[i], column) + part(experts[token * 2 + 1], rows[i], column);
      ASSERT_EQ(sums[i], expected) << "rank " << rank << ", token " << token << ", column " << column;
    }
  }

 private:
  const MoEConfig config_;
  std::vector<Region> rows_, bytes_;

 public:
  AgentRanks ranks;
  std::vector<std::optional<MoEWeights>> weights;  // end before the ranks
  std::vector<std::int64_t> got_entries = std::vector<std::int64_t>(8);
};

/// Of each token the hot expert and another one, in turn.
std::vector<std::int64_t> experts_with_hot(std::int64_t hot) {
  std::vector<std::int64_t> experts;
  for (int token = 0; token < tokens_of_rank; ++token) {
    experts.push_back(hot);
    experts.push_back((hot + 1 + token % (experts_of_all - 1)) % experts_of_all);
  }
  return experts;
}

std::vector<std::int64_t> counts_of_experts(const std::vector<std::int64_t>& experts) {
  std::vector<std::int64_t> counts(experts_of_all);
  for (const std::int64_t expert : experts) ++counts[static_cast<std::size_t>(expert)];
  return counts;
}

void expect_balanced(RanksWithWeights& all, int rank, const std::vector<std::int64_t>& experts) {
  const auto done = all.of(rank)->balance(counts_of_experts(experts), 30s);
  ASSERT_TRUE(done) << done.error().message;
}

void steps_with_changing_hot_experts(RanksWithWeights& all) {
  all.open_all();
  for (const std::int64_t hot : {0, 3, 5, 0}) {
    const auto experts = experts_with_hot(hot);
    all.ranks.run([&](int rank) {
      expect_balanced(all, rank, experts);
      all.step(rank, experts);
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(all.got_entries[static_cast<std::size_t>(rank)], 2 * tokens_of_rank);
      const MoEPlan& plan = all.of(rank)->plan();
      EXPECT_EQ(plan.experts, all.of(0)->plan().experts);
      for (std::size_t place = 0; place < 4; ++place) {
        const std::int32_t expert = plan.experts[static_cast<std::size_t>(rank) * 4 + place];
        if (expert >= 0) EXPECT_EQ(all.byte(rank, place), expert + 10);
      }
    }
  }
}

TEST(MoEWeights, of_hot_experts_come_to_other_ranks_and_sums_keep_their_bits) {
  RanksWithWeights all(weights_config());
  steps_with_changing_hot_experts(all);
}

TEST(MoEWeights, come_over_tcp_from_ranks_of_other_nodes) {
  MoEConfig config = weights_config();
  config.ranks_per_node = 1, config.nics = {"127.0.0.1"};
  RanksWithWeights all(config, {.backends = {"tcp"}, .listen = "127.0.0.1:0"});
  steps_with_changing_hot_experts(all);
}

TEST(MoEWeights, of_replicas_that_stay_are_not_moved) {
  RanksWithWeights all(weights_config());
  all.open_all();
  const auto first = experts_with_hot(0);
  std::uint64_t moved[3] = {};
  all.ranks.run([&](int rank) {
    expect_balanced(all, rank, first);
    moved[rank] = all.of(rank)->moved_bytes();
    expect_balanced(all, rank, first);
    EXPECT_EQ(all.of(rank)->moved_bytes(), 0U);
    all.step(rank, first);
  });
  EXPECT_EQ(moved[0], 0U);
  EXPECT_GE(moved[1] + moved[2], 2 * (hidden * sizeof(float) + 1));
  all.ranks.run([&](int rank) {  // a free place that nobody needs keeps what it has
    expect_balanced(all, rank, experts_with_hot(3));
    expect_balanced(all, rank, first);
    all.step(rank, first);
  });
}

/// Expert 4 is hot, rank 2 keeps it, and others have replicas. Then rank 2 ends.
TEST(MoEWeights, a_replica_is_kept_if_the_rank_that_kept_its_expert_is_gone) {
  RanksWithWeights all(weights_config());
  all.open_all();
  const auto hot = experts_with_hot(4);
  all.ranks.run([&](int rank) {
    expect_balanced(all, rank, hot);
    all.step(rank, hot);
  });
  all.ranks.agent(2).close();
  all.ranks.run([&](int rank) {
    if (rank == 2) return;
    const auto lost = all.of(rank)->balance(counts_of_experts(hot), 30s);
    ASSERT_EQ(lost.code(), Code::peer_lost) << lost.error().message;
    EXPECT_NE(lost.error().message.find("rank 2 (agent \"moe2\")"), std::string::npos)
        << lost.error().message;
    const MoEReplicas safe = all.of(rank)->replicas();
    EXPECT_EQ(safe.first[safe.experts], 6);  // places that keep their experts, those of rank 2 too
    all.step(rank, hot, {4, 5});             // the dispatch leaves rank 2 out
    EXPECT_EQ(all.ranks[rank].active(), 0b011U);
    for (const std::int64_t other : {0, 1, 4}) {  // places are needed for others, and the replica stays
      const auto experts = experts_with_hot(other);
      expect_balanced(all, rank, experts);
      all.step(rank, experts, {5});
    }
  });
}

TEST(MoEWeights, a_rank_that_is_late_is_named_and_the_next_call_succeeds) {
  RanksWithWeights all(weights_config());
  all.open_all();
  const auto counts = counts_of_experts(experts_with_hot(0));
  const auto late = all.of(0)->balance(counts, 20ms);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_EQ(
      late.error().message,
      "rank 0, balance of weights \"layer0\": rank 0 waited for the counts of rank 1 (agent \"moe1\") in "
      "vain: have all ranks made this call?");
  all.ranks.run([&](int rank) {
    if (rank != 0) {
      const auto told = all.of(rank)->balance(counts, 30s);
      EXPECT_EQ(told.code(), Code::timed_out);
      EXPECT_NE(told.error().message.find("has ended call 1 with an error"), std::string::npos)
          << told.error().message;
    }
    expect_balanced(all, rank, experts_with_hot(0));
    all.step(rank, experts_with_hot(0));
  });
}

TEST(MoEWeights, go_on_without_a_rank_that_the_others_have_left_out) {
  RanksWithWeights all(weights_config());
  all.open_all();
  ASSERT_TRUE(all.ranks[0].set_active(0b011));
  ASSERT_TRUE(all.ranks[1].set_active(0b011));
  const auto counts = counts_of_experts(experts_with_hot(0));
  all.ranks.run([&](int rank) {
    const auto done = all.of(rank)->balance(counts, 30s);
    EXPECT_EQ(done.code(), rank == 2 ? Code::canceled : Code::ok);
    if (rank != 2) return;
    EXPECT_EQ(
        done.error().message,
        "rank 2, balance of weights \"layer0\": this rank was left out: all ranks call regroup to take it "
        "back");
  });
}

TEST(MoEWeights, of_ranks_with_the_same_tokens_need_the_same_counts) {
  MoEConfig config = weights_config();
  config.ranks = 2, config.group_size = 2, config.experts_of_ranks = {4, 8};
  RanksWithWeights all(config);
  all.open_all();
  all.ranks.run([&](int rank) {
    std::vector<std::int64_t> counts(experts_of_all, 10);
    counts[3] = rank;
    const auto done = all.of(rank)->balance(counts, 30s);
    EXPECT_EQ(done.code(), Code::invalid_argument);
    EXPECT_NE(done.error().message.find("ranks 0 and 1 hold the same tokens and were given different counts"),
              std::string::npos)
        << done.error().message;
    counts[3] = 100;
    const auto again = all.of(rank)->balance(counts, 30s);
    EXPECT_TRUE(again) << again.error().message;
    EXPECT_EQ(all.of(rank)->plan().loads, (std::vector<std::int64_t>{75, 75}));
  });
}

TEST(MoEWeights, refuse_what_cannot_be) {
  RanksWithWeights all(weights_config());
  Agent& agent = all.ranks.agent(0);
  MoE& moe = all.ranks[0];
  const auto sentence = [&](std::span<const std::int32_t> experts, std::vector<TensorView> tensors) {
    const auto opened = MoEWeights::open(agent, moe, experts, tensors, "layer0", 1s);
    return opened ? "" : opened.error().message;
  };
  const std::string begin = "rank 0, open of weights \"layer0\": ";
  EXPECT_EQ(sentence({}, all.tensors(0)),
            begin + "0 places are given, expected those of the configuration, 12");
  EXPECT_EQ(sentence(kept_experts, {}), begin + "no tensor of weights is given");
  std::vector<TensorView> wrong = all.tensors(0);
  wrong[1].shape = {5};
  EXPECT_EQ(
      sentence(kept_experts, wrong),
      begin +
          "tensor 1: it has the shape [5], expected [4, ...] without gaps: a part for each place of this "
          "rank");
  const std::vector<std::uint8_t> own(4);
  wrong[1] = {.data = own.data(), .dtype = DType::uint8, .shape = {4}};
  EXPECT_EQ(sentence(kept_experts, wrong),
            begin +
                "tensor 1: it is not in memory that agent \"moe0\" has registered: register or allocate it "
                "there");
  EXPECT_EQ(
      MoEWeights::open(all.ranks.agent(1), moe, kept_experts, all.tensors(1), "layer0", 1s).error().message,
      begin + "the agent is \"moe1\", expected \"moe0\", that of the MoE");
  const auto alone = all.open(0, 20ms);
  EXPECT_EQ(alone.error().message,
            begin +
                "rank 0 waited for a greeting of rank 1 (agent \"moe1\") in vain: have "
                "all ranks made this call?");
}

TEST(MoEWeights, ranks_that_were_given_different_things_are_told_which) {
  MoEConfig config = weights_config();
  config.ranks = 2, config.experts_of_ranks = {4, 8};
  RanksWithWeights all(config);
  all.ranks.run([&](int rank) {
    std::vector<TensorView> tensors = all.tensors(rank);
    if (rank == 1) tensors.pop_back();
    const auto opened =
        MoEWeights::open(all.ranks.agent(rank), all.ranks[rank], kept_experts, tensors, "a", 30s);
    ASSERT_EQ(opened.code(), Code::invalid_argument);
    EXPECT_NE(opened.error().message.find("of float32 [places, 16], uint8 [places]"), std::string::npos)
        << opened.error().message;
  });
  all.ranks.run([&](int rank) {
    std::vector<std::int32_t> experts = kept_experts;
    if (rank == 1) std::swap(experts[0], experts[1]);
    const auto opened =
        MoEWeights::open(all.ranks.agent(rank), all.ranks[rank], experts, all.tensors(rank), "b", 30s);
    ASSERT_EQ(opened.code(), Code::invalid_argument);
    EXPECT_NE(opened.error().message.find("was given other experts of places than rank"), std::string::npos)
        << opened.error().message;
  });
  all.open_all();
  EXPECT_EQ(all.of(0)->balance({}, 1s).error().message,
            "rank 0, balance of weights \"layer0\": 0 counts are given, expected one for each of 6 experts");
  const std::vector<std::int64_t> many{0, 0, 201, 0, 0, 0};
  EXPECT_EQ(all.of(0)->balance(many, 1s).error().message,
            "rank 0, balance of weights \"layer0\": the count of expert 2 is 201, expected 0 to 200");
}

TEST(MoEWeights, a_forked_child_is_refused) {
  MoEConfig config = weights_config();
  config.ranks = 1;
  RanksWithWeights all(config);
  all.open_all();
  const std::vector<std::int64_t> counts(experts_of_all);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(all.of(0)->balance(counts, 1s).code() == Code::invalid_argument ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(all.of(0)->balance(counts, 1s));
}

}  // namespace
}  // namespace headrace
