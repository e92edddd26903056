// SPDX-License-Identifier: Apache-2.0
// The connection to one peer: the requests and messages that go over it, spread over its sockets.
#pragma once

#include "backends/tcp/channel.hpp"
#include "backends/tcp/context.hpp"
#include "backends/tcp/request.hpp"
#include "transport/message_inbox.hpp"
#include "transport/message_outbox.hpp"
#include "transport/patient_mutex.hpp"
#include "transport/request_book.hpp"

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::tcp {

class Link final : public std::enable_shared_from_this<Link>, public transport::HostCalls::Link {
 public:
  enum class State { connecting, ready, lost, closed };

  /// `token` is 0 for a link that a peer makes. It is ready from the start, because the host may use it as
  /// soon as it has heard of it; what is posted before the first socket is there waits for that.
  Link(Context& context, std::string peer_name, std::uint64_t peer_incarnation, std::uint64_t id,
       std::uint64_t token, unsigned sockets);
  ~Link() override;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] const std::string& peer_name() const { return peer_name_; }
  [[nodiscard]] std::uint64_t peer_incarnation() const { return peer_incarnation_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  /// After which silence this side pings. One side is first, so that an idle link has one ping and one pong
  /// at a time: the side that has accepted the link, unless the other one has many links. The side that pings
  /// wakes twice, for its time and for the pong, and with many links it does so for several at a time.
  [[nodiscard]] std::chrono::nanoseconds ping_after() const;
  [[nodiscard]] bool connecting() const;
  [[nodiscard]] bool alive() const;

  // What the host asks for.
  Status post(RemoteRequest& request, const headrace_post_v1& args);
  bool poll(RemoteRequest& request);
  void cancel(RemoteRequest& request);
  Status notify(std::uint32_t channel, std::string_view bytes);
  /// Messages that are in no batch of the first socket. What is in one leaves, also after `disconnect`.
  [[nodiscard]] std::uint64_t unsent() const;
  void disconnect();
  /// Keeps the peer out of a region that is going away.
  void detach(const Region& region);

  // What happens to it.
  /// Its peer makes a new link: it ends here as well, if the peer has closed it. What is still to be read
  /// from its sockets goes nowhere after that.
  void lose_if_closed();
  void accepted(std::uint64_t token);
  /// A socket has shaken hands. The first one makes a link that connects ready, which the host is told.
  /// False: it is not wanted (any more).
  bool attach(unsigned index, UniqueFd fd, std::string_view early);
  /// The end, unless it has ended before. Not with a lock held.
  void lose(Status status, std::string why) override;
  void deliver() override;

 private:
  friend class Channel;
  friend struct ChannelState;
  friend class Receiver;
  friend class GpuReceiver;
  friend class Sender;
  friend class GpuSender;

  [[nodiscard]] std::vector<std::shared_ptr<Channel>> channels() const;
  std::pair<bool, bool> take_in(const std::shared_ptr<Channel>& channel, unsigned index);
  void deliver_all();
  [[nodiscard]] bool writes_are_under_way() const;
  void end_all(HostCalls& calls, Status status, const std::string& text);
  std::uint64_t check_cancels(std::uint64_t now_ns, HostCalls& calls);
  [[nodiscard]] bool is_small(const RemoteRequest& request) const;

  // With mutex_ held.
  [[nodiscard]] std::shared_ptr<Channel> claim_idle(unsigned first);
  [[nodiscard]] std::shared_ptr<Channel> claim_awake();
  [[nodiscard]] std::vector<std::shared_ptr<Channel>> claim_for(const RemoteRequest& request);
  /// How much a socket may have under way, and how long its next chunk may be.
  [[nodiscard]] std::uint64_t window_now() const;
  [[nodiscard]] transport::ChunkLimits limits_of(const RemoteRequest& request) const;
  [[nodiscard]] RemoteRequest* next_work(bool reads, bool writes, bool reads_first) const;
  void took_chunk(RemoteRequest& request, const transport::Chunk& chunk, unsigned channel);
  void answered(const Unanswered& chunk, const transport::RequestBook::Answer& answer, HostCalls& calls);
  void refuse(RemoteRequest& request, HostCalls& calls, Status status, std::string text);
  void messages_changed();

  Context& context_;
  const std::string peer_name_;
  const std::uint64_t peer_incarnation_;
  const std::uint64_t id_;
  const unsigned sockets_;
  const bool accepted_;
  const transport::ChunkLimits limits_;
  std::atomic<std::uint64_t> token_;

  mutable transport::PatientMutex mutex_;
  State state_;
  std::vector<std::shared_ptr<Channel>> channels_;  // by index; null: not there
  unsigned attached_ = 0;      // sockets so far; an accepted link has room for more than its peer makes
  unsigned next_channel_ = 0;  // where the next request is tried first
  unsigned last_small_ = 0;    // the channel of the last small one
  transport::MessageOutbox outbox_;
  transport::RequestBook requests_{outbox_, peer_name_};
  transport::MessageInbox inbox_;
  std::deque<transport::MessageInbox::Acknowledgement> message_acks_;
  bool delivering_ = false;
};

}  // namespace headrace::tcp
