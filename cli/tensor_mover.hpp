// SPDX-License-Identifier: Apache-2.0
// Brings tensors of a peer into the output file. The file is cut into windows; a request brings all that is
// missing of one into staging memory, several are under way, and each that has arrived is written to the file
// in one piece and goes into its tensors' checksums.
//
// Not straight into the mapped file: writing into cold pages of it costs several times the processor time of
// one large write().
#pragma once

#include <headrace/agent.hpp>

#include "cli/output_file.hpp"
#include "cli/progress_bar.hpp"
#include "cli/pull_plan.hpp"

#include <memory>
#include <set>

namespace headrace::cli {

struct MoveReport {
  std::uint64_t tensors = 0, bytes = 0;            ///< that came over
  std::uint64_t kept_tensors = 0, kept_bytes = 0;  ///< that an earlier process had brought
  double seconds = 0;                              ///< from the first post to the last tensor in the file
  std::set<std::string> paths;
  std::string explanation;
};

struct Piece;
class Arrivals;

class TensorMover {
 public:
  /// Registers staging memory with the agent.
  static Result<TensorMover> open(Agent& agent, const std::string& peer, Timeout patience);
  ~TensorMover();
  TensorMover(TensorMover&& other) noexcept;
  TensorMover& operator=(TensorMover&&) = delete;

  /// Brings all tensors of the plan that are not in the file yet, and notes each when it is.
  ///   errors  corrupt (a checksum: of which tensor), what a request answers; what is complete stays noted
  Result<MoveReport> move(const PullPlan& plan, OutputFile& output);

 private:
  TensorMover(Agent& agent, std::string peer, Region region, std::shared_ptr<std::byte> staging,
              Timeout patience)
      : agent_(&agent),
        peer_(std::move(peer)),
        region_(std::move(region)),
        staging_(std::move(staging)),
        patience_(patience) {}

  Result<void> bring(const PullPlan& plan, std::span<const Piece> pieces, Arrivals& arrivals,
                     MoveReport& report);
  /// Waits for the end of one request, and counts it.
  Result<void> finish(Request request, MoveReport& report) const;

  Agent* agent_;
  std::string peer_;
  Region region_;  ///< the staging memory
  std::shared_ptr<std::byte> staging_;
  Timeout patience_;
};

/// Reads one region of a peer into memory, at most `bytes` of it.
Result<std::string> read_region(Agent& agent, const std::string& peer, RegionId region, std::uint64_t bytes,
                                Timeout patience);

}  // namespace headrace::cli
