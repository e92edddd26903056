// SPDX-License-Identifier: Apache-2.0
#include "metadata/metadata_socket.hpp"

#include "base/bind_error.hpp"
#include "base/descriptor_reserve.hpp"
#include "base/epoll.hpp"
#include "base/event_fd.hpp"
#include "base/once_a_second.hpp"
#include "base/tcp_address.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <system_error>
#include <thread>
#include <vector>

namespace headrace::metadata {
namespace {

using std::chrono::nanoseconds;

Result<UniqueFd> listen_on(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return os_error(errno, "make a socket for {}", address.text());
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  // One socket for each family: else an IPv6 wildcard address would take the port from the IPv4 one.
  if (address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
  if (::bind(fd.get(), address.get(), address.length) < 0) {
    const Code code = errno == EADDRINUSE ? Code::would_block : Code::invalid_argument;
    return Error{code, bind_error(errno, address).message};
  }
  if (::listen(fd.get(), SOMAXCONN) < 0) return os_error(errno, "listen on {}", address.text());
  return fd;
}

void set_port(SocketAddress& address, std::uint16_t port) {
  if (address.family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  }
}

/// Listens on all addresses of the host that this machine has, on one port. Fails with would_block if the
/// system picked the port for the first address and it is taken on another.
Result<std::vector<UniqueFd>> listen_on_all(const std::vector<SocketAddress>& addresses) {
  std::vector<UniqueFd> listeners;
  std::vector<std::string> tried;
  std::uint16_t port = 0;
  Error last;
  for (SocketAddress address : addresses) {
    if (std::ranges::find(tried, address.text()) != tried.end()) continue;
    tried.push_back(address.text());
    if (port != 0) set_port(address, port);
    auto fd = listen_on(address);
    if (!fd) {
      last = std::move(fd).error();
      if (last.code == Code::would_block) return last;
      continue;  // this machine does not have the address family
    }
    if (port == 0) {
      HEADRACE_TRY(bound, SocketAddress::local_of(fd->get()));
      port = bound.port();
    }
    listeners.push_back(std::move(fd).value());
  }
  if (listeners.empty()) return last;
  return listeners;
}

}  // namespace

/// The thread and everything that it owns.
class MetadataServer::Loop {
 public:
  Loop(MetadataServerOptions options, MetadataHandlers handlers, Logger& logger, Epoll epoll, EventFd wake,
       std::vector<UniqueFd> listeners, std::string address)
      : options_(std::move(options)),
        handlers_(std::move(handlers)),
        log_(logger, "metadata"),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)),
        listeners_(std::move(listeners)),
        address_(std::move(address)),
        budget_(options_.most_buffered_bytes),
        descriptors_(options_.identity.name, options_.reserved_descriptors),
        made_in_(::getpid()) {}

  Result<void> start() {
    HEADRACE_TRY_VOID(epoll_.add(wake_.fd(), EPOLLIN, wake_key));
    HEADRACE_TRY_VOID(watch_listeners(EPOLL_CTL_ADD));
    try {
      thread_ = std::thread([this] {
        ::pthread_setname_np(::pthread_self(), "headrace-meta");
        run();
      });
    } catch (const std::system_error& error) {
      return make_error(Code::exhausted, "no thread to listen on {}: {}", address_, error.what());
    }
    return {};
  }

  ~Loop() {
    if (!thread_.joinable()) return;
    if (::getpid() != made_in_) {  // a forked child has no such thread
      thread_.detach();
      return;
    }
    stop_.store(true);
    wake_.signal();
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  static constexpr std::uint64_t wake_key = 0;
  static constexpr std::uint64_t first_client_key = 1 << 16;  // smaller keys: listeners, counted from 1
  static constexpr int most_refusals = 8;  // clients that are refused use descriptors themselves

  struct Client {
    Client(UniqueFd socket, wire::Handshake handshake, const MetadataHandlers& handlers, ByteBudget& budget)
        : fd(std::move(socket)), session(std::move(handshake), handlers, budget) {}
    UniqueFd fd;
    ServerSession session;
    ServerSession::Phase phase = ServerSession::Phase::handshake;
    std::uint64_t phase_began_ns = now_ns();
    std::uint32_t events = EPOLLIN;
    bool half_closed = false;
    bool is_refused = false;  // for want of descriptors
  };
  using Clients = std::map<std::uint64_t, Client>;  // by key, which is also by age

  void run() {
    std::array<epoll_event, 64> events{};
    while (!stop_.load()) {
      const auto ready = epoll_.wait(events, next_deadline());
      if (!ready) {
        log_.error("the metadata socket {} stops: {}", address_, ready.error().message);
        return;
      }
      for (const epoll_event& event : std::span(events).first(*ready)) {
        const std::uint64_t key = event.data.u64;  // a copy: the system's struct is packed
        if (key == wake_key) continue;
        if (key < first_client_key) {
          accept_from(listeners_[key - 1].get());
        } else if (const auto client = clients_.find(key); client != clients_.end()) {
          serve_guarded(client);
        }
      }
      drop_late_clients();
      if (paused_until_.expired()) try_accepting();
    }
  }

  // --- accepting

  Result<void> watch_listeners(int operation, std::uint32_t events = EPOLLIN) {
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      HEADRACE_TRY_VOID(operation == EPOLL_CTL_ADD ? epoll_.add(listeners_[i].get(), events, i + 1)
                                                   : epoll_.modify(listeners_[i].get(), events, i + 1));
    }
    return {};
  }

