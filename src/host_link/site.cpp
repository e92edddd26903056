// SPDX-License-Identifier: Apache-2.0
#include "host_link/site.hpp"

#include "base/random.hpp"
#include "host_link/link.hpp"
#include "host_link/socket_folder.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace headrace::host_link {
namespace {

constexpr std::uint64_t look_every_ns =
    20'000;                             // a system call, so not at each pass; peers' deaths can wait as long
constexpr long timer_ns = 100'000'000;  // while some link shakes hands, or none can come in
constexpr std::uint32_t events_a_look = 32;

/// The site's own keys have serial 0.
constexpr std::uint64_t listener_key = 0;
constexpr std::uint64_t bell_key = 1;
constexpr std::uint64_t timer_key = 2;

Result<UniqueFd> create_timer() {
  UniqueFd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!fd) return os_error(errno, "create a timer");
  return fd;
}

}  // namespace

// ------------------------------------------------------------------ life

Result<Site::Parts> Site::Parts::open(const Protocol& protocol, const plugin::Host& host,
                                      const plugin::CreateArgs& args) {
  const std::string& runtime_dir = args.runtime_dir;
  const std::string prefix = fmt::format("{}-", protocol.backend);
  sweep_stale_sockets(runtime_dir, prefix);
  // The random part lets several instances of one agent live side by side.
  const auto serial = static_cast<std::uint32_t>(random_u64());
  HEADRACE_TRY(listener, UnixListener::listen(fmt::format("{}/{}{:016x}-{:08x}{}", runtime_dir, prefix,
                                                          host.incarnation(), serial, socket_suffix)));
  HEADRACE_TRY(live, LiveTable::create());
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(bell, EventFd::create());
  HEADRACE_TRY(timer, create_timer());
  HEADRACE_TRY_VOID(epoll.add(listener.fd(), EPOLLIN, listener_key));
  HEADRACE_TRY_VOID(epoll.add(bell.fd(), EPOLLIN | EPOLLET, bell_key));
  HEADRACE_TRY_VOID(epoll.add(timer.get(), EPOLLIN | EPOLLET, timer_key));
  return Parts{runtime_dir,      args.reserved_descriptors, std::move(listener), std::move(live),
               std::move(epoll), std::move(bell),           std::move(timer)};
}

Site::Site(plugin::Host its_host, const Protocol& its_protocol, const LinkSettings& settings, Parts parts)
    : host(its_host),
      protocol(its_protocol),
      link_settings(settings),
      name(its_host.agent_name()),
      incarnation(its_host.incarnation()),
      parts_(std::move(parts)),
      reserve_(name, parts_.reserved_descriptors) {}

Site::~Site() = default;

void Site::close_links() {
  update_links();
  for (const auto& link : seen_) link->close();
}

// ------------------------------------------------------------------ links

std::string Site::connection_info() const {
  return encode(protocol,
                ConnectionInfo{boot_id(), parts_.listener.path().substr(parts_.runtime_dir.size() + 1)});
}

Result<UnixSocket> Site::reach(const headrace_connect_v1& args) const {
  const std::span info_bytes(static_cast<const std::byte*>(args.connection_info.data),
                             args.connection_info.length);
  HEADRACE_TRY(info, decode_connection_info(protocol, info_bytes));
  auto socket = UnixSocket::connect(parts_.runtime_dir + "/" + info.socket_name);
  if (socket) return socket;
  const bool same_host = !info.boot_id.empty() && info.boot_id == boot_id();
  if (socket.code() == Code::peer_lost && same_host) {
    // An agent listens for as long as it lives: the file that nobody listens at is what a dead one has left.
    // Not not_supported, which would send the caller to look for a setting.
    return make_error(
        Code::peer_lost,
        "peer {} has died: nobody listens at {} in {}; if it runs again, import its new metadata",
        args.peer_name, info.socket_name, parts_.runtime_dir);
  }
  if (socket.code() == Code::not_found || socket.code() == Code::peer_lost) {
    return make_error(
        Code::not_supported,
        "peer {} {} or uses another HEADRACE_RUNTIME_DIR: {} is not in {}; give both agents the same folder",
        args.peer_name, same_host ? "has ended" : "is on another host", info.socket_name, parts_.runtime_dir);
  }
  return std::move(socket).error().within(fmt::format("link to peer {}", args.peer_name));
}

Result<Link*> Site::connect(const headrace_connect_v1& args) {
  HEADRACE_TRY_VOID(reserve_.check());
  HEADRACE_TRY(socket, reach(args));
  HEADRACE_TRY(process, PeerProcess::of(socket));
  const auto link = make_link(Side::connecting, std::move(socket), std::move(process));
  HEADRACE_TRY_VOID(link->begin(args));
  HEADRACE_TRY_VOID(reserve_.check());
  add(link);
  introduce(*link);
  wake();  // the timer is to be wound
  return link.get();
}

Result<void> Site::check_descriptors() {
  auto enough = reserve_.check();
  if (!enough) refused(enough.error());
  return enough;
}

/// Peers can cause it as often as they like.
void Site::refused(const Error& why) {
  if (const std::uint64_t refusals = reserve_.count_refusal(host.now_ns()); refusals > 0)
    host.log(HEADRACE_LOG_WARN, fmt::format("links refused: {}; {}", refusals, why.message));
}

