// SPDX-License-Identifier: Apache-2.0
// Ranks of a MoE with an agent each, in one process.
#pragma once

#include "ranks.hpp"

#include <headrace/agent.hpp>
#include <headrace/moe.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::moe {

/// An agent and a MoE for each rank.
class AgentRanks {
 public:
  explicit AgentRanks(const MoEConfig& config, const AgentOptions& options = {.backends = {"shm"}})
      : options_(options) {
    for (int rank = 0; rank < config.ranks; ++rank) {
      names_.push_back(fmt::format("moe{}", rank));
      agents_.push_back(std::make_unique<Agent>(Agent::open(names_.back(), options).value()));
      moes_.emplace_back(MoE::open(*agents_.back(), moe_reference::of_rank(config, rank)).value());
    }
  }
  /// The agent of a rank ends, and another one begins.
  void restart(int rank, const MoEConfig& config) {
    const auto at = static_cast<std::size_t>(rank);
    agents_[at]->close();
    const auto old = std::exchange(  // the old MoE ends before it
        agents_[at], std::make_unique<Agent>(Agent::open(names_[at], options_).value()));
    moes_[at] = MoE::open(*agents_[at], moe_reference::of_rank(config, rank)).value();
    ASSERT_TRUE(agents_[at]->publish());
  }
  /// Everybody gets everybody's metadata.
  void exchange_bytes() {
    for (const auto& from : agents_)
      for (const auto& to : agents_)
        if (from != to) ASSERT_TRUE(to->import_metadata(*from->export_metadata()));
  }
  void exchange_and_join() {
    exchange_bytes();
    for (MoE& moe : moes_) {
      const auto joined = moe.join(names_, std::chrono::seconds(30));
      ASSERT_TRUE(joined) << joined.error().message;
    }
  }
  [[nodiscard]] MoE& operator[](int rank) { return moes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Agent& agent(int rank) { return *agents_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// Runs body(rank) of each on a thread of its own.
  void run(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < moes_.size(); ++rank)
      threads.emplace_back([&body, rank] { body(static_cast<int>(rank)); });
  }

 private:
  AgentOptions options_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::deque<MoE> moes_;
};

}  // namespace headrace::moe
