// SPDX-License-Identifier: Apache-2.0
// One connection to one peer instance on this host, made by either side.
//
// Life: connecting -> ready -> lost; `disconnect` may come at any time. State changes are decided wherever
// they are noticed (a socket that was read, a copy that failed) and told to the host by the progress thread
// alone, one after the other and with no lock held.
#pragma once

#include "host_link/control_socket.hpp"
#include "host_link/live_table.hpp"
#include "host_link/message_pipe.hpp"
#include "host_link/peer_process.hpp"
#include "host_link/post.hpp"
#include "host_link/site.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::host_link {

enum class LinkState : std::uint32_t { connecting, ready, lost };

/// A backend derives its link from it; the site makes it and calls one of the two `begin` before anybody else
/// sees it.
class Link : public std::enable_shared_from_this<Link> {
 public:
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // ---- what copies and requests ask; any thread

  [[nodiscard]] LinkState state() const { return state_.load(std::memory_order_acquire); }
  /// Ready, and nobody has closed it: bytes and messages may go.
  [[nodiscard]] bool usable() const {
    return state() == LinkState::ready && !closing_.load(std::memory_order_acquire);
  }
  /// The peer's tables are here; they stay when the link is lost.
  [[nodiscard]] bool was_ready() const { return was_ready_.load(std::memory_order_acquire); }
  [[nodiscard]] bool owner_closed() const { return live_->closed(); }
  /// Looks into the socket whether the peer has gone, before the progress thread comes to it.
  [[nodiscard]] bool has_hung_up();
  /// How posts on this link end now that it is lost or closed. Names the peer.
  [[nodiscard]] Outcome why_lost() const;
  /// Whether it takes posts and messages: would_block before it is ready, then as `why_lost`.
  [[nodiscard]] Status check_usable() const;
  [[nodiscard]] const std::string& peer_name() const { return peer_name_; }
  [[nodiscard]] const PeerProcess& process() const { return process_; }
  /// What the owner's table of live regions says.
  [[nodiscard]] Result<LiveView::Entry> live_entry(std::uint32_t region_id) { return live_->find(region_id); }
  MessagePipe& messages() { return *pipe_; }
  /// As `notify` of the table.
  [[nodiscard]] Status notify(std::uint32_t channel, std::string_view bytes);
  /// The same: what is not in the ring yet. The peer reads the ring to its end. Of a link that was ready.
  [[nodiscard]] std::uint64_t unsent() const { return pipe_->waiting(); }

  // ---- posts that are not carried out inside `post`; any thread

  // Each counts as in flight until post_finished, which comes after its end was told.

  /// False if the link is lost or being closed: then it is in flight, but not listed, and the caller must end
  /// it. A listed one has a reference.
  bool add_active(Post* post);
  /// Takes it off the list if it is there.
  void remove_active(Post* post);
  void post_finished();

  // ---- for the site

  /// Starts a link to the instance behind the socket.
  [[nodiscard]] Result<void> begin(const headrace_connect_v1& args);
  /// Takes a connection that came in; who it is comes with its hello.
  [[nodiscard]] Result<void> begin();
  /// Under its lock: says the first message, what the backend says first, and that this was all.
  void introduce();

  [[nodiscard]] std::uint32_t serial() const { return serial_; }
  /// What there is to do without a system call: state changes to tell, messages to deliver and to send.
  std::uint32_t progress();
  /// An event of the epoll set.
  void on_event(Watched what, std::uint32_t events);
  /// Gives up on a peer that has not answered in time; retries what waits for descriptors.
  void on_timer(std::uint64_t now_ns);
  [[nodiscard]] bool wants_timer() const {
    return !settled_.load(std::memory_order_acquire) || wants_retry_.load(std::memory_order_acquire);
  }
  /// Armed: the peer rings from now on. Returns whether there is something to do already.
  bool arm();
  void disarm();
  /// Nobody has been told of it and nobody will be: it may go.
  [[nodiscard]] bool abandoned() const { return abandoned_; }

  /// Closes it for good: posts have ended, and the host hears nothing more of it.
  void close();

 protected:
  Link(Site& site, Side side, UnixSocket socket, PeerProcess process);

  // ---- what the backend adds; called with control_mutex_ held unless it says otherwise

