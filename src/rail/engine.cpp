// SPDX-License-Identifier: Apache-2.0
#include "rail/engine.hpp"

#include "base/random.hpp"
#include "rail/nic_list.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace headrace::rail {
namespace {

// Of one NIC, in one pass: peers that never pause leave other NICs, posts and deadlines their turn.
constexpr std::size_t polls_at_once = 64;

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(std::vector<std::unique_ptr<Provider>> providers,
                                             EngineEvents& events, const Clock& clock,
                                             const LinkOptions& options) {
  if (providers.empty() || providers.size() > max_rails)
    return make_error(Code::invalid_argument, "an engine has 1 to {} NICs, not {}", max_rails,
                      providers.size());
  std::vector<std::unique_ptr<Nic>> nics;
  for (auto& provider : providers) {
    HEADRACE_TRY(nic, Nic::open(std::move(provider)));
    nics.push_back(std::move(nic));
  }
  return std::unique_ptr<Engine>(new Engine(std::move(nics), events, clock, options));
}

Engine::Engine(std::vector<std::unique_ptr<Nic>> nics, EngineEvents& events, const Clock& clock,
               const LinkOptions& options)
    : nics_(std::move(nics)),
      events_(events),
      clock_(clock),
      options_(options),
      id_(random_u64()),
      polled_ns_(clock.now_ns()),
      by_peer_(nics_.size()) {}

std::string Engine::encode_keys(const std::vector<std::string>& keys) { return encode_nic_list(keys); }

std::vector<std::string> Engine::nic_addresses() const {
  std::vector<std::string> addresses;
  for (const auto& nic : nics_) addresses.push_back(nic->provider().address());
  return addresses;
}

std::string Engine::address() const { return encode_nic_list(nic_addresses()); }

// ------------------------------------------------------------------ links

Result<Link*> Engine::connect(std::string_view address) {
  HEADRACE_TRY(addresses, read_nic_list(address, "an address"));
  auto pairs = pair_nics(nic_addresses(), addresses);
  const auto rails = static_cast<std::uint32_t>(pairs.size());
  const auto peer_nics = static_cast<std::uint32_t>(addresses.size());
  Link::Setup setup{id_, random_u64(), rails, peer_nics, std::move(addresses), std::move(pairs)};
  links_.push_back(std::make_unique<Link>(std::move(setup), nics_, receives_, events_, options_));
  links_.back()->connect(clock_.now_ns());
  return links_.back().get();
}

void Engine::forget(Link& link) {
  for (auto& peers : by_peer_)
    std::erase_if(peers, [&link](const auto& each) { return each.second == &link; });
  std::erase_if(links_, [&link](const auto& each) { return each.get() == &link; });
}

Link& Engine::link_of(const RailHello& hello) {
  const auto at = std::find_if(links_.begin(), links_.end(), [&](const auto& link) {
    return link->id() == hello.link && !link->connects();
  });
  if (at != links_.end()) return **at;
  // No rail is connected from here.
  links_.push_back(
      std::make_unique<Link>(Link::Setup{hello.engine, hello.link, hello.rails, hello.nics, {}, {}}, nics_,
                             receives_, events_, options_));
  events_.linked(*links_.back());
  return *links_.back();
}

void Engine::joined(std::uint32_t nic, const Event& event, std::uint64_t now_ns) {
  const auto hello = read_rail_hello(event.text);
  const std::size_t known = links_.size();
  const bool taken = hello && link_of(*hello).joined(*hello, nic, event.peer, now_ns);
  if (!taken) nics_[nic]->provider().drop_peer(event.peer);
  // It may have started again, and its old links be silent. Its word ends none of them: each is asked.
  for (std::size_t i = 0; i < known && links_.size() > known; ++i) links_[i]->ask(now_ns);
}

// ------------------------------------------------------------------ memory

Result<LocalRegion> Engine::register_memory(const Memory& memory) { return register_with_all(nics_, memory); }

void Engine::deregister(const LocalRegion& region) { deregister_with_all(nics_, region); }

Result<RemoteRegion> Engine::load(std::string_view descriptor) {
  HEADRACE_TRY(keys, read_nic_list(descriptor, "a descriptor"));
  return RemoteRegion{std::move(keys), {}};
}

std::size_t Engine::held() const {
  std::size_t count = links_.size() + receives_.size();
  for (const auto& link : links_) count += link->held();
  for (const auto& peers : by_peer_) count += peers.size();
  for (const auto& nic : nics_) count += Nic::slots - nic->free_slots();
  return count;
}

// ------------------------------------------------------------------ receives

Status Engine::post_receive(const Receive& receive) {
  if (receive.bytes > 0) {
    if (receive.region == nullptr) return {Code::invalid_argument};
    const Memory& memory = receive.region->memory;
    if (memory.device) return {Code::not_supported};
    if (receive.offset > memory.bytes || receive.bytes > memory.bytes - receive.offset)
      return {Code::invalid_argument};
  }
  if (receive.from != nullptr && receive.from->lost()) return {Code::peer_lost};
  return receives_.add(receive) ? Status{} : Status{Code::would_block};
}

void Engine::cancel_receive(std::uint64_t token) {
  if (receives_.remove(token)) {
    events_.received(nullptr, token, 0, {Code::canceled});
    return;
  }
  const std::uint64_t now_ns = clock_.now_ns();
  for (std::size_t i = 0; i < links_.size(); ++i)
    if (links_[i]->cancel_receive(token, now_ns)) return;
}

/// A message of each link in turn, so that no peer takes all receives.
void Engine::match_messages() {
  for (bool matched = true; matched && receives_.size() > 0;) {
    matched = false;
    for (std::size_t i = 0; i < links_.size(); ++i) matched = links_[i]->match_message() || matched;
  }
}

// ------------------------------------------------------------------ progress

std::size_t Engine::poll() {
  const std::uint64_t now_ns = clock_.now_ns();
  look_at_absence(now_ns);
  std::size_t all = 0;
  std::array<Event, 32> events;
  for (std::uint32_t nic = 0; nic < nics_.size(); ++nic) {
    std::size_t count = events.size();
    for (std::size_t i = 0; i < polls_at_once && count == events.size(); ++i, all += count) {
      count = nics_[nic]->provider().poll(events);
      for (std::size_t at = 0; at < count; ++at) take(nic, events[at], now_ns);
    }
  }
  match_messages();
  for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->pump(now_ns);  // its callbacks may connect
  return all;
}

/// This process was stopped, or its worker busy: what peers said meanwhile has not been read.
void Engine::look_at_absence(std::uint64_t now_ns) {
  const std::uint64_t for_ns = now_ns - std::exchange(polled_ns_, now_ns);
  if (for_ns < static_cast<std::uint64_t>(options_.silent_after.count()) / 2) return;
  for (const auto& link : links_) link->was_away(now_ns, for_ns);
}

std::uint64_t Engine::next_ns() const {
  const std::uint64_t now_ns = clock_.now_ns();
  std::uint64_t next = UINT64_MAX;
  for (const auto& link : links_) next = std::min(next, link->next_ns(now_ns));
  return next;
}

void Engine::take(std::uint32_t nic, const Event& event, std::uint64_t now_ns) {
  if (event.kind == Event::Kind::joined) return joined(nic, event, now_ns);
  if (event.kind == Event::Kind::down) {
    for (const auto& link : links_) link->nic_is_down(nic, event.text, now_ns);
    return;
  }
  std::string message;
  const bool received = event.kind == Event::Kind::received && event.status.ok();
  if (received) message = nics_[nic]->received(event.token, event.bytes);
  Link* const link = link_of_peer(nic, event.peer);
  Rail* const rail = link != nullptr ? link->rail_of(nic, event.peer) : nullptr;
  if (event.kind == Event::Kind::dropped) by_peer_[nic].erase(event.peer);
  if (rail == nullptr) return;
  if (received) {
    link->message(*rail, message, now_ns);
  } else {
    link->take(*rail, event, now_ns);
  }
}

/// Null: a peer that was not taken.
Link* Engine::link_of_peer(std::uint32_t nic, PeerId peer) {
  if (const auto at = by_peer_[nic].find(peer); at != by_peer_[nic].end()) return at->second;
  for (const auto& link : links_)
    if (link->rail_of(nic, peer) != nullptr) return by_peer_[nic][peer] = link.get();
  return nullptr;
}

}  // namespace headrace::rail
