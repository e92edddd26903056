// SPDX-License-Identifier: Apache-2.0
// The provider of sockets: a local address is a NIC. docs/decisions/0016, section 5.
#pragma once

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"
#include "rail/provider.hpp"
#include "rail/tcp/nic_state.hpp"
#include "rail/tcp/peer.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail::tcp {

struct Options {
  std::chrono::nanoseconds hello_timeout = std::chrono::seconds(5);  ///< of a peer and of a stranger
  std::size_t most_strangers = 64;  ///< that have not said hello; one more, and the oldest is closed
};

/// Peers are not authenticated: any program that reaches the port can say hello. Bytes are not encrypted.
class TcpProvider final : public Provider {
 public:
  /// Listens. `where`: an IPv4 or IPv6 address of this host, or the name of an interface.
  ///   errors  not_found (neither), those of the system
  static Result<std::unique_ptr<TcpProvider>> open(const std::string& where, const Options& options = {});
  ~TcpProvider() override;

  [[nodiscard]] const ProviderInfo& info() const override { return info_; }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] Health health() const override { return {}; }

  Result<Registered> register_memory(const Memory& memory) override;
  void deregister(MemoryId memory) override { state_.memories.remove(memory); }
  Result<PeerId> add_peer(std::string_view address, std::string_view hello) override;
  void drop_peer(PeerId peer) override;
  Result<RemoteId> load_memory(PeerId peer, std::string_view key) override;
  void unload_memory(PeerId peer, RemoteId memory) override;

  Status post_write(const Write& write) override;
  Status post_read(const Read& read) override;
  Status post_message(PeerId peer, const LocalRange& bytes, std::uint64_t token) override;
  Status post_receive(const LocalRange& room, std::uint64_t token) override;
  void cancel(PeerId peer, std::uint64_t token) override;

  std::size_t poll(std::span<Event> events) override;
  [[nodiscard]] int descriptor() const override { return state_.epoll.fd(); }
  bool arm() override;

 private:
  TcpProvider(Epoll epoll, UniqueFd listener, UniqueFd timer, const SocketAddress& local,
              const Options& options);

  Peer* find(PeerId peer);
  PeerId make_peer(Peer::Role role, const std::string& where, UniqueFd socket, std::uint64_t wanted_life = 0,
                   std::string_view hello = {});
  void accept_strangers();
  void limit_strangers();
  void pause_listening();
  void serve_offers();
  void flush_all();
  void take_sockets();
  void look_at_time();
  void forget_strangers();
  [[nodiscard]] std::uint64_t next_deadline_ns() const;

  const Options options_;
  NicState state_;
  const UniqueFd listener_, timer_;
  const SocketAddress local_;
  std::string address_;
  ProviderInfo info_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;  // until dropped; strangers among them
  std::vector<PeerId> greeting_;                   // whose hello has not come, oldest first
  std::uint64_t next_peer_ = 2;                    // what is below are keys of the epoll set
  std::uint64_t listen_again_ns_ = 0;              // 0: it listens
};

}  // namespace headrace::rail::tcp
