// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/links.hpp"

#include "base/errors.hpp"

#include <fmt/format.h>

#include <charconv>

namespace headrace::fake {
namespace {

std::string_view text_of(const headrace_connect_v1& args) {
  return {static_cast<const char*>(args.connection_info.data), args.connection_info.length};
}

}  // namespace

std::string Links::prefix() const { return fmt::format("fake:{}:", here_.network.name()); }
std::string Links::info(std::uint64_t number) const { return prefix() + std::to_string(number); }

Result<std::uint64_t> Links::number_in(std::string_view info, const char* peer_name) const {
  if (!info.starts_with("fake:"))
    return make_error(Code::invalid_argument,
                      "connection information of {} bytes for {} is not a fake backend's", info.size(),
                      peer_name);
  const std::string here = prefix();
  if (!info.starts_with(here))
    return make_error(Code::not_supported, "{} is at \"{}\", and fake reaches only the instances at \"{}\"",
                      peer_name, info, here);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(info.data() + here.size(), info.data() + info.size(), number);
  if (error != std::errc() || end != info.data() + info.size())
    return make_error(Code::invalid_argument, "connection information \"{}\" for {} ends in no number", info,
                      peer_name);
  return number;
}

Result<FakeInstance*> Links::find(std::uint64_t number, const headrace_connect_v1& args) const {
  const auto found = here_.network.instances.find(number);
  if (found == here_.network.instances.end())
    return make_error(Code::peer_lost, "{} at \"{}\" is gone", args.peer_name, text_of(args));
  const std::uint64_t incarnation = found->second->host.incarnation();
  if (args.peer_incarnation != 0 && incarnation != args.peer_incarnation)
    return make_error(Code::peer_lost, "{} at \"{}\" is another life of it: incarnation {:x} instead of {:x}",
                      args.peer_name, text_of(args), incarnation, args.peer_incarnation);
  return found->second;
}

Result<LinkEnd*> Links::connect(const headrace_connect_v1& args) {
  HEADRACE_TRY(number, number_in(text_of(args), args.peer_name));
  const auto mine = std::make_shared<LinkEnd>(), theirs = std::make_shared<LinkEnd>();
  {
    const Lock lock(here_.network.mutex);
    HEADRACE_TRY(peer, find(number, args));
    mine->owner = &here_;
    theirs->owner = peer;
    mine->other = theirs;
    theirs->other = mine;
    mine->token = args.link_token;
    here_.links.add(mine);
    peer->links.add(theirs);
    theirs->push(Event::Kind::accept);
  }
  here_.network.settle();
  return mine.get();
}

void Links::accept(Lock& lock, const std::shared_ptr<LinkEnd>& link) {
  const auto other = link->other.lock();
  if (link->state != LinkState::connecting || !other) {  // the other side has given it up already
    here_.links.drop(*link);
    return;
  }
  const std::string peer_name(other->owner->host.agent_name());
  const std::uint64_t incarnation = other->owner->host.incarnation();
  link->state = LinkState::open;  // the host may post before `accepted` returns
  std::uint64_t token = 0;
  {
    const Outside outside(lock, link.get());
    token = here_.host.accepted(link.get(), peer_name, incarnation);
  }
  link->token = token;
  if (token == 0) {
    link->break_off(LinkState::closed, {Code::canceled}, "the host refused the link");
    here_.links.drop(*link);
    return other->lose({Code::peer_lost}, fmt::format("{} refused the link", here_.host.agent_name()));
  }
  if (link->state == LinkState::open) other->push(Event::Kind::ready);
}

void Links::ready(Lock& lock, const std::shared_ptr<LinkEnd>& link) {
  if (link->state != LinkState::connecting) return;
  link->state = LinkState::open;
  const Outside outside(lock, link.get());
  here_.host.link_event(link->token, HEADRACE_LINK_READY, {}, "connected");
}

void Links::lost(Lock& lock, const std::shared_ptr<LinkEnd>& link) {
  requests_.end_waiting(lock, *link, link->lost_status, link->lost_text);
  if (link->state == LinkState::closed) return;
  link->told_lost = true;
  if (link->token == 0) return;  // refused, or given up before it was accepted
  const Outside outside(lock, link.get());
  here_.host.link_event(link->token, HEADRACE_LINK_LOST, link->lost_status, link->lost_text);
}

void Links::disconnect(const LinkEnd& end) {
  {
    Lock lock(here_.network.mutex);
    if (!here_.links.has(end)) return;  // came in, and was refused by the host just now
    const std::shared_ptr<LinkEnd> link = here_.links.get(end);
    const Status canceled{Code::canceled};
    const char* const text = "the link was disconnected";
    link->break_off(LinkState::closed, canceled, text);
    if (const auto other = link->other.lock())
      other->lose({Code::peer_lost}, fmt::format("{} closed the link", here_.host.agent_name()));
    requests_.end_waiting(lock, *link, canceled, text);
    here_.network.changed.wait(lock, [&] { return link->busy == 0 && link->in_flight.empty(); });
    here_.links.drop(end);
  }
  here_.network.settle();
}

void Links::disconnect_all() {
  for (;;) {
    LinkEnd* link = nullptr;
    {
      const Lock lock(here_.network.mutex);
      link = here_.links.any();
    }
    if (link == nullptr) return;
    disconnect(*link);
  }
}

}  // namespace headrace::fake
