// SPDX-License-Identifier: Apache-2.0
// A move that lies in CUDA graphs, and what may be changed of it between replays: which pages it moves.
//
// The kernel reads the numbers of its pages, and how many there are, from a table in device memory. New
// numbers are queued on a stream as copies to that table, so the stream's order decides which replays see
// them; neither the host nor the graph waits, and the graph is not made anew.
#pragma once

#include "gpu/prepared_move.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::gpu {

///   threads  one at a time, but `replays` and `take_refused`: any
class GraphMove {
 public:
  ///   errors   exhausted, backend_failed
  [[nodiscard]] static Result<std::unique_ptr<GraphMove>> prepare(std::shared_ptr<const Mover> mover,
                                                                  const headrace_prepare_v1& args,
                                                                  const PreparedMove::PageLimits& limits,
                                                                  const PreparedMove::AddressOf& local,
                                                                  const PreparedMove::AddressOf& remote);
  /// Waits for changes that are queued: they write to the table, which goes. No replay comes any more.
  ~GraphMove();
  GraphMove(const GraphMove&) = delete;
  GraphMove& operator=(const GraphMove&) = delete;

  /// Queues the move on a stream that is being captured.
  [[nodiscard]] Result<void> record(cuda::Stream stream) { return move_.record(stream); }
  /// Queues on a stream that is being captured that numbers of pages in GPU memory are read at every replay.
  ///   errors   as of set_indices
  [[nodiscard]] Result<void> record_indices(const headrace_indices_v1& indices);

  /// Queues new numbers of pages on a stream. Those in host memory have been checked and are copied before it
  /// returns.
  ///   errors   not_supported (the list is not regular), would_block (changes are queued up),
  ///   invalid_argument
  [[nodiscard]] Result<void> set_indices(const headrace_indices_v1& change);

  [[nodiscard]] std::uint64_t replays() const noexcept { return move_.replays(); }
  struct Refused {
    std::uint64_t page = 0;
    bool of_target = false;  ///< whose number was out of bounds
  };
  /// One of the pages that replays passed over since it was asked last.
  [[nodiscard]] std::optional<Refused> take_refused() noexcept;

 private:
  /// Pinned memory that a queued copy reads, until the event.
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
  const Event changed_;       // behind the last change that was queued outside of a graph
  const std::uint64_t most_;  // pages
  std::vector<Staging> staging_;
};

}  // namespace headrace::gpu
