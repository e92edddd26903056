// SPDX-License-Identifier: Apache-2.0
// The NICs of one group and the links over them: what the group's worker drives.
#pragma once

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "rail/link.hpp"
#include "rail/provider.hpp"
#include "rail/region.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace::rail {

class EngineEvents : public LinkEvents {
 public:
  /// A peer has connected.
  virtual void linked(Link& link) = 0;
};

/// Not thread-safe: one thread calls it, but for `register_memory` and `deregister`.
class Engine {
 public:
  /// `events` and `clock` outlive it.
  ///   errors  invalid_argument (no NIC, more than max_rails), those of the providers
  static Result<std::unique_ptr<Engine>> open(std::vector<std::unique_ptr<Provider>> providers,
                                              EngineEvents& events, const Clock& clock,
                                              const LinkOptions& options = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// For `connect` of peers.
  [[nodiscard]] std::string address() const;
  /// A link to that engine, which takes posts at once. The engine owns it until `forget`.
  ///   errors  corrupt (the address)
  Result<Link*> connect(std::string_view address);
  /// Of a link that is lost; `Link::close` ends one that is not.
  void forget(Link& link);

  /// Memory, for all NICs.
  ///   errors  those of the providers; nothing is registered then
  Result<LocalRegion> register_memory(const Memory& memory);
  /// No peer reaches it from the return on. No request uses it.
  void deregister(const LocalRegion& region);
  [[nodiscard]] static std::string descriptor(const LocalRegion& region) { return encode_keys(region.keys); }
  /// A peer's memory by its descriptor, for requests on this link.
  ///   errors  corrupt
  static Result<RemoteRegion> load(std::string_view descriptor);

  /// Room for a message, of any peer or of one. Its end comes by `received`.
  ///   errors  invalid_argument (outside of its region), not_supported (memory of a GPU), peer_lost (that
  ///   link
  ///           is lost), would_block (`Receives::most` wait)
  Status post_receive(const Receive& receive);
  /// `received` follows, with canceled, or with ok if a message was nearly there. If a message has begun to
  /// come, its sender hears `canceled`. A deadline is the caller's: it cancels at it. Unknown tokens are
  /// ignored.
  void cancel_receive(std::uint64_t token);

  /// Does what there is to do, without waiting. Returns how many events there were.
  std::size_t poll();
  /// When `poll` is needed although no NIC has anything to do: for timeouts, retries and heartbeats.
  [[nodiscard]] std::uint64_t next_ns() const;
  /// Of links, peers, receives and messages of NICs, what it holds: nothing once all links are forgotten.
  [[nodiscard]] std::size_t held() const;

 private:
  Engine(std::vector<std::unique_ptr<Nic>> nics, EngineEvents& events, const Clock& clock,
         const LinkOptions& options);
  [[nodiscard]] std::vector<std::string> nic_addresses() const;
  static std::string encode_keys(const std::vector<std::string>& keys);
  void take(std::uint32_t nic, const Event& event, std::uint64_t now_ns);
  void joined(std::uint32_t nic, const Event& event, std::uint64_t now_ns);
  Link& link_of(const RailHello& hello);
  Link* link_of_peer(std::uint32_t nic, PeerId peer);
  void match_messages();
  void look_at_absence(std::uint64_t now_ns);

  Nics nics_;
  Receives receives_;
  EngineEvents& events_;
  const Clock& clock_;
  const LinkOptions options_;
  const std::uint64_t id_;
  std::vector<std::unique_ptr<Link>> links_;
  std::uint64_t polled_ns_;
  std::vector<std::unordered_map<PeerId, Link*>> by_peer_;  // by NIC; those that an event has asked for
};

}  // namespace headrace::rail
