// SPDX-License-Identifier: Apache-2.0
// A peer of this host as a stream: bytes go through rings of shared memory. The socket over which these came
// tells that the peer has gone.
#pragma once

#include "base/unix_socket.hpp"
#include "host_link/peer_process.hpp"
#include "rail/shm/pipe.hpp"
#include "rail/stream/stream.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace headrace::rail::shm {

inline constexpr std::uint64_t stream_ring_bytes = 256 * 1024;

class ShmStream final : public stream::Stream {
 public:
  /// To the NIC that listens at `path`; makes the rings.
  ///   errors  not_found, peer_lost (nobody listens there), not_supported (another user), those of the system
  static Result<std::unique_ptr<ShmStream>> connect(const std::string& path);
  /// Of a NIC that has connected here; the rings will come.
  ///   errors  as above
  static Result<std::unique_ptr<ShmStream>> accept(UnixSocket socket);
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

 private:
  ShmStream(UnixSocket socket, host_link::PeerProcess process)
      : socket_(std::move(socket)), process_(std::move(process)) {}
  static Result<std::unique_ptr<ShmStream>> of(UnixSocket socket);
  Result<void> watch_one(int fd);
  /// The peer has closed, or ended. What it wrote before is still to be read.
  [[nodiscard]] bool peer_ended() const;

  UnixSocket socket_;
  host_link::PeerProcess process_;
  std::optional<Pipe> pipe_;
  Epoll* epoll_ = nullptr;
  std::uint64_t key_ = 0;
  bool hung_up_ = false;
  bool wants_room_ = false;
};

}  // namespace headrace::rail::shm
