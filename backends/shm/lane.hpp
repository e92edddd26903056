// SPDX-License-Identifier: Apache-2.0
// A lane: memory that two processes share, in which one names stretches of the other's registered memory and
// finds their bytes in a ring.
//
// Each byte is copied twice, but by ordinary instructions, and the ring stays in the caches: for scattered
// pages that is quicker than one copy in the kernel, which pays for each page by itself (bench/notes/shm.md).
//
// Who may write which word depends on `state`:
//   idle     nobody serves: all words are the reader's
//   called   the reader has asked for somebody to serve, and may still take that back (called -> idle)
//   served   a thread of the owner's serves; `given` and `taken_stretches` are its
//   refused  the owner will not serve what was asked, or has given the reader up: for good
#pragma once

#include "base/unique_fd.hpp"
#include "host_link/memory_file.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace headrace::shm {

/// A stretch of one region of the owner's.
struct LaneStretch {
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
  alignas(64) std::atomic<std::uint64_t> asked;  ///< stretches named; the reader's
  std::atomic<std::uint64_t> consumed;           ///< bytes taken out of the ring; the reader's
  std::atomic<std::uint32_t> dropped;            ///< the reader will not come back
  alignas(64) std::atomic<std::uint64_t> given;  ///< bytes put into the ring
  std::atomic<std::uint64_t> taken_stretches;    ///< as many were served when the last server left
  std::atomic<std::uint32_t> refused_region;     ///< which one's memory is not read this way; 0: none
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<LaneState>::is_always_lock_free);

inline constexpr std::uint64_t lane_stretches = 1024;         ///< that may be asked for and not yet served
inline constexpr std::uint64_t lane_ring_bytes = 256 * 1024;  ///< a core's own cache holds it
inline constexpr std::uint64_t lane_piece_bytes = 16 * 1024;  ///< copied at a time
inline constexpr std::uint64_t lane_told_bytes = 32 * 1024;   ///< after so many the other side is told

class LaneMemory {
 public:
  /// Of the reader, which sends `file` to the owner.
  [[nodiscard]] static Result<std::unique_ptr<LaneMemory>> create(UniqueFd& file);
  /// Of the owner. Nothing in it is trusted but its size.
  ///   errors   corrupt
  [[nodiscard]] static Result<std::unique_ptr<LaneMemory>> adopt(const UniqueFd& file);
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;

  [[nodiscard]] LaneWords& words() const { return *reinterpret_cast<LaneWords*>(head_.data()); }
  [[nodiscard]] LaneStretch& stretch(std::uint64_t position) const {
    return reinterpret_cast<LaneStretch*>(head_.data() + stretches_offset)[position % lane_stretches];
  }
  /// lane_ring_bytes from here on lie in one piece.
  [[nodiscard]] std::byte* ring(std::uint64_t position) const {
    return ring_.data() + position % lane_ring_bytes;
  }

  std::atomic<bool> queued{false};  ///< at the owner: a task that will serve it lies with the pool

 private:
  LaneMemory(host_link::Mapping head, host_link::Mapping ring)
      : head_(std::move(head)), ring_(std::move(ring)) {}
  [[nodiscard]] static Result<std::unique_ptr<LaneMemory>> map(const UniqueFd& file);

  static constexpr std::size_t stretches_offset = 4096;

  host_link::Mapping head_;
  host_link::Mapping ring_;  // mapped twice in a row
};

/// Copies what a peer asked for, and fetches `next` meanwhile. Our threads change that memory when the peer
/// has told them, by way of its own process, that it has its bytes; the thread sanitizer cannot see that, nor
/// does it see what attach reads.
void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes,
                   std::span<const std::byte> next) noexcept;

/// Waits longer each time: spins, then gives the core away, then sleeps.
class Patience {
 public:
  void wait() noexcept;
  /// Since it first gave the core away.
  [[nodiscard]] std::uint64_t waited_ns() const noexcept;
  [[nodiscard]] bool is_long() const noexcept { return rounds_ > spins; }

 private:
  static constexpr std::uint32_t spins = 400;
  static constexpr std::uint64_t yield_ns = 200'000;
  static constexpr std::uint64_t sleep_ns = 50'000;

  std::uint32_t rounds_ = 0;
  std::uint64_t since_ns_ = 0;
};

}  // namespace headrace::shm
