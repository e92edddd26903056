// SPDX-License-Identifier: Apache-2.0
// How the decode worker runs the tokens of its texts: with the whole model, as rank 0 of several that each
// run a part of it, or as one of several that share the experts and write texts of their own.
#pragma once

#include "cli/demo/worker.hpp"

#include <memory>

namespace headrace::cli::demo {

///   threads  one
class Decoder {
 public:
  virtual ~Decoder() = default;
  [[nodiscard]] virtual KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const = 0;
  [[nodiscard]] virtual Device device() const = 0;
  /// Called once, before this worker is ready. The agent keeps its place until this object is gone.
  virtual Result<void> meet_ranks(Agent& agent) = 0;

  /// Begins a text whose prompt is in its pages.
  virtual Result<void> begin(std::uint64_t id, const Sequence& sequence) = 0;
  /// Runs the next token of a text.
  virtual Result<void> take(std::uint64_t id, std::int64_t token, KvPool& pool, Sequence& sequence) = 0;
  /// Does this rank's part for the tokens of the others, and runs none of its own.
  virtual Result<void> take_part() { return {}; }
  /// The logits of the token that follows the last one taken.
  [[nodiscard]] virtual Result<std::span<const float>> logits() = 0;
  /// Forgets a text: its pages go to others. Does nothing if it has not begun.
  virtual Result<void> end(std::uint64_t id) = 0;
};

/// The whole model; with ranks that share the heads, rank 0, which tells the others the tokens. Then it waits
/// until all have come.
Result<std::unique_ptr<Decoder>> open_decoder(const WorkerOptions& options);

/// A rank other than 0: runs the tokens that rank 0 names until a signal ends the process.
Result<void> run_further_rank(const WorkerOptions& options);

}  // namespace headrace::cli::demo
