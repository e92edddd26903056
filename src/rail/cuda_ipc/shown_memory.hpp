// SPDX-License-Identifier: Apache-2.0
// GPU memory that one process of this host has shown to another: packets over the socket of a stream, and
// what has come in them.
#pragma once

#include "gpu/closer.hpp"
#include "gpu/device.hpp"
#include "gpu/peer_memory.hpp"
#include "rail/cuda_ipc/closed_memories.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::rail::cuda_ipc {

inline constexpr std::size_t max_show_bytes = 1024;
inline constexpr std::uint32_t max_shown_pieces = 4096;    ///< physical allocations of one memory
inline constexpr std::size_t max_shown_memories = 65'536;  ///< of one peer

/// One packet; memory with many pieces takes several, which come one after the other.
struct ShowPacket {
  enum class Says : std::uint32_t {
    gone,    ///< memory of the sender: close it. The rest is 0
    shown,   ///< memory of the sender
    closed,  ///< memory of the receiver, which it has hidden: it is open here no more. The rest is 0
  };
  std::uint32_t memory = 0;
  Says says = Says::shown;
  std::uint32_t gpu = 0;      ///< mark_of
  std::uint64_t address = 0;  ///< there
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< as of gpu::SharedMemory
  std::uint32_t pieces = 0;  ///< in all; 0: by `handle`
  cuda::IpcMemoryHandle handle{};
  std::vector<std::uint64_t> piece_bytes = {};  ///< of those that come with this packet, one descriptor each
};
[[nodiscard]] std::string encode(const ShowPacket& packet);
/// Bytes of a peer.
///   errors  corrupt
[[nodiscard]] Result<ShowPacket> read_show_packet(std::string_view bytes, std::size_t descriptors);

/// A stretch of the peer's memory as one of our GPUs reaches it. What holds it keeps it mapped.
struct ReachedMemory {
  std::shared_ptr<const void> mapping;
  cuda::Address address = 0;
};

/// What one peer has shown. One thread at a time.
class ShownMemories {
 public:
  /// `same_process`: the memory is reached as it is. `closed` hears of those that are gone and closed; null:
  /// nobody does.
  explicit ShownMemories(bool same_process, std::shared_ptr<ClosedMemories> closed = nullptr)
      : same_process_(same_process), closed_(std::move(closed)) {}

  /// A packet that says `shown` or `gone`.
  ///   errors  corrupt, exhausted (too many)
  Result<void> take(ShowPacket packet, std::vector<UniqueFd> descriptors);
  /// Its GPU, by its mark; nullopt: nothing is shown there, not yet perhaps.
  [[nodiscard]] std::optional<std::uint32_t> gpu_of(std::uint64_t address, std::uint64_t bytes) const;
  /// Opens it for that GPU at the first call, which may take milliseconds. `closer` outlives what is opened.
  ///   errors  not_found (nothing is shown there, or it was freed), not_supported (this GPU has no path to
  ///   it),
  ///           corrupt, backend_failed
  Result<ReachedMemory> reach(const std::shared_ptr<const gpu::Device>& device, gpu::Closer& closer,
                              std::uint64_t address, std::uint64_t bytes);

 private:
  /// Waits for the work of a GPU when it goes. The driver waits for kernels inside the call that closes
  /// memory, and lets no other call of the process go on meanwhile (seen on an H100): this wait comes before
  /// it.
  class Quiet {
   public:
    explicit Quiet(std::shared_ptr<const gpu::Device> device) : device_(std::move(device)) {}
    Quiet(Quiet&&) noexcept = default;
    Quiet& operator=(Quiet&&) = delete;
    ~Quiet() {
      if (device_) static_cast<void>(device_->wait_idle());
    }

   private:
    std::shared_ptr<const gpu::Device> device_;
  };
  struct Opened {  // its members go from the last on
    std::shared_ptr<const void> hold;
    gpu::PeerMemory memory;
    Quiet quiet;
  };
  struct Shown {
    std::shared_ptr<const void> hold;
    std::uint32_t gpu = 0;
    std::uint64_t address = 0;
    std::uint32_t pieces = 0;
    gpu::SharedMemory shared;
    std::map<int, std::shared_ptr<const Opened>> opened;  // by our GPU
  };
  [[nodiscard]] const Shown* find(std::uint64_t address, std::uint64_t bytes) const;

  const bool same_process_;
  const std::shared_ptr<ClosedMemories> closed_;
  std::map<std::uint32_t, Shown> shown_;  // by the peer's number
};

}  // namespace headrace::rail::cuda_ipc
