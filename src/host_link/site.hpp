// SPDX-License-Identifier: Apache-2.0
// One backend instance among those of its host: the socket at which it is found, its links, and the one epoll
// set that the host sleeps on.
#pragma once

#include "base/descriptor_reserve.hpp"
#include "base/epoll.hpp"
#include "base/event_fd.hpp"
#include "base/unix_socket.hpp"
#include "host_link/control_messages.hpp"
#include "host_link/live_table.hpp"
#include "host_link/peer_process.hpp"
#include "host_link/settings.hpp"

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headrace::host_link {

class Link;

/// Of a link: who began it.
enum class Side : std::uint8_t { connecting, accepting };

/// What an event of the epoll set is about: (serial of the link, 0 for the site; which of its descriptors).
enum class Watched : std::uint8_t { socket = 0, bell = 1, process = 2 };
inline std::uint64_t watch_key(std::uint32_t serial, Watched what) {
  return (std::uint64_t{serial} << 2) | static_cast<std::uint64_t>(what);
}

/// A backend derives its instance from it.
///   threads  any, save where it says: the progress thread's
class Site {
 public:
  /// What a site begins with: a socket in the runtime directory, and what wakes it.
  struct Parts {
    std::string runtime_dir;
    std::uint64_t reserved_descriptors;
    UnixListener listener;
    std::unique_ptr<LiveTable> live;
    Epoll epoll;
    EventFd bell;
    UniqueFd timer;

    /// Removes the sockets of the dead on the way.
    [[nodiscard]] static Result<Parts> open(const Protocol& protocol, const plugin::Host& host,
                                            const plugin::CreateArgs& args);
  };
  Site(plugin::Host host, const Protocol& protocol, const LinkSettings& settings, Parts parts);
  virtual ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  const plugin::Host host;
  const Protocol& protocol;
  const LinkSettings link_settings;
  const std::string name;
  const std::uint64_t incarnation;

  [[nodiscard]] LiveTable& live() { return *parts_.live; }
  [[nodiscard]] Epoll& epoll() { return parts_.epoll; }
  /// Brings the progress thread back from its sleep.
  void wake() const { parts_.bell.signal(); }

  // ---- links

  [[nodiscard]] std::string connection_info() const;
  /// As `connect` of the table.
  ///   errors   peer_lost (it has died), not_supported (another host, or another runtime directory), corrupt,
  ///            exhausted (no descriptors for a link)
  [[nodiscard]] Result<Link*> connect(const headrace_connect_v1& args);
  /// Never 0, never used twice.
  [[nodiscard]] std::uint32_t next_serial() { return next_serial_.fetch_add(1, std::memory_order_relaxed); }
  /// Closes it for good; the progress thread does not see it at its next look.
  void close(const Link* link);
  /// Whether a link that has come in leaves enough descriptors; logs if not.
  ///   errors   exhausted: for the peer, too
  [[nodiscard]] Result<void> check_descriptors();
  /// Tells the peer who we are, and what the backend says first.
  void introduce(Link& link);
  /// Runs `body(links)` while no link is introduced, comes or goes: what is told to all links in there, and
  /// to each new one when it is introduced, is heard of by each once at least.
  template <class Body>
  void with_links(Body&& body) {
    const std::lock_guard lock(mutex_);
    body(links_);
  }

  // ---- the progress thread's

  /// What links have to do without a system call.
  std::uint32_t progress_links();
  /// Looks into the epoll set if it is time to; `done`: how much this pass has done so far.
  std::uint32_t look(std::uint32_t done);
  /// As `arm` of the table.
  std::uint32_t arm(bool on);
  [[nodiscard]] int descriptor() const { return parts_.epoll.fd(); }

 protected:
  /// For the destructor of what derives from it, before it goes: closes all links.
  void close_links();

 private:
  /// A link of the backend's, not yet begun.
  [[nodiscard]] virtual std::shared_ptr<Link> make_link(Side side, UnixSocket socket,
                                                        PeerProcess process) = 0;

  /// A socket to the peer that gave out this information.
  [[nodiscard]] Result<UnixSocket> reach(const headrace_connect_v1& args) const;
  void add(std::shared_ptr<Link> link);
  void update_links();
  std::uint32_t look_at_descriptors(std::uint64_t now_ns);
  void accept_all();
  [[nodiscard]] Result<void> accept(UnixSocket& socket);
  void refused(const Error& why);
  void listen(bool on);
  void wind_timer();

  Parts parts_;
  DescriptorReserve reserve_;
  std::atomic<std::uint32_t> next_serial_{1};
  std::atomic<std::uint64_t> version_{1};
  std::mutex mutex_;
  std::vector<std::shared_ptr<Link>> links_;

  // The progress thread's.
  std::vector<std::shared_ptr<Link>> seen_;
  std::uint64_t seen_version_ = 0;
  std::uint64_t looked_at_ns_ = 0;
  bool look_now_ = true;
  bool armed_ = false;  // a thread of the host sleeps, or is about to, on our descriptor
  bool timer_runs_ = false;
  bool listens_ = true;  // false: there were no descriptors for a link; at the timer's next tick again
};

}  // namespace headrace::host_link