/// The socket stays where it is if this fails.
Result<void> Site::accept(UnixSocket& socket) {
  HEADRACE_TRY_VOID(check_descriptors());
  HEADRACE_TRY(process, PeerProcess::of(socket));
  auto link = make_link(Side::accepting, std::move(socket), std::move(process));
  HEADRACE_TRY_VOID(link->begin());
  add(std::move(link));
  return {};
}

void Site::add(std::shared_ptr<Link> link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(std::move(link));
  version_.fetch_add(1, std::memory_order_release);
}

void Site::close(const Link* link) {
  std::shared_ptr<Link> found;
  {
    const std::lock_guard lock(mutex_);
    const auto at =
        std::find_if(links_.begin(), links_.end(), [&](const auto& one) { return one.get() == link; });
    if (at == links_.end()) return;
    found = std::move(*at);
    links_.erase(at);
    version_.fetch_add(1, std::memory_order_release);
  }
  found->close();
}

void Site::introduce(Link& link) {
  const std::lock_guard lock(mutex_);
  link.introduce();
}

/// Copies the list for the progress thread if it has changed.
void Site::update_links() {
  if (version_.load(std::memory_order_acquire) == seen_version_) return;
  std::vector<std::shared_ptr<Link>>
      before;  // let go outside the lock: the last one to hold a link closes its descriptors
  const std::lock_guard lock(mutex_);
  before.swap(seen_);
  seen_ = links_;
  seen_version_ = version_.load(std::memory_order_relaxed);
}

// ------------------------------------------------------------------ progress

std::uint32_t Site::progress_links() {
  std::uint32_t done = 0;
  update_links();
  for (const auto& link : seen_) {
    done += link->progress();
    // One that came in and never became a link of the host's goes. The list changes at the next look.
    if (link->abandoned()) close(link.get());
  }
  return done;
}

std::uint32_t Site::look(std::uint32_t done) {
  // While a thread of the host sleeps on our descriptor, what rings there is for that thread: taken away by
  // another that polls, it would sleep on with the rings no longer armed.
  if (armed_) return 0;
  const std::uint64_t now = now_ns();
  // A message that woke the host is on its way first; the epoll set is looked at in the next pass, when
  // nobody waits for it.
  if ((!look_now_ || done != 0) && now - looked_at_ns_ < look_every_ns) return 0;
  looked_at_ns_ = now;
  look_now_ = false;
  return look_at_descriptors(host.now_ns()) > 0 ? progress_links() : 0;
}

std::uint32_t Site::look_at_descriptors(std::uint64_t now_ns) {
  std::array<epoll_event, events_a_look> events;
  const auto ready = parts_.epoll.wait(events, Deadline::at_ns(0));
  const std::size_t count = ready ? *ready : 0;
  update_links();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (key == listener_key) accept_all();
    if (key == timer_key) {
      std::uint64_t ticks = 0;
      (void)!::read(parts_.timer.get(), &ticks, sizeof ticks);  // what is not read never ticks again
      if (reserve_.refill()) listen(true);
    }
    const auto serial = static_cast<std::uint32_t>(key >> 2);
    if (serial == 0) continue;
    const auto at =
        std::find_if(seen_.begin(), seen_.end(), [&](const auto& link) { return link->serial() == serial; });
    if (at != seen_.end()) (*at)->on_event(static_cast<Watched>(key & 3), events[i].events);
  }
  for (const auto& link : seen_) {
    if (link->wants_timer()) link->on_timer(now_ns);
  }
  wind_timer();
  return static_cast<std::uint32_t>(count);
}

void Site::accept_all() {
  for (;;) {
    auto socket = reserve_.accept([this] { return parts_.listener.accept(); });
    if (!socket) {
      if (socket.code() == Code::would_block) return;
      refused(socket.error());
      return listen(false);  // it would wake us without end
    }
    const auto accepted = accept(*socket);
    if (accepted) continue;
    const Error& why = accepted.error();
    if (why.code == Code::exhausted) {
      const std::string refusal = encode(protocol, Refusal{why.code, why.message});
      (void)socket->send(std::as_bytes(std::span(refusal)));
    } else {
      host.log(HEADRACE_LOG_WARN, "a link that came in was dropped: " + why.message);
    }
  }
}

void Site::listen(bool on) {
  if (on == listens_) return;
  listens_ = on;
  (void)parts_.epoll.modify(parts_.listener.fd(), on ? std::uint32_t{EPOLLIN} : 0U, listener_key);
}

/// Runs the timer exactly while something waits for time to pass.
void Site::wind_timer() {
  update_links();
  const bool wanted = !listens_ || std::any_of(seen_.begin(), seen_.end(),
                                               [](const auto& link) { return link->wants_timer(); });
  if (wanted == timer_runs_) return;
  timer_runs_ = wanted;
  itimerspec period{};
  if (wanted) period.it_interval.tv_nsec = period.it_value.tv_nsec = timer_ns;
  (void)::timerfd_settime(parts_.timer.get(), 0, &period, nullptr);
}

std::uint32_t Site::arm(bool on) {
  update_links();
  armed_ = on;
  if (!on) {
    for (const auto& link : seen_) link->disarm();
    look_now_ = true;  // what woke the host is in the epoll set and must be taken out of it
    return 0;
  }
  std::uint32_t arrived = 0;
  for (const auto& link : seen_) arrived += link->arm() ? 1 : 0;
  return arrived;
}

}  // namespace headrace::host_link
