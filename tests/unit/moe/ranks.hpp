// SPDX-License-Identifier: Apache-2.0
// Ranks as threads on windows that they share, or that a fabric reaches, and what they make of tokens beside
// what the reference makes.
#pragma once

#include "moe/config.hpp"
#include "moe/network.hpp"
#include "moe/rank.hpp"
#include "support/moe_reference.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace headrace::moe {

using moe_reference::Bytes;
using moe_reference::Dispatched;
using moe_reference::Tokens;

/// The argument of a dispatch.
inline MoETokens argument_of(const Tokens& tokens) {
  MoETokens argument;
  argument.count = tokens.count;
  argument.rows = tokens.rows.data();
  argument.scales = tokens.scales.empty() ? nullptr : tokens.scales.data();
  argument.experts = tokens.experts.data();
  argument.weights = tokens.weights.empty() ? nullptr : tokens.weights.data();
  for (std::size_t i = 0; i < tokens.payloads.size(); ++i)
    argument.payloads[i].rows = tokens.payloads[i].data();
  return argument;
}

/// Memory for what a rank gets.
struct Output {
  explicit Output(const MoEConfig& config) {
    const auto rows = static_cast<std::size_t>(config.output_rows());
    got.rows.assign(rows * static_cast<std::size_t>(config.row_bytes()), Dispatched::untouched);
    got.scales.assign(rows * static_cast<std::size_t>(config.scale_bytes), Dispatched::untouched);
    for (const std::int64_t bytes : config.payload_bytes)
      got.payloads.emplace_back(rows * static_cast<std::size_t>(bytes), Dispatched::untouched);
    got.counts.resize(static_cast<std::size_t>(config.local_experts()));
    const bool by_rank = config.layout == MoELayout::by_rank;
    got.first_rows.resize(static_cast<std::size_t>(by_rank ? config.ranks : config.local_experts()) + 1);
    if (!by_rank) return;
    got.experts.assign(rows * static_cast<std::size_t>(config.top_k), -1);
    got.weights.assign(rows * static_cast<std::size_t>(config.top_k), 0);
  }
  [[nodiscard]] MoERows argument() {
    MoERows out;
    out.rows = got.rows.data();
    out.scales = got.scales.data();
    out.counts = got.counts.data();
    out.first_rows = got.first_rows.data();
    out.experts = got.experts.empty() ? nullptr : got.experts.data();
    out.weights = got.weights.empty() ? nullptr : got.weights.data();
    for (std::size_t i = 0; i < got.payloads.size(); ++i) out.payloads[i] = got.payloads[i].data();
    return out;
  }
  Dispatched got;
};

inline void expect_same(const Dispatched& got, const Dispatched& expected) {
  EXPECT_EQ(got.counts, expected.counts);
  EXPECT_EQ(got.first_rows, expected.first_rows);
  EXPECT_TRUE(got.rows == expected.rows);
  EXPECT_TRUE(got.scales == expected.scales);
  EXPECT_TRUE(got.payloads == expected.payloads);
  EXPECT_EQ(got.experts, expected.experts);
  EXPECT_EQ(got.weights, expected.weights);
}

/// All ranks of a configuration in this process. Between nodes they have tcp alone.
class Ranks {
 public:
  explicit Ranks(const MoEConfig& config)
      : config_(config), lost_(static_cast<std::size_t>(config.ranks * config.ranks)) {
    const auto bytes = *config.window_bytes();
    for (int rank = 0; rank < config.ranks; ++rank)
      memory_.emplace_back(static_cast<std::byte*>(std::calloc(bytes, 1)), &std::free);
    join_nodes();
    for (int rank = 0; rank < config.ranks; ++rank) ranks_.push_back(new_rank(rank));
  }

  [[nodiscard]] MoEConfig of(int rank) const { return moe_reference::of_rank(config_, rank); }
  [[nodiscard]] Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Window window(int rank) {
    return {memory_[static_cast<std::size_t>(rank)].get(), window_layout(config_)};
  }
  [[nodiscard]] Network& network(int rank) { return *networks_[static_cast<std::size_t>(rank)]; }
  /// The rank ends, as its process would: nobody reaches it any more.
  void end(int rank) {
    ranks_[static_cast<std::size_t>(rank)].reset();
    networks_[static_cast<std::size_t>(rank)].reset();
    lose(rank);
  }
  /// From now on the rank is known to be dead; to one of the others, or to all.
  void lose(int rank, int other) { lost_of(rank, other) = true; }
  void lose(int rank) {
    for (int other = 0; other < config_.ranks; ++other) lose(rank, other);
  }

