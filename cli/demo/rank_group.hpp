// SPDX-License-Identifier: Apache-2.0
// One rank of the decode worker with the communicator in which the parts of all ranks are added.
#pragma once

#include "cli/demo/messages.hpp"
#include "cli/demo/rank_model.hpp"
#include "cli/demo/worker.hpp"

#include <headrace/comm.hpp>

namespace headrace::cli::demo {

///   threads  one
class RankGroup {
 public:
  /// Opens this rank's part of the model and waits until all ranks have come.
  ///   errors  those of RankModel::open and Comm::open
  static Result<RankGroup> join(const WorkerOptions& options);

  [[nodiscard]] RankModel& model() { return model_; }
  [[nodiscard]] const RankModel& model() const { return model_; }
  [[nodiscard]] int size() const { return comm_.size(); }

  /// Runs the next token of a sequence, as every rank does at the same time.
  ///   errors  those of the communicator: they name the rank that is gone
  Result<void> take(std::int64_t token, KvPool& pool, Sequence& sequence);

 private:
  RankGroup(RankModel model, Comm comm) : model_(std::move(model)), comm_(std::move(comm)) {}

  RankModel model_;
  Comm comm_;
};

}  // namespace headrace::cli::demo
