// SPDX-License-Identifier: Apache-2.0
// A move between host memory that may not be pinned and a GPU: piece by piece through pinned slots, by
// threads of the host's pool and the GPU at the same time.
//
// Memory cannot be pinned where another region of the process has pinned a part of its first or last page,
// where it is a file's that may not be written, or where the system says no. Threads then copy pieces of it
// into slots, and the GPU scatters these to the pages at the other side, or the other way round. Each thread
// has two slots: while the GPU works on one it fills, or empties, the other.
#pragma once

#include "gpu/gpus.hpp"
#include "gpu/staging.hpp"
#include "memory/page_cursor.hpp"

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace headrace::gpu {

/// One for each request. Held by its request, and by the threads that work on it.
class StagedMove final : public Staging::Work, public std::enable_shared_from_this<StagedMove> {
 public:
  using HostAddressOf = std::function<std::byte*(void* region)>;
  using AddressOf = PreparedMove::AddressOf;

  /// The local side is the host's, and the remote one within reach of the GPU. `args` and what it points to,
  /// `gpu` and `staging` stay until the last post has ended.
  StagedMove(Staging& staging, const WorkingGpu& gpu, const headrace_prepare_v1& args, HostAddressOf local,
             AddressOf remote);

  /// The last post has ended.
  ///   errors   exhausted (the host's pool takes no more): it has not begun
  [[nodiscard]] Result<void> post();
  /// Whether no thread and no GPU works on the last post any more. A load.
  [[nodiscard]] bool poll_done() const noexcept { return at_work_.load(std::memory_order_acquire) == 0; }
  /// Of the last post, which has ended.
  [[nodiscard]] Result<void> outcome() const;

  [[nodiscard]] const std::shared_ptr<const Device>& device() const override { return gpu_.device; }
  void run(const Staging::Lane& lane) override;
  void refused(Error why) override;

 private:
  /// A piece of the request in one slot.
  struct Piece {
    std::vector<iovec> hosts;  ///< its runs, in the slot's order and without gaps there
    std::vector<std::uint64_t> slots, remotes, lengths;
    std::vector<std::uint32_t> remote_of;
    std::optional<PreparedMove> move;
  };
  void list(Piece& piece, std::size_t number) const;
  [[nodiscard]] Result<void> begin(Piece& piece, std::size_t number, const Staging::Lane& lane,
                                   std::size_t slot);
  [[nodiscard]] Result<void> end(Piece& piece, std::byte* slot) const;
  [[nodiscard]] Result<void> await(const PreparedMove& move) const;
  void note(Error why);
  void leave() { at_work_.fetch_sub(1, std::memory_order_acq_rel); }

  Staging& staging_;
  const WorkingGpu& gpu_;
  const headrace_prepare_v1 args_;
  const HostAddressOf local_;
  const AddressOf remote_;
  std::unordered_map<void*, std::uint32_t> remote_numbers_;
  std::vector<PagePosition> cuts_;  ///< piece i lies between i and i + 1

  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> at_work_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<Error> why_;
};

}  // namespace headrace::gpu