  void accept_from(int listener) {
    for (int i = 0; i < 16; ++i) {  // leave time for the other sockets; the rest stays readable
      if (refusing_ >= most_refusals) return pause_accepting();
      auto fd = descriptors_.accept([&] { return accept_one(listener); });
      if (!fd) {
        if (fd.code() == Code::would_block) return;
        log_no_descriptors(fd.error());
        return pause_accepting();
      }
      add_client(std::move(*fd));
      if (!descriptors_.refill()) return pause_accepting();
    }
  }

  [[nodiscard]] Result<UniqueFd> accept_one(int listener) const {
    for (;;) {
      UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd) return fd;
      if (errno != ECONNABORTED && errno != EINTR) return os_error(errno, "accept at {}", address_);
    }
  }

  /// A connection that cannot be accepted keeps the listener readable: without a pause the thread would spin.
  void pause_accepting() {
    (void)watch_listeners(EPOLL_CTL_MOD, 0);
    paused_until_ = Deadline::after(std::chrono::milliseconds(10));
  }

  void log_no_descriptors(const Error& why) {
    if (const std::uint64_t refusals = descriptors_.count_refusal(now_ns()); refusals > 0)
      log_.warn("clients of the metadata socket {} refused: {}; {}", address_, refusals, why.message);
  }

  void try_accepting() {
    if (!descriptors_.refill()) return pause_accepting();
    paused_until_ = Deadline::never();
    (void)watch_listeners(EPOLL_CTL_MOD);
  }

  void add_client(UniqueFd fd) {
    if (clients_.size() >= options_.most_clients && !drop_oldest_stranger()) return;  // closes fd
    wire::Handshake::Config config;
    config.role = wire::HelloRole::accepting;
    config.mine.name = options_.identity.name;
    config.mine.incarnation = options_.identity.incarnation;
    config.mine.purpose = wire::Purpose::metadata;
    config.token = options_.identity.token;
    config.hmac = options_.identity.hmac;
    const auto enough = descriptors_.check();
    if (!enough) {
      log_no_descriptors(enough.error());
      config.admit = [why = enough.error()](const wire::Hello&) -> Result<void> { return why; };
    }
    auto handshake = wire::Handshake::begin(std::move(config));
    if (!handshake)
      return log_.error("the metadata socket cannot begin a handshake: {}", handshake.error().message);
    const int one = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const std::uint64_t key = next_key_++;
    if (auto added = epoll_.add(fd.get(), EPOLLIN, key); !added) {
      return log_.error("the metadata socket loses a client: {}", added.error().message);
    }
    const auto client =
        clients_.try_emplace(key, std::move(fd), std::move(handshake).value(), handlers_, budget_).first;
    if (!enough) {
      client->second.is_refused = true;
      ++refusing_;
    }
  }

  /// Drops the client that has been silent for longest, to make room; false if all have completed their
  /// handshake.
  bool drop_oldest_stranger() {
    const auto stranger = std::ranges::find(clients_, ServerSession::Phase::handshake,
                                            [](const auto& entry) { return entry.second.session.phase(); });
    if (stranger == clients_.end()) {
      refused("one more client", fmt::format("{} clients are connected", clients_.size()));
      return false;
    }
    drop(stranger);
    return true;
  }

  void refused(std::string_view what, const std::string& why) {
    if (handlers_.refused) handlers_.refused();
    warn(fmt::format("the metadata socket {} refuses {}: {}", address_, what, why));
  }

  /// What clients can cause as often as they like is said once a second.
  void warn(const std::string& text) {
    if (warnings_.due(now_ns())) log_.warn("{}", text);
  }

  // --- serving

  /// What one client sends must not end the process.
  void serve_guarded(Clients::iterator entry) {
    const std::uint64_t key = entry->first;
    try {
      serve(entry);
    } catch (const std::exception& error) {
      refused("a client", error.what());
      if (const auto client = clients_.find(key); client != clients_.end()) drop(client);
    }
  }

  void serve(Clients::iterator entry) {
    Client& client = entry->second;
    if (!receive(client) || !send(client)) return drop(entry);
    const ServerSession::Phase phase = client.session.phase();
    if (phase != client.phase) {
      if (client.session.error()) {
        log_.debug("metadata client \"{}\": {}", client.session.peer_name(), client.session.error()->message);
        if (client.session.error()->code == Code::exhausted && !client.is_refused)
          warn(fmt::format("metadata client \"{}\" was refused: {}", client.session.peer_name(),
                           client.session.error()->message));
      }
      client.phase = phase;
      client.phase_began_ns = now_ns();
    }
    if (phase == ServerSession::Phase::closing && !client.half_closed) {
      // Not closed yet: if the client still sends, a close would become a reset and destroy the answer.
      ::shutdown(client.fd.get(), SHUT_WR);
      client.half_closed = true;
    }
    const std::uint32_t events = client.session.to_send().empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    if (events != client.events) {
      client.events = events;
      if (!epoll_.modify(client.fd.get(), events, entry->first)) drop(entry);
    }
  }

  /// False: the client is gone.
  bool receive(Client& client) {
    for (int i = 0; i < 4; ++i) {
      const ssize_t got = ::recv(client.fd.get(), buffer_.data(), buffer_.size(), 0);
      if (got == 0) return false;
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      client.session.feed({buffer_.data(), static_cast<std::size_t>(got)});
      if (static_cast<std::size_t>(got) < buffer_.size()) return true;
    }
    return true;
  }

  bool send(Client& client) {
    while (!client.session.to_send().empty()) {
      const std::string_view bytes = client.session.to_send();
      const ssize_t sent = ::send(client.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      client.session.sent(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // --- time

  [[nodiscard]] Deadline deadline_of(const Client& client) const {
    const auto timeout = static_cast<std::uint64_t>(options_.handshake_timeout.count());
    const auto for_each_mib = static_cast<std::uint64_t>(options_.timeout_per_mib.count());
    return Deadline::at_ns(client.phase_began_ns + timeout +
                           (client.session.phase_bytes() * for_each_mib >> 20));
  }

  [[nodiscard]] Deadline next_deadline() const {
    Deadline next = paused_until_;
    for (const auto& [key, client] : clients_) next = Deadline::earliest(next, deadline_of(client));
    return next;
  }

  void drop_late_clients() {
    for (auto entry = clients_.begin(); entry != clients_.end();) {
      const auto late = entry++;
      if (!deadline_of(late->second).expired()) continue;
      log_.debug("metadata client \"{}\" is too slow and is dropped", late->second.session.peer_name());
      reset_at_close(late->second);
      drop(late);
    }
  }

  /// On a normal close the system keeps unread bytes for the client as long as it answers probes, and the
  /// client learns of the end only after it has read them: that may be never. A reset ends both.
  static void reset_at_close(const Client& client) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(client.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  void drop(Clients::iterator client) {
    (void)epoll_.remove(client->second.fd.get());
    if (client->second.is_refused) --refusing_;
    clients_.erase(client);
  }

  const MetadataServerOptions options_;
  const MetadataHandlers handlers_;
  const Log log_;
  Epoll epoll_;
  EventFd wake_;
  std::vector<UniqueFd> listeners_;
  const std::string address_;
  ByteBudget budget_;
  DescriptorReserve descriptors_;
  OnceASecond warnings_;
  const pid_t made_in_;
  std::vector<char> buffer_ = std::vector<char>(std::size_t{256} << 10);
  std::uint64_t next_key_ = first_client_key;
  Deadline paused_until_ = Deadline::never();
  Clients clients_;
  int refusing_ = 0;  // of these
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Result<std::unique_ptr<MetadataServer>> MetadataServer::open(MetadataServerOptions options,
                                                             MetadataHandlers handlers, Logger& logger) {
  if (!options.identity.token.empty() && !options.identity.hmac) {
    HEADRACE_TRY(hmac, load_hmac());
    options.identity.hmac = std::move(hmac);
  }
  if (options.identity.name.empty() || options.identity.name.size() > wire::Hello::name_bytes ||
      options.identity.incarnation == 0) {
    return make_error(Code::invalid_argument,
                      "listen for metadata as an agent with a name of {} bytes and incarnation {}: a name "
                      "has 1 to {} bytes, and an incarnation is not 0",
                      options.identity.name.size(), options.identity.incarnation, wire::Hello::name_bytes);
  }
  HEADRACE_TRY(address, TcpAddress::parse(options.listen));
  HEADRACE_TRY(candidates, address.resolve(TcpAddress::Use::listen));
  auto listeners = listen_on_all(candidates);
  for (int attempt = 0; address.port == 0 && listeners.code() == Code::would_block && attempt < 20;
       ++attempt) {
    listeners = listen_on_all(candidates);
  }
  if (!listeners) {
    Error error = std::move(listeners).error();
    if (error.code == Code::would_block) error.code = Code::backend_failed;
    return std::move(error).within("listen for metadata on \"" + options.listen + "\"");
  }
  HEADRACE_TRY(bound, SocketAddress::local_of(listeners->front().get()));
  const std::string text =
      address.host.empty() ? bound.text() : TcpAddress{address.host, bound.port()}.text();
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(wake, EventFd::create());
  auto loop = std::make_unique<Loop>(std::move(options), std::move(handlers), logger, std::move(epoll),
                                     std::move(wake), std::move(listeners).value(), text);
  HEADRACE_TRY_VOID(loop->start());
  return std::unique_ptr<MetadataServer>(new MetadataServer(std::move(loop)));
}

MetadataServer::MetadataServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
MetadataServer::~MetadataServer() = default;
const std::string& MetadataServer::address() const noexcept { return loop_->address(); }

}  // namespace headrace::metadata
