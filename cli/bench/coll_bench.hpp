// SPDX-License-Identifier: Apache-2.0
// One rank of `headrace bench coll`: runs every case of a plan, checks the data and measures.
#pragma once

#include "cli/bench/bench_ranks.hpp"
#include "cli/bench/coll_operation.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headrace::cli {

/// The same on all ranks.
struct CollPlan {
  std::vector<const CollOperation*> operations;
  std::vector<std::uint64_t> bytes;  ///< of the larger one of a rank's input and output
  std::vector<DType> types;
  std::vector<ReduceOp::Kind> reductions;
  int root = 0;
  std::string backend;
  std::string device = "cpu";  ///< "cuda": ranks take the GPUs of this host in turn
  std::map<std::string, std::string> hints;
  std::optional<unsigned> iterations;  ///< in one round; nullopt: as `seconds` allow
  double seconds = 0.2;                ///< for each figure
  bool check = true;
  bool graph = false;       ///< on a GPU: measure replays of a graph of calls
  bool registered = false;  ///< register the memory of each case with the communicator
};

struct CollFigure {
  double seconds = 0;                  ///< of the slowest rank: the median of the rounds
  std::optional<std::uint64_t> wrong;  ///< elements of all ranks; nullopt: not checked
};

struct CollRow {
  const CollOperation& operation;
  DType dtype;
  ReduceOp::Kind reduction;
  int root, ranks;
  std::uint64_t bytes, count;
  std::optional<CollFigure> apart = {}, same = {};

  [[nodiscard]] double algorithm_bandwidth(const CollFigure& figure) const {  ///< GB/s
    return static_cast<double>(bytes) / figure.seconds / 1e9;
  }
  [[nodiscard]] double bus_bandwidth(const CollFigure& figure) const {
    return algorithm_bandwidth(figure) * operation.bus_factor(ranks);
  }
};

/// What rank 0 tells.
class CollReport {
 public:
  virtual ~CollReport() = default;
  virtual void begin(const Comm& comm) = 0;
  virtual void row(const CollRow& row) = 0;
  /// The backend has no such operation.
  virtual void refused(const CollRow& row, const std::string& why) = 0;
};

/// Only rank 0 calls the report.
///   errors  corrupt (elements were wrong: how many; on rank 0), not_supported (nothing could be run), those
///   of
///           Comm::open and of the operations
[[nodiscard]] Result<void> run_coll_rank(const CollPlan& plan, const RankPlace& place, CollReport& report);

}  // namespace headrace::cli
