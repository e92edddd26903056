// SPDX-License-Identifier: Apache-2.0
// A peer of this host as a stream: bytes go through rings of shared memory. The socket over which these came
// tells that the peer has gone.
#pragma once

#include "base/unix_socket.hpp"
#include "gpu/gpus.hpp"
#include "host_link/peer_process.hpp"
#include "rail/cuda_ipc/shown_memory.hpp"
#include "rail/shm/pipe.hpp"
#include "rail/stream/stream.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace headrace::rail::shm {

inline constexpr std::uint64_t stream_ring_bytes = 256 * 1024;

/// How this side takes long writes of the peer.
enum class Copies : bool {
  through_rings,
  by_the_system,  ///< once, out of the peer's memory, where the system allows that
};

struct Ways {
  Copies copies = Copies::by_the_system;
  gpu::Gpus* gpus = nullptr;  ///< none: host memory alone; outlives the stream
};

class ShmStream final : public stream::Stream {
 public:
  /// To the NIC that listens at `path`; makes the rings.
  ///   errors  not_found, peer_lost (nobody listens there), not_supported (another user), those of the system
  static Result<std::unique_ptr<ShmStream>> connect(const std::string& path, const Ways& ways);
  /// Of a NIC that has connected here; the rings will come.
  ///   errors  as above
  static Result<std::unique_ptr<ShmStream>> accept(UnixSocket socket, const Ways& ways);
  ~ShmStream() override;

  [[nodiscard]] std::string peer_text() const { return process_.text(); }

  Result<void> watch(Epoll& epoll, std::uint64_t key) override;
  [[nodiscard]] bool is_open() const override { return pipe_.has_value(); }
  Result<void> open() override;
  Result<std::size_t> send(std::span<const iovec> pieces) override;
  Result<void> tell_room(bool on) override;
  Result<std::size_t> receive(std::span<const iovec> places) override;

  void woken() override;
  [[nodiscard]] std::uint32_t news() override;
  [[nodiscard]] bool arm() override;
  void disarm() override;

  void greeted() override;
  [[nodiscard]] bool can_fetch() const override;
  [[nodiscard]] bool peer_fetches() const override;
  Result<std::size_t> fetch(std::span<const iovec> to, std::span<const iovec> from) override;
  Result<void> show(const stream::RegisteredMemory& memory) override;
  void hide(std::uint32_t memory) override;
  [[nodiscard]] bool is_open_there(std::uint32_t memory) const override { return hidden_.contains(memory); }
  Result<Begun> begin_copy(std::span<const iovec> to, std::span<const stream::Source> from,
                           std::optional<int> gpu) override;
  Result<void> check_peer() override;

 private:
  ShmStream(UnixSocket socket, host_link::PeerProcess process, const Ways& ways,
            std::shared_ptr<cuda_ipc::ClosedMemories> closed);
  static Result<std::unique_ptr<ShmStream>> of(UnixSocket socket, const Ways& ways);
  void begin(Pipe pipe);
  Result<void> send_packet(const cuda_ipc::ShowPacket& packet, std::span<const int> descriptors);
  bool take_packet();
  void tell(std::uint32_t memory, cuda_ipc::ShowPacket::Says says);
  void tell_closed();
  void send_untold();
  Result<std::byte*> fetch_whole(std::byte* to, const stream::Source& from);
  Result<std::shared_ptr<const gpu::WorkingGpu>> gpu_for(std::span<const stream::Source> from,
                                                         std::optional<int> gpu);
  Result<void> watch_one(int fd);
  /// The peer has closed, or ended. What it wrote before is still to be read.
  [[nodiscard]] bool peer_ended() const;

  UnixSocket socket_;
  host_link::PeerProcess process_;
  std::optional<Pipe> pipe_;
  Epoll* epoll_ = nullptr;
  std::uint64_t key_ = 0;
  const Ways ways_;
  const std::uint64_t nonce_;  // at its address the peer proves that it can copy from us
  const std::shared_ptr<cuda_ipc::ClosedMemories> closed_;  // of the peer; null: host memory alone
  cuda_ipc::ShownMemories shown_to_us_;
  std::set<std::uint32_t> shown_;            // to the peer
  std::set<std::uint32_t> hidden_;           // from it, which has not said that it has closed them
  std::deque<cuda_ipc::ShowPacket> untold_;  // the socket took no more
  bool hung_up_ = false;
  bool wants_room_ = false;
};

}  // namespace headrace::rail::shm
