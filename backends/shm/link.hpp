// SPDX-License-Identifier: Apache-2.0
// One connection to one peer instance on this host, made by either side.
//
// Life: connecting -> ready -> lost; `disconnect` may come at any time. State changes are decided wherever
// they are noticed (a socket that was read, a copy that failed) and told to the host by the progress thread
// alone, one after the other and with no lock held.
#pragma once

#include "backends/shm/control_socket.hpp"
#include "backends/shm/imports.hpp"
#include "backends/shm/instance.hpp"
#include "backends/shm/live_table.hpp"
#include "backends/shm/message_pipe.hpp"
#include "backends/shm/peer_process.hpp"
#include "backends/shm/transfer.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::shm {

class Request;

enum class LinkState : std::uint32_t { connecting, ready, lost };

/// A region of ours whose memory file peers map.
struct SharedMemory {
  SharedRegion region;
  SharedFd file;
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  /// Starts a link to the instance behind the socket.
  [[nodiscard]] static Result<std::shared_ptr<Link>> to_peer(Instance& instance, UnixSocket socket,
                                                             std::uint32_t serial,
                                                             const headrace_connect_v1& args);
  /// Takes a connection that came in; who it is comes with its hello.
  [[nodiscard]] static Result<std::shared_ptr<Link>> from_peer(Instance& instance, UnixSocket socket,
                                                               std::uint32_t serial);
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
  [[nodiscard]] const std::string& peer_name() const { return peer_name_; }
  [[nodiscard]] const PeerProcess& process() const { return process_; }
  /// Why attach does not reach the peer; empty: it does. Known once the link was ready.
  [[nodiscard]] const std::string& attach_refusal() const { return attach_refusal_; }
  [[nodiscard]] bool maps() const { return instance_.settings.map; }
  [[nodiscard]] Result<const RegionSlot*> live_slot(std::uint32_t region_id);
  /// The peer's region if its memory file has come; looks into the socket for it, but does not wait.
  [[nodiscard]] Imports::Found import(std::uint32_t region_id);
  MessagePipe& messages() { return *pipe_; }

  // ---- posts that are not carried out inside `post`; any thread

  // Each post that is waiting or active counts as in flight until post_finished, which comes after its end
  // was told.

  /// Keeps a post until the link is ready; false if it is not connecting any more. Takes a reference.
  bool add_waiting(Request* request);
  /// Gives it back, with the reference, still in flight; false if it is not there.
  bool take_waiting(Request* request);
  /// False if the link is lost or being closed: then it is in flight, but not listed, and the caller must end
  /// it. A listed one has a reference.
  bool add_active(Request* request);
  /// Takes it off the list if it is there.
  void remove_active(Request* request);
  void post_finished();

  // ---- for the registry, under its lock

  /// Says the first message, all shared memory and that this was all; from then on share and unshare follow.
  void introduce(const std::vector<SharedMemory>& memory);
  void share(const SharedMemory& memory);
  void unshare(std::uint32_t region_id);

  // ---- for the progress thread

  [[nodiscard]] std::uint32_t serial() const { return serial_; }
  /// What there is to do without a system call: state changes to tell, messages to deliver and to send.
  std::uint32_t progress();
  [[nodiscard]] bool has_work() const;
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

 private:
  enum class Side : std::uint8_t { connecting, accepting };

  Link(Instance& instance, Side side, UnixSocket socket, PeerProcess process, std::uint32_t serial);
  [[nodiscard]] bool watch(int fd, std::uint32_t events, Watched what);
  void unwatch_all();

  // What comes over the socket; control_mutex_ held.
  void read_socket();
  void update_interest();
  void handle(ControlSocket::Received received);
  void on_hello(const Hello& hello, std::vector<UniqueFd> descriptors);
  void on_welcome(const Welcome& welcome, std::vector<UniqueFd> descriptors);
  void on_share(const Share& share, std::vector<UniqueFd> descriptors);
  void on_settled();
  void prove_attach(const Nonce& nonce);
  void refuse(Code code, std::string text);

  void lose(Status status, std::string text);
  void attend() {
    attention_.store(true, std::memory_order_release);
    instance_.wake();
  }
  bool enter();
  void leave();
  std::uint32_t tell_changes();
  std::uint32_t deliver();
  void announce_to_host();
  void start_waiting();
  void end_posts(const Outcome& outcome);
  [[nodiscard]] std::string peer_text() const;

  Instance& instance_;
  const Side side_;
  const std::uint32_t serial_;
  PeerProcess process_;
  std::uint64_t handshake_deadline_ns_ = 0;

  // Written while connecting, before state_ says ready.
  std::string peer_name_;
  std::uint64_t peer_incarnation_ = 0;  // connecting side: 0 if any is right
  std::unique_ptr<MessagePipe> pipe_;
  std::unique_ptr<LiveView> live_;
  std::string attach_refusal_;

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
  Imports imports_;

  mutable std::mutex state_mutex_;
  Status lost_status_;
  std::string lost_text_;

  std::mutex posts_mutex_;
  std::vector<Request*> waiting_;
  std::vector<Request*> active_;
  std::atomic<std::uint32_t> in_flight_{0};

  // The progress thread's.
  std::uint64_t link_token_ = 0;
  bool told_ready_ = false;
  bool told_lost_ = false;
  bool abandoned_ = false;
};

}  // namespace headrace::shm
