// SPDX-License-Identifier: Apache-2.0
// Brings tensors of a peer into the output file: pages of a size that suits every path, several requests
// under way, and each tensor's checksum taken as soon as its last byte is there.
#pragma once

#include <headrace/agent.hpp>

#include "cli/output_file.hpp"
#include "cli/progress_bar.hpp"
#include "cli/pull_plan.hpp"

#include <set>

namespace headrace::cli {

struct MoveReport {
  std::uint64_t tensors = 0, bytes = 0;            ///< that came over
  std::uint64_t kept_tensors = 0, kept_bytes = 0;  ///< that an earlier process had brought
  double seconds = 0;                              ///< from the first post to the last checksum
  std::set<std::string> paths;
  std::string explanation;
};

class TensorMover {
 public:
  /// `file` is registered with the agent; it has to stay until the mover is gone.
  static Result<TensorMover> open(Agent& agent, const std::string& peer, std::span<std::byte> file,
                                  Timeout patience);
  ~TensorMover();
  TensorMover(TensorMover&& other) noexcept;
  TensorMover& operator=(TensorMover&&) = delete;

  /// Brings all tensors of the plan that are not in the file yet, and notes each when it is.
  ///   errors  corrupt (a checksum: of which tensor), what a request answers; what is complete stays noted
  Result<MoveReport> move(const PullPlan& plan, OutputFile& output);

 private:
  TensorMover(Agent& agent, std::string peer, Region region, Timeout patience)
      : agent_(&agent), peer_(std::move(peer)), region_(std::move(region)), patience_(patience) {}

  Agent* agent_;
  std::string peer_;
  Region region_;
  Timeout patience_;
};

/// Reads one region of a peer into memory, at most `bytes` of it.
Result<std::string> read_region(Agent& agent, const std::string& peer, RegionId region, std::uint64_t bytes,
                                Timeout patience);

}  // namespace headrace::cli
