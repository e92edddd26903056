// SPDX-License-Identifier: Apache-2.0
// One rank of `headrace bench moe`: dispatches and combines in rounds, compares what came, and measures.
#pragma once

#include "cli/bench/bench_ranks.hpp"
#include "cli/bench/expert_choice.hpp"

#include <headrace/moe.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

/// Which rounds are compared with what must come.
enum class MoEChecks : std::uint8_t { none, first_and_last, all };

/// The same on all ranks.
struct MoEPlan {
  MoEConfig config;  ///< rank, ranks and max_tokens are those of the case
  std::vector<std::int64_t> tokens;
  std::vector<ExpertChoice> choices;
  unsigned warm_up = 0, repeats = 0;  ///< rounds
  double seconds = 0;                 ///< of the rounds of a case; then they end. 0: no limit
  MoEChecks checks = MoEChecks::first_and_last;
  std::string device = "cpu";  ///< "cuda": the ranks take the GPUs of this host in turn
  bool graph = false;          ///< on GPUs: measure replays of graphs of calls
  bool copies = false;         ///< measure plain copies of the same rows in turn: of threads alone
  std::map<std::string, std::string> options;  ///< of the agents
};

/// What is measured in each round. Ranks begin each of them together.
enum class MoEPhase : std::uint8_t {
  dispatch,
  dispatch_send,
  dispatch_receive,
  combine,
  combine_send,
  combine_receive,
  round_trip,  ///< a dispatch and a combine
  // On GPUs: what they need when all is queued before, without the host's time.
  dispatch_kernel,
  combine_kernel,
  copy_dispatch,  ///< each row of a token, by memcpy, to each of its places
  copy_combine,   ///< each row of results to the row of its token's sum
  copy_round_trip,
};
inline constexpr std::size_t moe_phases = 12;
/// "dispatch-send"
[[nodiscard]] std::string_view moe_phase_name(MoEPhase phase) noexcept;

/// In seconds, of the slowest rank of each round. On a GPU to the end of what was queued; of kernels, from
/// its begin.
struct MoETimes {
  double mean = 0, p1 = 0, p50 = 0, p99 = 0;
  double host = 0;  ///< CPU time of the calling thread in a call, the mean
};

/// Bytes that a rank sends in a round, the mean.
struct MoEBytes {
  double moved = 0;    ///< rows to other ranks, one for each rank of a token
  double entries = 0;  ///< a row for each entry
};

struct MoEFigures {
  std::int64_t tokens = 0;
  ExpertChoice choice = ExpertChoice::uniform;
  int ranks = 1;
  unsigned rounds = 0;
  bool checked = false;
  std::array<std::optional<MoETimes>, moe_phases> times;
  MoEBytes dispatch, combine;

  [[nodiscard]] const std::optional<MoETimes>& of(MoEPhase phase) const {
    return times[static_cast<std::size_t>(phase)];
  }
};

/// What rank 0 tells.
class MoEReport {
 public:
  virtual ~MoEReport() = default;
  virtual void begin(const MoEPlan& plan, int ranks) = 0;
  [[nodiscard]] virtual Result<void> figures(const MoEFigures& figures) = 0;
};

/// Only rank 0 calls the report.
///   errors  corrupt (rows or sums were wrong: how many, the first), and those of MoE
[[nodiscard]] Result<void> run_moe_rank(const MoEPlan& plan, const RankPlace& place, MoEReport& report);

}  // namespace headrace::cli
