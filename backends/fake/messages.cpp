// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/messages.hpp"

#include <cstring>

namespace headrace::fake {
namespace {

constexpr std::uint32_t count_channel = UINT32_MAX;  // of the counts of posts; the host does not use it
constexpr std::uint64_t max_undelivered = 256;       // on one link, that the far host has not heard yet

}  // namespace

Status Messages::may_send(const LinkEnd& link) {
  return {link.undelivered >= max_undelivered ? Code::would_block : Code::ok};
}

Status Messages::may_send(const LinkEnd& link, std::uint32_t channel, std::uint64_t bytes) {
  if (bytes > max_bytes || channel == count_channel) return {Code::invalid_argument};
  return may_send(link);
}

std::uint64_t Messages::take_place(LinkEnd& link, std::uint32_t channel) {
  ++link.undelivered;
  return ++link.channels[channel].sent;
}

Status Messages::notify(LinkEnd& link, std::uint32_t channel, std::string_view bytes) {
  const std::uint64_t now = here_.host.now_ns();
  {
    const Lock lock(here_.network.mutex);
    if (const Status usable = link.usable(); !usable.ok()) return usable;
    if (const Status may = may_send(link, channel, bytes.size()); !may.ok()) return may;
    const Mishap mishap = here_.script.next_action();
    Message message{.channel = channel, .sequence = take_place(link, channel), .bytes = std::string(bytes)};
    if (mishap.kill_page)
      link.kill();
    else
      send(link, std::move(message), mishap, now);
  }
  here_.network.settle();
  return {};
}

std::uint64_t Messages::unsent(const LinkEnd& link) const {
  const Lock lock(here_.network.mutex);
  return link.undelivered;
}

void Messages::send(LinkEnd& from, Message message, const Mishap& mishap, std::uint64_t now) {
  Event event;
  event.kind = Event::Kind::message;
  event.link = from.other.lock();
  event.message = std::move(message);
  if (!event.link || from.broken) return;  // what was on its way is lost with the link
  Worker& worker = here_.worker;
  if (mishap.duplicate) worker.forward(event);
  if (mishap.delay_ns != 0) {
    worker.delay(std::move(event), now, mishap.delay_ns);
  } else if (mishap.reorder) {
    worker.hold_back(std::move(event));
  } else {
    worker.forward(std::move(event));
    worker.release_held_back(Event::Kind::message);
  }
}

/// Counts need no order among themselves. So a count takes its number when the post has ended, and waits for
/// no earlier post.
void Messages::send_count(LinkEnd& from, plugin::Immediate immediate, const Mishap& mishap) {
  Message count;
  count.channel = count_channel;
  count.sequence = ++from.channels[count_channel].sent;
  count.bytes.assign(reinterpret_cast<const char*>(&immediate), sizeof immediate);
  send(from, std::move(count), mishap, 0);
}

void Messages::receive(Lock& lock, const std::shared_ptr<LinkEnd>& link, Message message) {
  LinkEnd::Channel& channel = link->channels[message.channel];
  if (message.sequence < channel.expected) return;  // came before
  channel.early.emplace(message.sequence, std::move(message));
  for (;;) {
    const bool deaf = link->token == 0 || link->told_lost || link->state == LinkState::closed;
    const auto next = channel.early.find(channel.expected);
    if (deaf || next == channel.early.end()) return;
    const Message here = std::move(next->second);
    channel.early.erase(next);
    ++channel.expected;
    if (const auto other = link->other.lock()) --other->undelivered;
    if (!here.nothing) give_to_host(lock, *link, here);
  }
}

void Messages::give_to_host(Lock& lock, LinkEnd& link, const Message& message) {
  const Outside outside(lock, &link);
  if (message.channel != count_channel)
    return here_.host.received(link.token, message.channel, message.bytes);
  plugin::Immediate immediate;
  std::memcpy(&immediate, message.bytes.data(), sizeof immediate);
  here_.host.counted(link.token, immediate);
}

}  // namespace headrace::fake