  /// A new process in the place of a rank: it has a window of its own. The old one stays as it is.
  void replace(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    old_memory_.push_back(std::move(memory_[at]));
    memory_[at] = {static_cast<std::byte*>(std::calloc(*config_.window_bytes(), 1)), &std::free};
    for (int other = 0; other < config_.ranks; ++other) lost_of(rank, other) = false;
    old_ranks_.push_back(std::move(ranks_[at]));
    if (!networks_.empty()) networks_[at] = open_network(rank);
    ranks_[at] = new_rank(rank);
  }
  Result<void> regroup(int rank, Mask members, std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
    const std::vector<std::byte*> windows = this->windows();
    for (std::size_t i = 0; i < windows.size(); ++i)
      if ((members >> i & 1) != 0 && windows[i] != nullptr && !networks_.empty())
        add_far(rank, static_cast<int>(i));
    return (*this)[rank].regroup(windows, members, Deadline::after(timeout));
  }

  /// Of each rank.
  [[nodiscard]] std::vector<std::byte*> windows() const {
    std::vector<std::byte*> windows;
    for (const Memory& memory : memory_) windows.push_back(memory.get());
    return windows;
  }

  /// Runs body(rank) of each on a thread of its own.
  void run(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < config_.ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  }

 private:
  using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;
  std::unique_ptr<Rank> new_rank(int rank) {
    Network* const network = networks_.empty() ? nullptr : networks_[static_cast<std::size_t>(rank)].get();
    return std::make_unique<Rank>(
        of(rank), windows(), [this, rank](int peer) { return lost_of(peer, rank).load(); }, network);
  }
  void join_nodes() {
    const Nodes nodes = Nodes::of(config_);
    if (nodes.count() == 1) return;
    for (int rank = 0; rank < config_.ranks; ++rank) networks_.push_back(open_network(rank));
    for (int rank = 0; rank < config_.ranks; ++rank) {
      for (int peer = 0; peer < config_.ranks; ++peer) add_far(rank, peer);
      std::optional<Window> home;
      if (nodes.are_near(static_cast<std::uint32_t>(rank), 0)) home = window(0);
      network(rank).start({mask_of_all(nodes.ranks), 0, home, 0, 0});
    }
  }
  std::unique_ptr<Network> open_network(int rank) {
    FabricOptions options;
    options.groups.push_back({.nics = {"127.0.0.1"}});
    std::byte* const memory = memory_[static_cast<std::size_t>(rank)].get();
    return Network::open(of(rank), {memory, *config_.window_bytes()}, options).value();
  }
  void add_far(int rank, int peer) {
    const auto far = static_cast<std::uint32_t>(peer);
    if (Nodes::of(config_).are_near(static_cast<std::uint32_t>(rank), far)) return;
    const auto added = network(rank).add(far, network(peer).way());
    EXPECT_TRUE(added) << added.error().message;
  }
  std::atomic<bool>& lost_of(int rank, int other) {
    return lost_[static_cast<std::size_t>(rank) * static_cast<std::size_t>(config_.ranks) +
                 static_cast<std::size_t>(other)];
  }
  MoEConfig config_;
  std::vector<Memory> memory_, old_memory_;
  std::deque<std::atomic<bool>> lost_;
  std::vector<std::unique_ptr<Network>> networks_;  // of several nodes
  std::deque<std::unique_ptr<Rank>> ranks_, old_ranks_;
};

