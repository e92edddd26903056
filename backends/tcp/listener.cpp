// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/listener.hpp"

#include "backends/tcp/link.hpp"
#include "backends/tcp/socket_setup.hpp"
#include "base/errors.hpp"

#include <algorithm>
#include <cerrno>

namespace headrace::tcp {
namespace {

// When descriptors run out, accept would fail at once, again and again: look again after this.
constexpr std::uint64_t pause_ns = 10'000'000;
constexpr int accepts_a_round = 32;
// Connections that are told at one time that there are no descriptors for them: they use some themselves.
constexpr long refusals_at_once = 8;

}  // namespace

/// One listening socket.
class Listener::Door final : public Watched {
 public:
  Door(Listener& owner, UniqueFd socket, const SocketAddress& where)
      : fd(std::move(socket)), address(where), owner_(owner) {}

  void on_ready(std::uint32_t) override { owner_.accept_from(*this); }
  std::uint64_t on_time(std::uint64_t now_ns) override {
    if (paused_until_ns == 0) return never;
    if (now_ns < paused_until_ns) return paused_until_ns;
    if (!owner_.context_.descriptors.refill()) {
      paused_until_ns = now_ns + pause_ns;
      return paused_until_ns;
    }
    paused_until_ns = 0;
    (void)owner_.context_.first_thread().change(*this, fd.get(), EPOLLIN);
    return never;
  }

  const UniqueFd fd;
  const SocketAddress address;
  std::uint64_t paused_until_ns = 0;

