// SPDX-License-Identifier: Apache-2.0
#include "engine/notifications.hpp"

#include "base/errors.hpp"
#include "wire/agent_message.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace headrace::engine {

static_assert(wire::user_payload_bytes == max_notification_bytes);

namespace {

constexpr auto tell_again_after = std::chrono::milliseconds(1);  // if the way to the peer is full
constexpr int taken_at_a_time = 64;                              // by one call of the caller's function

/// The error of `notify` where no link can be made: the peer is not there, or takes no more links.
Error unreachable(const Error& error) {
  return {error.code == Code::exhausted ? Code::exhausted : Code::peer_lost, error.message};
}

}  // namespace

// ------------------------------------------------------------------ sending

Result<void> Notifications::send(std::string_view name, std::string_view payload) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY(bytes, wire::encode(wire::UserMessage{0, 0, payload}));
  if (name == self_.name) {
    if (!inbox_.has_room())
      return make_error(Code::would_block, "too many notifications wait here: take some, then try again");
    received_from_self(payload);
    return {};
  }
  HEADRACE_TRY(life, peers_.find(name));
  // The list of all ways would take longer than the message.
  if (const auto link = life->ready_message_link()) {
    auto sent = send_over(*life, *link, bytes);
    if (sent || sent.code() == Code::would_block) return sent;
  }
  return send_over_any(life, bytes);
}

/// Over the first backend that takes it.
Result<void> Notifications::send_over_any(const std::shared_ptr<PeerLife>& life, std::string_view bytes) {
  std::string refusals;
  Code code = Code::peer_lost;
  for (BackendInstance* backend : ways_to(*life)) {
    const auto link = links_.to(life, *backend);
    auto sent = link ? send_over(*life, **link, bytes) : Result<void>(unreachable(link.error()));
    if (sent || sent.code() == Code::would_block) return sent;
    if (sent.code() != Code::peer_lost) code = sent.code();
    refusals += "\n  " + sent.error().message;
  }
  return make_error(code, "no way to notify peer {}:{}", life->name,
                    refusals.empty() ? " no backend that both have carries messages" : refusals);
}

Result<void> Notifications::send_over(const PeerLife& life, Link& link, std::string_view bytes) {
  // A message that waits for a link is lost with it: the caller hears at once that the peer is not there.
  if (const Code why = life.out_of_reach.load(); why != Code::ok && link.state() != LinkState::ready)
    return make_error(why, "{} (another connection is tried meanwhile)", life.detail_text());
  const GatePass pass(link.gate());
  const Status status = pass ? link.send(HEADRACE_CHANNEL_USER, bytes) : Status{Code::peer_lost};
  if (status.ok()) {
    counters_.notifications_sent.add();
    return {};
  }
  if (status.code == Code::would_block)
    return make_error(Code::would_block, "too many messages to peer {} wait to be taken: try again",
                      life.name);
  const Code code = status.code == Code::peer_lost ? link.lost_code() : status.code;
  const std::string why = link.lost_text();
  return make_error(code, "{}: {}", link.backend().name(), why.empty() ? code_sentence(code) : why);
}

/// The backends that carry messages, in the order in which they are tried.
std::vector<BackendInstance*> Notifications::ways_to(const PeerLife& life) const {
  std::vector<BackendInstance*> order = backends_.all();
  std::erase_if(order, [](const BackendInstance* b) { return !b->can(HEADRACE_NOTIFY); });
  // Every agent has host memory, and a backend of GPUs alone may be in the driver for milliseconds before it
  // looks for messages.
  std::ranges::stable_partition(order, [](BackendInstance* b) { return b->takes_remote(HEADRACE_DRAM); });
  // A link that is there comes before one that would have to be made.
  std::ranges::stable_partition(order, [&](BackendInstance* b) { return life.usable_link(*b) != nullptr; });
  return order;
}

void Notifications::messages_left(const std::shared_ptr<Link>& link,
                                  const std::vector<LinkQueue::Message>& left) {
  std::vector<LinkQueue::Message> users;
  std::ranges::copy_if(left, std::back_inserter(users), [](const LinkQueue::Message& message) {
    return message.channel == HEADRACE_CHANNEL_USER;
  });
  const auto life = link->life();
  if (users.empty() || !life) return;
  progress_.defer([this, life, link, users = std::move(users)]() mutable { send_again(life, *link, users); });
}

/// They wait there for room, as all that is sent over that link, until it is lost, too.
void Notifications::send_again(const std::shared_ptr<PeerLife>& life, const Link& lost,
                               std::vector<LinkQueue::Message>& messages) {
  for (BackendInstance* backend : ways_to(*life)) {
    if (backend == &lost.backend()) continue;
    const auto link = another_link(life, *backend);
    if (link && links_.adopt(link, messages)) return;
  }
  dropped(lost, life->name, messages.size());
}

