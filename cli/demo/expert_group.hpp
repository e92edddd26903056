// SPDX-License-Identifier: Apache-2.0
// One of the ranks that share the experts, with the MoE over which rows go to experts and sums come back.
#pragma once

#include "cli/demo/expert_model.hpp"
#include "cli/demo/worker.hpp"

#include <headrace/moe.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli::demo {

///   threads  one
class ExpertGroup {
 public:
  /// Takes a window from the agent, publishes it and waits until all ranks have come.
  ///   owns    the agent stays the caller's, at its place, until this object is gone
  ///   errors  those of MoE::open and MoE::join
  static Result<ExpertGroup> join(ExpertModel model, const MoEConfig& config, Agent& agent);

  /// Runs the next token of a sequence, while every other rank runs one or takes part.
  ///   errors  those of MoE: they name the rank that is gone
  Result<void> take(std::int64_t token, KvPool& pool, Sequence& sequence);
  /// Runs the experts of this rank for the tokens of the others, and none of its own.
  Result<void> take_part();
  [[nodiscard]] Result<std::span<const float>> logits() { return model_.logits(); }

 private:
  ExpertGroup(ExpertModel model, MoE moe, MoERouting routing);
  /// Sends the row of this rank's token to its experts, and adds their weighted results to x; without a token
  /// it runs experts alone.
  Result<void> exchange(std::int64_t layer, const std::optional<TokenRoute>& route);
  Result<void> run_experts(std::int64_t layer);

  ExpertModel model_;
  MoE moe_;
  MoERouting routing_;
  std::vector<float> rows_, results_;     // [output_rows, width]
  std::vector<std::int64_t> first_rows_;  // of each expert of this rank, and the end
};

}  // namespace headrace::cli::demo