 private:
  Listener& owner_;
};

Result<std::unique_ptr<Listener>> Listener::open(Context& context, Admission& admission) {
  std::unique_ptr<Listener> listener(new Listener(context, admission));
  HEADRACE_TRY_VOID(listener->listen());
  HEADRACE_TRY_VOID(listener->advertise());
  for (const auto& door : listener->doors_)
    HEADRACE_TRY_VOID(context.first_thread().watch(door, door->fd.get(), EPOLLIN));
  return listener;
}

Listener::~Listener() {
  for (const auto& door : doors_) context_.first_thread().forget(*door, door->fd.get());
}

Result<void> Listener::listen() {
  std::vector<std::string> wanted = context_.settings.listen;
  // A wildcard IPv6 socket takes IPv4 as well; where there is no IPv6 an IPv4 one must do.
  const bool anywhere = wanted.empty();
  if (anywhere) wanted = {"[::]:0", "0.0.0.0:0"};
  for (const std::string& text : wanted) {
    HEADRACE_TRY(address, TcpAddress::parse(text, 0));
    HEADRACE_TRY(resolved, address.resolve(TcpAddress::Use::listen));
    for (const SocketAddress& at : resolved) {
      auto fd = open_listener(at, context_.settings);
      if (!fd && anywhere && text != wanted.back()) continue;
      if (!fd) return std::move(fd).error().within("listen");
      HEADRACE_TRY(bound, SocketAddress::local_of(fd->get()));
      doors_.push_back(std::make_shared<Door>(*this, std::move(fd).value(), bound));
    }
    if (anywhere && !doors_.empty()) break;
  }
  return {};
}

std::string Listener::ports() const {
  std::vector<std::string> all;
  for (const auto& door : doors_) all.push_back(door->address.text());
  return fmt::format("{}", fmt::join(all, ","));
}

Result<void> Listener::advertise() {
  info_.host = this_host();
  const auto add = [&](TcpAddress address) {
    if (info_.addresses.size() == ConnectionInfo::max_addresses) return;
    if (std::find(info_.addresses.begin(), info_.addresses.end(), address) == info_.addresses.end())
      info_.addresses.push_back(std::move(address));
  };
  for (const std::string& text : context_.settings.advertise) {
    HEADRACE_TRY(address, TcpAddress::parse(text, doors_.front()->address.port()));
    if (address.host.empty() || address.port == 0 || address.host.find(' ') != std::string::npos)
      return make_error(Code::invalid_argument,
                        "option advertise: \"{}\" is no address that a peer could connect to", text);
    add(std::move(address));
  }
  if (!info_.addresses.empty()) return {};

  for (const auto& door : doors_) {
    const auto put = [&](const SocketAddress& at) -> Result<void> {
      HEADRACE_TRY(address, TcpAddress::parse(at.text()));
      address.port = door->address.port();
      add(std::move(address));
      return {};
    };
    const auto& storage = door->address.storage;
    const bool wild6 = door->address.family() == AF_INET6 &&
                       IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
    const bool wild4 = door->address.family() == AF_INET &&
                       reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == htonl(INADDR_ANY);
    if (!wild4 && !wild6) {
      HEADRACE_TRY_VOID(put(door->address));
      continue;
    }
    for (const SocketAddress& at : interface_addresses(wild6 ? AF_UNSPEC : AF_INET))
      HEADRACE_TRY_VOID(put(at));
  }
  return {};
}

void Listener::accept_from(Door& door) {
  for (int i = 0; i < accepts_a_round; ++i) {
    if (refusing_.use_count() > refusals_at_once) return pause(door);
    auto fd = context_.descriptors.accept([&] { return accept_one(door); });
    if (!fd) {
      if (fd.code() == Code::would_block) return;
      log_refusal(fd.error());
      return pause(door);
    }
    if (const auto enough = context_.descriptors.check(); enough) {
      greet(std::move(*fd));
    } else {
      refuse(std::move(*fd), enough.error());
      if (!context_.descriptors.refill()) return pause(door);
    }
  }
}

Result<UniqueFd> Listener::accept_one(const Door& door) {
  for (;;) {
    UniqueFd fd(context_.calls->accept(door.fd.get(), nullptr, nullptr));
    if (fd) return fd;
    if (errno != EINTR && errno != ECONNABORTED)
      return os_error(errno, "accept a connection on {}", door.address.text());
  }
}

void Listener::pause(Door& door) {
  door.paused_until_ns = context_.host.now_ns() + pause_ns;
  (void)context_.first_thread().change(door, door.fd.get(), 0);
  context_.first_thread().hurry(door.shared_from_this());
}

/// Tells the peer, after its proof, that there are no descriptors for it.
void Listener::refuse(UniqueFd fd, const Error& why) {
  log_refusal(why);
  wire::Handshake::Config config = handshake();
  config.admit = [why](const wire::Hello&) -> Result<void> { return why; };
  auto done = [host = context_.host](const Greeting::Outcome&) { host.count("handshakes_refused", 1); };
  (void)Greeting::start(context_, context_.first_thread(), std::move(fd), std::move(config), false,
                        std::move(done), refusing_);
}

/// Peers can cause it as often as they like.
void Listener::log_refusal(const Error& why) {
  if (const auto refusals = context_.descriptors.count_refusal(context_.host.now_ns()); refusals > 0)
    context_.log(HEADRACE_LOG_WARN, "connections refused: {}; {}", refusals, why.message);
}

void Listener::greet(UniqueFd fd) {
  tune(fd.get(), context_.settings);
  drop_one_too_many();
  std::string from = "somebody";
  if (const auto address = SocketAddress::peer_of(fd.get())) from = address->text();
  const auto link = std::make_shared<std::shared_ptr<Link>>();  // once admitted
  wire::Handshake::Config config = handshake();
  config.admit = [this, link](const wire::Hello& peer) -> Result<void> {
    HEADRACE_TRY(admitted, admission_.admit(peer));
    *link = std::move(admitted);
    return {};
  };
  auto done = [this, link, from](Greeting::Outcome outcome) { greeted(std::move(outcome), *link, from); };
  auto greeting = Greeting::start(context_, context_.first_thread(), std::move(fd), std::move(config), false,
                                  std::move(done));
  if (!greeting) {
    context_.log(HEADRACE_LOG_WARN, "connection from {}: {}", from, greeting.error().message);
    return;
  }
  pending_.push_back(std::move(greeting).value());
}

/// Makes room for another connection that has not shaken hands.
void Listener::drop_one_too_many() {
  std::erase_if(pending_, [](const auto& greeting) { return greeting->over(); });
  if (pending_.size() < context_.settings.max_pending) return;
  // Honest peers are done within a round trip: the oldest is the least likely to be one.
  context_.host.count("handshakes_dropped", 1);
  pending_.front()->drop(make_error(Code::exhausted,
                                    "{} connections with unfinished handshakes are all that is allowed",
                                    context_.settings.max_pending));
  pending_.pop_front();
}

wire::Handshake::Config Listener::handshake() const {
  wire::Handshake::Config config;
  config.role = wire::HelloRole::accepting;
  config.mine.incarnation = context_.host.incarnation();
  config.mine.name = context_.host.agent_name();
  config.mine.purpose = wire::Purpose::tcp_backend;
  config.token = context_.settings.token;
  config.hmac = context_.hmac;
  return config;
}

/// `link` is null if the peer was not admitted.
void Listener::greeted(Greeting::Outcome outcome, const std::shared_ptr<Link>& link,
                       const std::string& from) {
  if (outcome.result.ok()) {
    link->attach(outcome.peer.channel, std::move(outcome.fd), outcome.early);
    return;
  }
  context_.host.count("handshakes_refused", 1);
  // Peers can cause it as often as they like.
  if (refusals_.due(context_.host.now_ns()))
    context_.log(HEADRACE_LOG_WARN, "connection from {} refused: {}", from, outcome.result.error().message);
  if (link != nullptr && outcome.peer.channel == 0)
    link->lose({outcome.result.error().code}, std::move(outcome.result).error().message);
}

}  // namespace headrace::tcp