  /// What the host knows the link by: a pointer to the backend's own type.
  [[nodiscard]] virtual void* handle() = 0;
  /// Protocol::greeting_bytes that this side says of itself.
  [[nodiscard]] virtual std::string greeting() = 0;
  /// What the peer has said of itself. The link is not ready yet.
  virtual void greeted(std::string_view greeting) = 0;
  /// Sends what the peer must know before the link is ready.
  virtual void say_first() {}
  /// A message of the backend's own has come.
  ///   errors   corrupt: the link ends
  [[nodiscard]] virtual Result<void> on_other(const Other& message, std::vector<UniqueFd> descriptors) = 0;
  /// The socket has been closed for good.
  virtual void closed() {}

  /// With control_mutex_ held. Does nothing once the link is closed.
  void send(const ControlMessage& message, std::vector<int> descriptors = {}, std::vector<SharedFd> kept = {},
            MessageName name = no_name);
  /// With control_mutex_ held. Whether a message of that name still waits for the peer to read.
  [[nodiscard]] bool waits(MessageName name) const { return socket_ && socket_->waits(name); }
  /// With control_mutex_ held. Drops it; false: it has left, or there was none.
  bool take_back(MessageName name);
  [[nodiscard]] bool is_introduced() const { return introduced_; }  ///< with control_mutex_ held
  [[nodiscard]] std::mutex& control_mutex() { return control_mutex_; }
  [[nodiscard]] std::string peer_text() const;
  void lose(Status status, std::string text);
  /// Makes the progress thread look at this link.
  void attend() {
    attention_.store(true, std::memory_order_release);
    site_.wake();
  }
  /// The progress thread has been called by `attend`: what a backend does then beside state changes. Returns
  /// how much that was. No lock is held.
  virtual std::uint32_t attended() { return 0; }
  /// Gives posts that are in flight while the link is being closed a while to end. No lock is held.
  virtual void await_posts();

 private:
  [[nodiscard]] bool watch(int fd, std::uint32_t events, Watched what);
  void unwatch_all();

  // What comes over the socket; control_mutex_ held.
  void read_socket();
  void update_interest();
  void handle(ControlSocket::Received received);
  void on_hello(const Hello& hello, std::vector<UniqueFd> descriptors);
  void on_welcome(const Welcome& welcome, std::vector<UniqueFd> descriptors);
  void on_settled();
  void refuse(Code code, std::string text);

  bool enter();
  void leave();
  [[nodiscard]] bool has_work() const;
  std::uint32_t tell_changes();
  std::uint32_t deliver();
  [[nodiscard]] bool deliver(const RingReader::Message& message);
  void announce_to_host();
  void end_posts(const Outcome& outcome);

  Site& site_;
  const Side side_;
  const std::uint32_t serial_;
  PeerProcess process_;
  std::uint64_t handshake_deadline_ns_ = 0;

  // Written while connecting, before state_ says ready.
  std::string peer_name_;
  std::uint64_t peer_incarnation_ = 0;  // connecting side: 0 if any is right
  std::unique_ptr<MessagePipe> pipe_;
  std::unique_ptr<LiveView> live_;

  std::atomic<LinkState> state_{LinkState::connecting};
  std::atomic<bool> was_ready_{false};
  std::atomic<bool> attention_{false};
  std::atomic<bool> settled_{false};  // the handshake is over, well or not
  std::atomic<bool> wants_retry_{false};

  // Closing against the progress thread: each sets its flag, then looks at the other's.
  std::atomic<bool> closing_{false};
  std::atomic<std::uint32_t> busy_{0};

  std::mutex control_mutex_;
  std::optional<ControlSocket> socket_;
  bool introduced_ = false;
  bool watching_socket_ = false;
  bool watching_bell_ = false;
  bool watching_process_ = false;
  bool wants_write_ = false;
  bool greeted_ = false;  // hello or welcome has come
  bool wanted_ = false;  // accepting side: all is there for the host to be asked; the progress thread's alone

  mutable std::mutex state_mutex_;
  Status lost_status_;
  std::string lost_text_;

  std::mutex posts_mutex_;
  std::vector<Post*> active_;
  std::atomic<std::uint32_t> in_flight_{0};

  // The progress thread's.
  std::uint64_t link_token_ = 0;
  bool told_ready_ = false;
  bool told_lost_ = false;
  bool abandoned_ = false;
};

}  // namespace headrace::host_link
