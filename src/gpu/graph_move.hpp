// SPDX-License-Identifier: Apache-2.0
// A move inside CUDA graphs. Between replays its pages can be changed.
//
// The kernel reads its page indices and their count from a table in device memory. New indices are queued on
// a stream as copies to that table, so the order of the stream decides which replays see them. Neither the
// host nor the graph waits, and the graph is not built again.
#pragma once

#include "gpu/prepared_move.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::gpu {

///   threads  one at a time; `replays` and `take_refused` from any thread
class GraphMove {
 public:
  ///   errors   exhausted, backend_failed
  [[nodiscard]] static Result<std::unique_ptr<GraphMove>> prepare(std::shared_ptr<const Mover> mover,
                                                                  const headrace_prepare_v1& args,
                                                                  const PreparedMove::PageLimits& limits,
                                                                  const PreparedMove::AddressOf& local,
                                                                  const PreparedMove::AddressOf& remote);
  /// Waits for queued changes, which write to the table that is freed now. The graph is not replayed any
  /// more.
  ~GraphMove();
  GraphMove(const GraphMove&) = delete;
  GraphMove& operator=(const GraphMove&) = delete;

  /// Queues the move on a stream that is being captured.
  [[nodiscard]] Result<void> record(cuda::Stream stream) { return move_.record(stream); }
  /// Queues on a stream that is being captured that every replay reads page indices from GPU memory.
  ///   errors   as set_indices
  [[nodiscard]] Result<void> record_indices(const headrace_indices_v1& indices);

  /// Queues new page indices on a stream. Indices in host memory have been checked, and are copied before it
  /// returns.
  ///   errors   not_supported (the list is not uniform), would_block (too many changes are queued),
  ///            invalid_argument
  [[nodiscard]] Result<void> set_indices(const headrace_indices_v1& change);

  [[nodiscard]] std::uint64_t replays() const noexcept { return move_.replays(); }
  struct Refused {
    std::uint64_t page = 0;
    bool of_target = false;  ///< true: the target's index was out of bounds; false: the source's
  };
  /// One of the pages that replays have skipped since the last call.
  [[nodiscard]] std::optional<Refused> take_refused() noexcept;

 private:
  /// Pinned memory that a queued copy reads until the event.
  struct Staging {
    TablePool::Table table;
    Event read;
  };

  GraphMove(std::shared_ptr<const Mover> mover, PreparedMove move, Event changed, std::uint64_t most)
      : mover_(std::move(mover)), move_(std::move(move)), changed_(std::move(changed)), most_(most) {}

  [[nodiscard]] Result<void> check(const headrace_indices_v1& change) const;
  [[nodiscard]] Result<Staging*> free_staging();
  [[nodiscard]] Result<void> queue(const headrace_indices_v1& change, cuda::Address local,
                                   cuda::Address remote);
  [[nodiscard]] Result<void> queue_from_gpu(const headrace_indices_v1& change);
  [[nodiscard]] Result<void> set_from_host(const headrace_indices_v1& change);

  const std::shared_ptr<const Mover> mover_;
  PreparedMove move_;
  const Event changed_;       // after the last change that was queued outside a graph
  const std::uint64_t most_;  // pages
  std::vector<Staging> staging_;
};

}  // namespace headrace::gpu
