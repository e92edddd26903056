// SPDX-License-Identifier: Apache-2.0
// A lane: memory that two processes share. The reader (the initiator) names runs of the owner's registered
// memory in it, and takes their bytes out of a ring.
//
// Each byte is copied twice, but by ordinary instructions, and the ring stays in the caches. For scattered
// pages that is faster than one copy by the kernel, which does work for each page (bench/notes/shm.md).
//
// `state` says which side writes a word:
//   idle     no server: all words are the reader's
//   called   the reader has asked for a server, and may withdraw that (called -> idle)
//   served   a thread of the owner serves: `given` and `taken_runs` are its words
//   refused  the owner does not serve what was asked, or has given the reader up: final
#pragma once

#include "base/unique_fd.hpp"
#include "host_link/memory_file.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace::shm {

/// A run in one region of the owner's.
struct LaneRun {
  std::uint32_t region_id = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

enum class LaneState : std::uint32_t { idle, called, served, refused };

/// Positions count from the lane's beginning and never wrap.
struct LaneWords {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  alignas(64) std::atomic<LaneState> state;
  alignas(64) std::atomic<std::uint64_t> asked;  ///< runs named; the reader's
  std::atomic<std::uint64_t> consumed;           ///< bytes taken out of the ring; the reader's
  std::atomic<std::uint32_t> dropped;            ///< the reader does not return
  alignas(64) std::atomic<std::uint64_t> given;  ///< bytes put into the ring
  std::atomic<std::uint64_t> taken_runs;         ///< as many were served when the last server left
  std::atomic<std::uint32_t> refused_region;     ///< the region that is not read through lanes; 0: none
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<LaneState>::is_always_lock_free);

inline constexpr std::uint64_t lane_runs = 1024;                ///< that may be asked for and not yet served
inline constexpr std::uint64_t lane_ring_bytes = 256 * 1024;    ///< a core's own cache holds it
inline constexpr std::uint64_t lane_chunk_bytes = 16 * 1024;    ///< copied at a time
inline constexpr std::uint64_t lane_publish_bytes = 32 * 1024;  ///< a position is published after so many

class LaneMemory {
 public:
  /// For the reader, which sends `file` to the owner.
  [[nodiscard]] static Result<std::unique_ptr<LaneMemory>> create(UniqueFd& file);
  /// For the owner. It trusts nothing in the file but its size.
  ///   errors   corrupt
  [[nodiscard]] static Result<std::unique_ptr<LaneMemory>> adopt(const UniqueFd& file);
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;

  [[nodiscard]] LaneWords& words() const { return *reinterpret_cast<LaneWords*>(head_.data()); }
  [[nodiscard]] LaneRun& run(std::uint64_t position) const {
    return reinterpret_cast<LaneRun*>(head_.data() + runs_offset)[position % lane_runs];
  }
  /// lane_ring_bytes from here on are contiguous.
  [[nodiscard]] std::byte* ring(std::uint64_t position) const {
    return ring_.data() + position % lane_ring_bytes;
  }

  std::atomic<bool> queued{false};  ///< at the owner: the pool has a task that will serve it

 private:
  LaneMemory(host_link::Mapping head, host_link::Mapping ring)
      : head_(std::move(head)), ring_(std::move(ring)) {}
  [[nodiscard]] static Result<std::unique_ptr<LaneMemory>> map(const UniqueFd& file);

  static constexpr std::size_t runs_offset = 4096;

  host_link::Mapping head_;
  host_link::Mapping ring_;  // mapped twice in a row
};

}  // namespace headrace::shm
