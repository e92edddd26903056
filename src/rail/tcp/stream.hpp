// SPDX-License-Identifier: Apache-2.0
// A connection as a stream. Where its NIC has a secret, both sides prove that they know it before it is open.
#pragma once

#include "base/unique_fd.hpp"
#include "rail/stream/stream.hpp"
#include "wire/handshake.hpp"

#include <optional>

namespace headrace::rail::tcp {

class TcpStream final : public stream::Stream {
 public:
  enum class State : std::uint8_t { connecting, proving, connected };
  /// `handshake`: of a NIC with a secret.
  TcpStream(UniqueFd socket, State state, std::optional<wire::Handshake> handshake);
  ~TcpStream() override;

  Result<void> watch(Epoll& epoll, std::uint64_t key) override;
  [[nodiscard]] bool is_open() const override { return state_ == State::connected; }
  Result<void> open() override;
  Result<std::size_t> send(std::span<const iovec> pieces) override;
  Result<void> tell_room(bool on) override;
  Result<std::size_t> receive(std::span<const iovec> places) override;

 private:
  Result<void> prove();
  Result<void> send_proof();

  UniqueFd socket_;
  State state_;
  std::optional<wire::Handshake> handshake_;
  bool peer_reads_ = false;  // why it was refused
  Epoll* epoll_ = nullptr;
  std::uint64_t key_ = 0;
};

}  // namespace headrace::rail::tcp
