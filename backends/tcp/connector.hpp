// SPDX-License-Identifier: Apache-2.0
// Brings a link about: finds the address at which the peer answers, shakes hands there, then opens the other
// sockets.
//
// Addresses are tried one after the other, the next one when the last has failed or kept us waiting; the
// first at which the expected incarnation of the peer shakes hands wins.
#pragma once

#include "backends/tcp/connection_info.hpp"
#include "backends/tcp/context.hpp"
#include "backends/tcp/greeting.hpp"
#include "backends/tcp/resolver.hpp"

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace headrace::tcp {

class Link;

/// Lives on one I/O thread; keeps itself alive until the link is made or lost.
class Connector final : public Watched {
 public:
  /// Starts on `context.first_thread()`. What becomes of it the link hears: `attach` or `lose`.
  static Result<void> start(Context& context, Resolver& resolver, std::shared_ptr<Link> link,
                            std::vector<TcpAddress> addresses);

  void on_ready(std::uint32_t) override {}
  std::uint64_t on_time(std::uint64_t now_ns) override;
  void on_stop() override { attempts_.clear(); }

 private:
  struct Attempt {
    SocketAddress address;
    std::shared_ptr<Greeting> greeting;
  };

  Connector(Context& context, std::shared_ptr<Link> link);
  std::shared_ptr<Connector> self() { return std::static_pointer_cast<Connector>(shared_from_this()); }
  void begin(const std::vector<TcpAddress>& addresses, Resolver& resolver);
  void resolved(const TcpAddress& address, Result<std::vector<SocketAddress>> answer);
  void try_next();
  Result<std::shared_ptr<Greeting>> greet(const SocketAddress& address, unsigned channel,
                                          Greeting::Done done);
  void tried(const SocketAddress& address, Greeting::Outcome outcome);
  void open_others(const SocketAddress& address);
  void failed(const std::string& where, const Error& why);
  void give_up_if_nothing_is_left();
  void stop();
  void stop_attempts();

  Context& context_;
  const std::shared_ptr<Link> link_;
  const std::uint64_t deadline_ns_;
  std::deque<SocketAddress> candidates_;
  unsigned resolving_ = 0;
  std::vector<Attempt> attempts_;
  std::uint64_t next_try_ns_ = 0;
  std::vector<std::string> failures_;
  Code worst_ = Code::peer_lost;  // what the failures amount to
  bool done_ = false;
};

}  // namespace headrace::tcp