/// An agent that closes makes none.
std::shared_ptr<Link> Notifications::another_link(const std::shared_ptr<PeerLife>& life,
                                                  BackendInstance& backend) {
  const Call call(calls_);
  if (!call.admitted()) return life->usable_link(backend);
  const auto link = links_.to(life, backend);
  return link ? *link : nullptr;
}

void Notifications::messages_cut_off(const std::shared_ptr<Link>& link, std::uint64_t count) {
  const auto life = link->life();
  dropped(*link, life ? life->name : "?", count);
}

void Notifications::dropped(const Link& link, std::string_view peer, std::uint64_t count) {
  counters_.notifications_dropped.add(count);
  const std::string why = link.lost_text();
  log_.error("dropped {} notifications to peer {}: they had not left over {} when {}", count, peer,
             link.backend().name(), why.empty() ? "this agent was closed" : "the link was lost, " + why);
}

// ------------------------------------------------------------------ receiving

bool Notifications::received(const PeerLife& from, std::uint64_t link, std::string_view bytes) {
  const auto message = wire::decode_user_message(bytes);
  if (!message) {
    counters_.notifications_dropped.add();
    if (says_dropped_.due(progress_.clock().now_ns()))
      log_.warn("dropped a message of peer {}: {}", from.name, message.error().message);
    return arrived(inbox_.put_nothing(link, from.name, bytes.size()));
  }
  counters_.notifications_received.add();
  return arrived(inbox_.put(link, {from.serial, message->request, message->post_number}, bytes.size(),
                            {from.name, std::string(message->payload)}));
}

void Notifications::received_from_self(std::string_view payload) {
  counters_.notifications_sent.add();
  counters_.notifications_received.add();
  (void)arrived(inbox_.put(Inbox::self, {}, payload.size(), {self_.name, std::string(payload)}));
}

bool Notifications::held(const PeerLife& from, std::uint64_t link, std::string_view bytes) {
  const bool kept = received(from, link, bytes);
  if (!links_.find(link)) inbox_.link_gone(link);
  return kept;
}

bool Notifications::arrived(const Inbox::Receipt& receipt) {
  if (receipt.flooded) return false;
  // Later, since this may be a backend's call.
  if (receipt.due) progress_.defer([this, due = *receipt.due] { tell(due); });
  hand_over();
  progress_.event();
  return true;
}

/// A peer that is gone need not know.
void Notifications::tell(const Inbox::Due& due) {
  const auto link = links_.find(due.link);
  if (!link) return;
  const GatePass pass(link->gate());
  if (!pass) return;
  const auto message = wire::encode(wire::AgentMessage{due.credit});
  if (link->send(HEADRACE_CHANNEL_AGENT, *message).code == Code::would_block)
    progress_.after(tell_again_after, [this, due] { tell(due); });
}

void Notifications::link_gone(const std::shared_ptr<Link>& link) {
  inbox_.link_gone(link->token());
  const auto life = link->life();
  if (life && life->fate.load() != Fate::alive && life->all_links().empty()) forget(*life);
}

// ------------------------------------------------------------------ taking

std::vector<Notification> Notifications::take(const NotificationFilter& filter) {
  Inbox::Taken taken = inbox_.take(filter);
  for (const Inbox::Due& due : taken.dues) tell(due);
  return std::move(taken.notifications);
}

std::optional<Notification> Notifications::take_one(const NotificationFilter& filter) {
  std::optional<Notification> taken;
  if (const auto due = inbox_.take_one(filter, taken)) tell(*due);
  return taken;
}

/// Gives what waits to the caller's function, if there is one, on the callback thread.
void Notifications::hand_over() {
  const std::lock_guard lock(taker_mutex_);
  if (taker_) queue(taker_);
}

void Notifications::queue(const std::shared_ptr<Taker>& taker) {
  if (!taker->queued.exchange(true)) callbacks_.push([this, taker] { run(taker); });
}

/// Some at a time, so that other callbacks have their turn.
void Notifications::run(const std::shared_ptr<Taker>& taker) {
  taker->queued.store(false);  // before it looks: what comes from now on queues another call
  for (int i = 0; i < taken_at_a_time; ++i) {
    if (taker->ended.load()) return;
    auto notification = take_one({});
    if (!notification) return;
    taker->taken(std::move(*notification));
  }
  queue(taker);
}

void Notifications::on_notification(std::function<void(Notification)> taken) {
  {
    const std::lock_guard lock(taker_mutex_);
    if (taker_) taker_->ended.store(true);
    taker_ = taken ? std::make_shared<Taker>() : nullptr;
    if (taker_) taker_->taken = std::move(taken);
  }
  hand_over();
}

}  // namespace headrace::engine
