// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a peer into the output file. The file is cut into windows. A request reads everything that
// is missing of one window into staging memory; several requests are in flight. Each window that has arrived
// is written to the file by one write() and added to its tensors' checksums.
//
// (Rejected: reading directly into the mapped file. Page faults on a file that is not in the page cache take
// several times the processor time of one large write().)
#pragma once

#include <headrace/agent.hpp>

#include "cli/common/output_file.hpp"
#include "cli/common/progress_bar.hpp"
#include "cli/common/quiet_notice.hpp"
#include "cli/pull/pull_plan.hpp"

#include <memory>
#include <set>

namespace headrace::cli {

struct MoveReport {
  std::uint64_t tensors = 0, bytes = 0;            ///< moved now
  std::uint64_t kept_tensors = 0, kept_bytes = 0;  ///< moved by an earlier process
  double seconds = 0;                              ///< of the whole command
  double transfer_seconds = 0;                     ///< from the first post to the last tensor in the file
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

  /// Reads all tensors of the plan that the file lacks, and notes each when it is complete.
  ///   errors  corrupt (wrong checksum; the text names the tensor), those of a request; notes of complete
  ///   tensors stay
  /// Tells `notice` whenever something has arrived.
  Result<MoveReport> move(const PullPlan& plan, OutputFile& output, QuietNotice& notice);

 private:
  TensorMover(Agent& agent, std::string peer, Region region, std::shared_ptr<std::byte> staging,
              Timeout patience)
      : agent_(&agent),
        peer_(std::move(peer)),
        region_(std::move(region)),
        staging_(std::move(staging)),
        patience_(patience) {}

  Result<void> bring(const PullPlan& plan, std::span<const Piece> pieces, Arrivals& arrivals,
                     MoveReport& report, QuietNotice& notice);
  /// Waits for one request and adds it to the report.
  Result<void> finish(Request request, MoveReport& report) const;

  Agent* agent_;
  std::string peer_;
  Region region_;  ///< the staging memory
  std::shared_ptr<std::byte> staging_;
  Timeout patience_;
};

/// Reads the first `bytes` bytes of a region of a peer.
Result<std::string> read_region(Agent& agent, const std::string& peer, RegionId region, std::uint64_t bytes,
                                Timeout patience);

}  // namespace headrace::cli
