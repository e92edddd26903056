// SPDX-License-Identifier: Apache-2.0
// A NIC whose peers are streams: sockets, or rings of shared memory. What derives from it says how a peer is
// reached and how one comes in.
#pragma once

#include "base/unique_fd.hpp"
#include "rail/provider.hpp"
#include "rail/stream/nic_state.hpp"
#include "rail/stream/peer.hpp"
#include "rail/stream/stream.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail::stream {

struct Options {
  std::chrono::nanoseconds hello_timeout = std::chrono::seconds(5);  ///< of a peer and of a stranger
  std::size_t most_strangers = 64;  ///< that have not said hello; one more, and the oldest is closed
  /// Peers take no descriptor of the process when fewer are left: it has other uses for them.
  std::uint64_t kept_descriptors = 64;
};

class StreamProvider : public Provider {
 public:
  ~StreamProvider() override;

  [[nodiscard]] const ProviderInfo& info() const override { return info_; }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] Health health() const override { return {}; }

  Result<Registered> register_memory(const Memory& memory) override;
  void deregister(MemoryId memory) override;
  [[nodiscard]] bool is_open_at_peers(MemoryId memory) override;
  Result<PeerId> add_peer(std::string_view address, std::string_view hello) override;
  void drop_peer(PeerId peer) override;
  Result<RemoteId> load_memory(PeerId peer, std::string_view key) override;
  void unload_memory(PeerId peer, RemoteId memory) override;

  Status post_write(const Write& write) override;
  Status post_read(const Read& read) override;
  Status post_message(PeerId peer, const LocalRange& bytes, std::uint64_t token) override;
  Status post_receive(const LocalRange& room, std::uint64_t token) override;
  void cancel(PeerId peer, std::uint64_t token) override;
  bool heard_from(PeerId peer) override;

  std::size_t poll(std::span<Event> events) override;
  [[nodiscard]] int descriptor() const override { return state_.epoll.fd(); }
  bool arm() override;

 protected:
  struct Parts {
    Epoll epoll;
    UniqueFd timer;

    /// The listener is watched, and stays its owner's.
    static Result<Parts> open(int listener);
  };
  /// `life`: drawn at random; peers that mean another one are refused.
  StreamProvider(Parts parts, int listener, const Options& options, std::uint64_t life);

  [[nodiscard]] std::uint64_t life() const { return state_.life; }
  void set_address(std::string address) { address_ = std::move(address); }
  ProviderInfo& changeable_info() { return info_; }
  /// For a destructor: streams go before what they use.
  void drop_all() { peers_.clear(); }

  /// Begins a stream to the NIC at that address. Does not wait.
  ///   errors  corrupt, not_supported, those of the network
  virtual Result<NewStream> reach(std::string_view address) = 0;
  /// A stream that has come in.
  ///   errors  would_block: none waits; not_supported: it may not; others: none can be taken now
  virtual Result<NewStream> accept() = 0;
  /// False: this pass may do without a system call, for peers have other ways to tell their news.
  virtual bool must_ask_system() { return true; }
  /// Memory of a GPU that the NIC takes: which it is; null: nobody looks.
  ///   errors  those of the driver
  virtual Result<std::shared_ptr<const gpu::MemoryIdentity>> identify(const Memory& /*memory*/) {
    return std::shared_ptr<const gpu::MemoryIdentity>();
  }

 private:
  Peer* find(PeerId peer);
  PeerId make_peer(Peer::Role role, NewStream made, std::string_view hello = {});
  void accept_strangers();
  void limit_strangers();
  void pause_listening();
  void serve_offers();
  void flush_all();
  void look_at_peers(bool slept);
  void take_events();
  void look_at_time();
  void forget_strangers();
  void hide_gone();
  [[nodiscard]] std::uint64_t next_deadline_ns() const;

  const Options options_;
  NicState state_;
  const UniqueFd timer_;
  const int listener_;
  std::string address_;
  ProviderInfo info_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;  // until dropped; strangers among them
  std::vector<PeerId> greeting_;                   // whose hello has not come, oldest first
  std::uint64_t next_peer_ = 2;                    // what is below are keys of the epoll set
  std::uint64_t listen_again_ns_ = 0;              // 0: it listens
  bool armed_ = false;
  std::mutex gone_mutex_;
  std::vector<MemoryId> gone_;  // of GPUs: peers are to hear of it
};

}  // namespace headrace::rail::stream
