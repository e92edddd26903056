// SPDX-License-Identifier: Apache-2.0
// Pinned host memory through which one channel's payload passes between sockets and GPUs in one direction,
// and the GPUs' work on it. Sockets know host memory alone; GPUs gather into it before it is sent, and unpack
// what was received.
//
// Payload passes in parts. A part is taken, launched, and released in the order in which parts were taken;
// several are under way at once, so that GPU and socket work at the same time. The end of a part is a word in
// memory that its GPU writes.
#pragma once

#include "backends/tcp/byte_ring.hpp"
#include "backends/tcp/frame.hpp"
#include "backends/tcp/regions.hpp"
#include "gpu/pinned_memory.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace::tcp {

/// Bytes in a row of registered memory.
struct Stretch {
  const Region* region = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  [[nodiscard]] std::byte* at() const { return region->base + offset; }
};

/// Of the regions that a frame names the first that is a GPU's; null: there is none, or some of it cannot be
/// reached.
const Region* find_gpu_region(Regions::View& view, const RangeList& ranges, Access access);

/// What one launch moves between the ring and one GPU's memory: `count` entries from `first` on of the part's
/// lists.
struct GpuMove {
  std::size_t track = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t value = 0;  ///< that the track's word reaches with it; 0: not launched
};

struct GpuPart {
  enum class State : std::uint8_t { taken, running, done, failed };

  std::span<std::byte> bytes;  ///< of the ring
  State state = State::taken;
  bool by_copy_engine = false;
  std::uint64_t frame =
      0;  ///< the lane's owner's: which frame it is of, and which of its bytes it begins with
  std::uint64_t at = 0;

  // The lane's own.
  std::vector<GpuMove> moves;
  std::vector<std::pair<Stretch, std::byte*>> from_host;  // what is to be copied into `bytes`, and where
  std::uint64_t* sources = nullptr;                       // lists in the ring, which the GPUs read there
  std::uint64_t* targets = nullptr;
  std::uint32_t* lengths = nullptr;
};

/// Not thread-safe: the channel's lock of its direction guards it.
class GpuLane {
 public:
  enum class Way : std::uint8_t {
    gather,  ///< GPUs to ring
    unpack,  ///< ring to GPUs
  };

  /// Nothing is allocated before the first part is taken. `part_bytes`: of the longest part; twice that, or
  /// more, is `ring_bytes`.
  GpuLane(Way way, std::uint64_t ring_bytes, std::uint64_t part_bytes)
      : way_(way), ring_bytes_(ring_bytes), part_bytes_(part_bytes) {}
  /// Waits for what runs.
  ~GpuLane() { wait(); }
  GpuLane(const GpuLane&) = delete;
  GpuLane& operator=(const GpuLane&) = delete;

  /// Makes a part of these stretches (1 to max_ranges, part_bytes together at most), back to back. The host's
  /// are copied into it when it is launched to gather; to be unpacked, a part is of GPUs' memory alone.
  /// `pins`: any GPU that is open. Null: there is no room now. It stays where it is until it is released.
  ///   errors  exhausted, backend_failed, not_found (memory that was freed while it was registered)
  [[nodiscard]] Result<GpuPart*> take(std::span<const Stretch> stretches, const gpu::WorkingGpu& pins);
  /// Begins the work on a part that was taken. What cannot be begun has failed.
  void launch(GpuPart& part);
  /// Looks whether the part has ended: done, or failed, which `fault` explains.
  [[nodiscard]] bool ended(GpuPart& part);
  /// Looks for the end of a small part that was launched, for some microseconds.
  [[nodiscard]] bool ended_soon(GpuPart& part);
  /// Waits until nothing runs.
  void wait();

  [[nodiscard]] GpuPart& oldest() { return parts_.front(); }
  [[nodiscard]] GpuPart& newest() { return parts_.back(); }
  [[nodiscard]] const std::deque<GpuPart>& parts() const { return parts_; }
  void release_oldest();
  void drop_newest();  ///< which was not launched

  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  /// The lane's queue on one GPU.
  struct Track {
    std::shared_ptr<const gpu::WorkingGpu> gpu;
    gpu::Stream stream;
    gpu::TablePool::Table table;  // here the word that tells ends, there the kernels' state
    std::uint64_t launches = 0;
    std::uint32_t looks = 0;  // in vain
    bool failed = false;
    [[nodiscard]] std::uint64_t* word() const { return reinterpret_cast<std::uint64_t*>(table.host()); }
  };

  Result<void> open(const gpu::WorkingGpu& gpu);
  Result<std::size_t> track_of(const Region& region);
  Result<void> name_tracks(std::span<const Stretch> stretches, std::vector<GpuMove>& moves);
  void write_lists(GpuPart& part, std::span<const Stretch> stretches, std::uint64_t longest);
  [[nodiscard]] bool copy_from_host(const GpuPart& part);
  void queue(GpuPart& part);
  [[nodiscard]] cuda::Outcome begin(Track& track, const GpuPart& part, const GpuMove& move);
  [[nodiscard]] cuda::Outcome copy(Track& track, const GpuPart& part, const GpuMove& move);
  [[nodiscard]] bool done(const GpuMove& move) const;
  void ask(Track& track);
  [[nodiscard]] cuda::Address mapped(const void* at) const;

  const Way way_;
  const std::uint64_t ring_bytes_;
  const std::uint64_t part_bytes_;
  gpu::PinnedMemory memory_;
  std::optional<ByteRing> ring_;  // over memory_
  std::vector<std::unique_ptr<Track>> tracks_;
  std::deque<GpuPart> parts_;
  std::string fault_;
};

}  // namespace headrace::tcp
