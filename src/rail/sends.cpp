// SPDX-License-Identifier: Apache-2.0
#include "rail/sends.hpp"

#include <algorithm>
#include <utility>

namespace headrace::rail {
namespace {

bool travels_along(const OutMessage& message) {
  return message.bytes == 0 || (message.bytes <= max_inline_bytes && !message.region->memory.device);
}

}  // namespace

Status Sends::post(const OutMessage& message) {
  if (message.bytes > 0) {
    if (message.region == nullptr) return {Code::invalid_argument};
    const std::uint64_t all = message.region->memory.bytes;
    if (message.offset > all || message.bytes > all - message.offset) return {Code::invalid_argument};
  }
  if (waiting_.size() >= most_waiting) return {Code::would_block};
  waiting_.push_back(message);
  return {};
}

void Sends::cancel(std::uint64_t token, std::uint64_t now_ns) {
  const auto waits = std::find_if(waiting_.begin(), waiting_.end(),
                                  [token](const OutMessage& each) { return each.token == token; });
  if (waits != waiting_.end()) {
    waiting_.erase(waits);
    ended.push_back({token, {Code::canceled}, "it was canceled before it was offered"});
    return;
  }
  for (auto& [id, open] : open_) {
    if (open.message.token != token || std::exchange(open.canceling, true)) continue;
    open.canceled_ns = now_ns;
    to_withdraw_.push_back(id);
    return;
  }
}

void Sends::offer(std::deque<std::string>& outgoing) {
  for (; !to_withdraw_.empty(); to_withdraw_.pop_front())
    outgoing.push_back(encode(Withdraw{to_withdraw_.front()}));
  while (!waiting_.empty() && (open_.empty() || next_id_ < open_.begin()->first + offer_window))
    offer_next(outgoing);
}

void Sends::offer_next(std::deque<std::string>& outgoing) {
  Open open{waiting_.front(), {}};
  waiting_.pop_front();
  if (!travels_along(open.message)) {
    Memory memory = open.message.region->memory;
    memory.address += open.message.offset;
    memory.bytes = open.message.bytes;
    memory.access = Access::peers_read;
    auto lent = register_with_all(nics_, memory);
    if (!lent) {
      ended.push_back({open.message.token, {lent.code()}, lent.error().message});
      return;
    }
    open.lent = std::move(*lent);
  }
  std::string bytes = encode(make_offer(next_id_, open));
  const auto at = open_.emplace(next_id_, std::move(open)).first;
  if (bytes.size() > max_link_message_bytes) {
    end(at, {Code::not_supported},
        fmt::format("the keys of {} NICs need {} bytes, and an offer has {}", nics_.size(), bytes.size(),
                    max_link_message_bytes));
    return;
  }
  ++next_id_;
  outgoing.push_back(std::move(bytes));
}

Offer Sends::make_offer(std::uint64_t id, const Open& open) {
  Offer offer{id, open.message.bytes, {}, open.lent.keys};
  if (offer.keys.empty() && offer.bytes > 0)
    offer.content.assign(
        reinterpret_cast<const char*>(open.message.region->memory.address + open.message.offset),
        open.message.bytes);
  return offer;
}

void Sends::say_again(std::deque<std::string>& outgoing) const {
  for (const auto& [id, open] : open_) {
    outgoing.push_back(encode(make_offer(id, open)));
    if (open.canceling) outgoing.push_back(encode(Withdraw{id}));
  }
}

Result<void> Sends::done(const Done& done) {
  if (done.id >= next_id_)
    return make_error(Code::corrupt, "the peer is done with message {}, and {} were offered", done.id,
                      next_id_ - 1);
  const auto at = open_.find(done.id);
  if (at == open_.end()) return {};  // it was said before
  std::string why;
  if (done.code == Code::invalid_argument)
    why = fmt::format("a message of {} bytes is longer than the receive, which has room for {}",
                      at->second.message.bytes, done.room);
  if (done.code == Code::canceled)
    why = at->second.canceling ? "it was canceled before it was received" : "the receive was canceled";
  if (done.code == Code::backend_failed) why = "the peer could not use the memory of its receive";
  end(at, {done.code}, std::move(why));
  return {};
}

void Sends::end(std::map<std::uint64_t, Open>::iterator at, Status status, std::string why) {
  deregister_with_all(nics_, at->second.lent);
  ended.push_back({at->second.message.token, status, std::move(why)});
  open_.erase(at);
}

bool Sends::is_overdue(std::uint64_t now_ns, std::uint64_t timeout_ns) const {
  return std::any_of(open_.begin(), open_.end(), [&](const auto& each) {
    return each.second.canceling && now_ns - each.second.canceled_ns > timeout_ns;
  });
}

void Sends::lose(Status status, const std::string& why) {
  while (!open_.empty()) end(open_.begin(), status, why);
  for (const OutMessage& message : std::exchange(waiting_, {})) ended.push_back({message.token, status, why});
  to_withdraw_.clear();
}

}  // namespace headrace::rail