using Random = std::mt19937_64;
inline std::int64_t below(Random& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

/// How tokens choose their experts.
enum class Choice : std::uint8_t { uniform, zipf, one, some_none, twice };

inline std::int64_t choose(Random& random, Choice choice, int experts) {
  switch (choice) {
    case Choice::one:
      return experts / 2;
    case Choice::zipf: {  // the n-th expert with a chance of about 1 / n
      const double u = std::uniform_real_distribution<>(0, 1)(random);
      return std::min<std::int64_t>(experts - 1,
                                    static_cast<std::int64_t>(std::pow(static_cast<double>(experts), u)) - 1);
    }
    case Choice::some_none:
      return below(random, experts + 3) < 3 ? -1 : below(random, experts);
    default:
      return below(random, experts);
  }
}

inline Bytes random_bytes(Random& random, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Numbers of about 1, of a type of combine.
inline Bytes random_rows(Random& random, DType dtype, std::int64_t elements) {
  Bytes rows(static_cast<std::size_t>(elements) * element_bytes(dtype));
  std::uniform_real_distribution<float> number(-1, 1);
  for (std::size_t at = 0; at < rows.size(); at += element_bytes(dtype))
    moe_reference::store(dtype, rows.data() + at, number(random));
  return rows;
}

inline Tokens random_tokens(Random& random, const MoEConfig& config, std::int64_t count, Choice choice) {
  Tokens tokens;
  tokens.count = count;
  tokens.rows = random_bytes(random, count * config.row_bytes());
  tokens.scales = random_bytes(random, count * config.scale_bytes);
  for (const std::int64_t bytes : config.payload_bytes)
    tokens.payloads.push_back(random_bytes(random, count * bytes));
  for (std::int64_t token = 0; token < count; ++token) {
    for (int k = 0; k < config.top_k; ++k) {
      std::int64_t expert = choose(random, choice, config.experts);
      const auto begin = tokens.experts.end() - k;
      if (choice != Choice::twice && choice != Choice::one)  // a token names no expert twice
        while (expert >= 0 && std::find(begin, tokens.experts.end(), expert) != tokens.experts.end())
          expert = (expert + 1) % config.experts;
      tokens.experts.push_back(expert);
      tokens.weights.push_back(std::uniform_real_distribution<float>(0, 1)(random));
    }
  }
  return tokens;
}

/// The tokens of all ranks: those of a group have the same.
inline std::vector<Tokens> random_inputs(Random& random, const MoEConfig& config, Choice choice) {
  std::vector<Tokens> inputs;
  for (int rank = 0; rank < config.ranks; ++rank) {
    if (rank % config.group_size != 0) {
      inputs.push_back(inputs.back());
      continue;
    }
    const bool is_empty = below(random, 5) == 0;
    inputs.push_back(
        random_tokens(random, config, is_empty ? 0 : below(random, config.max_tokens + 1), choice));
  }
  return inputs;
}

/// What the experts of all ranks answer.
inline std::vector<Bytes> random_results(Random& random, const MoEConfig& config) {
  std::vector<Bytes> results;
  for (int rank = 0; rank < config.ranks; ++rank) {
    const std::int64_t rows = moe_reference::of_rank(config, rank).output_rows();
    results.push_back(random_rows(random, config.combine_dtype, rows * config.hidden));
  }
  return results;
}

/// A dispatch and a combine: tokens of all ranks, and what those ranks get that take part.
struct Step {
  Step(const MoEConfig& config, moe_reference::Mask active, std::uint64_t seed) {
    Random random(seed);
    for (int rank = 0; rank < config.ranks; ++rank)
      inputs.push_back(rank % config.group_size != 0
                           ? inputs.back()
                           : random_tokens(random, config, config.max_tokens, Choice::uniform));
    results = random_results(random, config);
    rows = moe_reference::dispatch(config, inputs, active);
    sums = moe_reference::combine(config, inputs, rows, results, {}, active);
  }
  Result<void> dispatch(Rank& rank, const MoEConfig& config, Routing& routing) const {
    Output out(config);
    const auto at = static_cast<std::size_t>(config.rank);
    auto done = rank.dispatch(argument_of(inputs[at]), out.argument(), routing);
    expect_same(out.got, rows[at]);
    return done;
  }
  Result<void> combine(Rank& rank, int number, Routing& routing) const {
    const auto at = static_cast<std::size_t>(number);
    Bytes got(sums[at].size());
    auto done = rank.combine({.rows = results[at].data()}, {.rows = got.data()}, routing);
    EXPECT_TRUE(got == sums[at]);
    return done;
  }
  std::vector<Tokens> inputs;
  std::vector<Bytes> results;
  std::vector<Dispatched> rows;
  std::vector<Bytes> sums;
};

}  // namespace headrace::moe
