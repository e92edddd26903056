// SPDX-License-Identifier: Apache-2.0
// A connection as a stream.
#pragma once

#include "base/unique_fd.hpp"
#include "rail/stream/stream.hpp"

namespace headrace::rail::tcp {

class TcpStream final : public stream::Stream {
 public:
  enum class State : bool { connecting, connected };
  TcpStream(UniqueFd socket, State state) : socket_(std::move(socket)), state_(state) {}
  ~TcpStream() override;

  Result<void> watch(Epoll& epoll, std::uint64_t key) override;
  [[nodiscard]] bool is_open() const override { return state_ == State::connected; }
  Result<void> open() override;
  Result<std::size_t> send(std::span<const iovec> pieces) override;
  Result<void> tell_room(bool on) override;
  Result<std::size_t> receive(std::span<const iovec> places) override;

 private:
  UniqueFd socket_;
  State state_;
  Epoll* epoll_ = nullptr;
  std::uint64_t key_ = 0;
};

}  // namespace headrace::rail::tcp
