// SPDX-License-Identifier: Apache-2.0
#include "engine/peers.hpp"

#include "base/names.hpp"
#include "base/utf8.hpp"
#include "engine/await_peer.hpp"
#include "engine/request_core.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace::engine {
namespace {

Region described_remote(const PeerLife& life, std::uint32_t id, const RemoteRegion& row) {
  Region region;
  region.id = {id};
  region.kind = static_cast<MemoryKind>(row.kind);
  region.address = row.address;
  region.length_bytes = row.length;
  region.writable = row.writable;
  if (const auto* named = life.regions.name_and_note(id)) {
    region.name = named->first;
    region.note = named->second;
  }
  for (std::size_t b = 0; b < life.backends.size(); ++b)
    if ((row.backends >> b & 1) != 0) region.backends.push_back(life.backends[b].name);
  return region;
}

/// `all`: the backends that are open here.
PeerInfo described_peer(const PeerLife& life, const std::vector<BackendInstance*>& all) {
  PeerInfo info;
  info.name = life.name;
  info.incarnation = life.incarnation;
  const std::shared_lock lock(life.mutex);
  info.version = life.version;
  info.regions = life.regions.size();
  info.detail = life.detail;
  bool any_lost = !life.detail.empty();
  const auto is_linked = [&life](const BackendInstance* backend) {
    return std::ranges::any_of(life.links, [backend](const auto& link) {
      return link->state() == LinkState::ready && &link->backend() == backend;
    });
  };
  for (const auto& link : life.links) {
    if (link->state() == LinkState::ready) info.connected = true;
    any_lost = any_lost || link->state() == LinkState::lost;
  }
  info.lost = !info.connected && (any_lost || life.fate.load() != Fate::alive);
  for (const BackendInstance* backend : all)
    if (backend->can(HEADRACE_REMOTE) && (life.backend_number(backend->name()) >= 0 || is_linked(backend)))
      info.backends.push_back(backend->name());
  return info;
}

/// What speaks against each way to a peer, and what the caller can do about it.
struct NoWay {
  Code code = Code::not_supported;
  std::string refusals;

  void add(Code why, std::string_view sentence) {
    if (why == Code::exhausted || (why == Code::peer_lost && code != Code::exhausted)) code = why;
    refusals.append("\n  ").append(sentence);
  }
  [[nodiscard]] Error error(std::string_view peer) const {
    return make_error(code, "no way to peer {}:{}", peer,
                      refusals.empty()
                          ? " no backend that both have is open here: see Agent::backends, and those of the "
                            "peer in Agent::peers"
                          : refusals);
  }
};

/// Its metadata comes once more: it is there, or the caller tries again. What ended its last link says
/// nothing of the next one.
void expect_again(PeerLife& life) {
  const std::unique_lock lock(life.mutex);
  if (life.fate.load() == Fate::alive && life.links.empty()) life.detail.clear();
}

}  // namespace

// ------------------------------------------------------------------ lives

std::shared_ptr<PeerLife> Peers::known(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  const auto at = lives_.find(name);
  return at != lives_.end() ? at->second : nullptr;
}

Result<std::shared_ptr<PeerLife>> Peers::find(std::string_view name) const {
  if (auto life = known(name)) return life;
  return make_error(Code::not_found,
                    "peer {} is unknown: import its metadata first (import_metadata, fetch_metadata or find)",
                    name);
}

/// The record of this life, made if need be; an earlier life of the name ends with it. Null: it came by
/// itself, and there is no room for more of those.
std::shared_ptr<PeerLife> Peers::life_of(std::string_view peer, std::uint64_t incarnation, Origin origin) {
  const auto newcomer = contests_.take(peer, incarnation);
  const auto entered =
      enter(newcomer ? newcomer : std::make_shared<PeerLife>(std::string(peer), incarnation), origin);
  for (const auto& one : entered.dropped)
    if (gone_) gone_(*one);
  if (entered.life && origin == Origin::caller) entered.life->named.store(true);
  if (entered.former) replaced(*entered.former, incarnation);
  if (newcomer) NameContests::release(*newcomer);
  return entered.life;
}

/// Makes `life` the one of its name, unless that is one of the same incarnation.
Peers::Entered Peers::enter(std::shared_ptr<PeerLife> life, Origin origin) {
  Entered entered;
  const std::unique_lock lock(mutex_);
  const auto at = lives_.find(life->name);
  const bool is_new = at == lives_.end();
  if (!is_new && at->second->incarnation == life->incarnation) {
    entered.life = at->second;
    return entered;
  }
  if (origin == Origin::sender) {
    if (!has_room_for_stranger(entered.dropped) && is_new) return entered;
    strangers_.push_back(life);
  }
  if (!is_new) entered.former = at->second;
  lives_.insert_or_assign(life->name, life);
  entered.life = std::move(life);
  return entered;
}

void Peers::replaced(PeerLife& former, std::uint64_t incarnation) {
  log_.info("peer {} has restarted: incarnation {:016x} replaces {:016x}", former.name, incarnation,
            former.incarnation);
  telemetry_.event("engine", fmt::format("peer {} restarted", former.name));
  end_life(former, Fate::replaced, fmt::format("peer {} has restarted since", former.name));
}

/// Makes room by dropping the oldest that have neither links nor metadata. `mutex_` is held.
bool Peers::has_room_for_stranger(std::vector<std::shared_ptr<PeerLife>>& dropped) {
  for (std::size_t looks = strangers_.size(); looks > 0 && strangers_.size() >= limits_.strangers; --looks) {
    const auto oldest = strangers_.front().lock();
    strangers_.pop_front();
    if (!oldest || oldest->named.load()) continue;
    const auto at = lives_.find(oldest->name);
    if (at == lives_.end() || at->second != oldest) continue;
    if (!oldest->all_links().empty() || oldest->sent_bytes > 0) {
      strangers_.push_back(oldest);
      continue;
    }
    lives_.erase(at);
    dropped.push_back(oldest);
  }
  return strangers_.size() < limits_.strangers;
}

/// For a link that the peer has made. Null: it is refused.
std::shared_ptr<PeerLife> Peers::life_for_link(std::string_view peer, std::uint64_t incarnation) {
  const auto holder = known(peer);
  if (holder && holder->incarnation != incarnation && holder->is_connected())
    return contests_.join(holder, incarnation);
  return life_of(peer, incarnation, Origin::sender);
}

/// It is known which of two agents of a name is the peer.
void Peers::decided(const NameContests::Outcome& outcome) {
  PeerLife& holder = *outcome.holder;
  const auto present = known(holder.name);
  const auto& newcomer = outcome.newcomer;
  if (outcome.holder_stays || (present && present != outcome.holder)) {
    (void)refuse("peers.refused",
                 fmt::format("an agent that is called {} as the one that is connected, which is alive: names "
                             "must be unique",
                             holder.name));
    if (newcomer) end_life(*newcomer, Fate::refused, fmt::format("another agent {} is alive", holder.name));
    return;
  }
  if (!newcomer) {
    // It was asked for the sake of metadata, which may be sent again: until then it may come back.
    for (const auto& link : holder.all_links())
      links_.lose(link, {Code::peer_lost}, fmt::format("peer {} does not answer any more", holder.name));
    return;
  }
  const Entered entered = enter(newcomer, Origin::sender);
  if (entered.former) replaced(*entered.former, newcomer->incarnation);
  NameContests::release(*newcomer);
}

/// Counts and logs a refusal. Returns the token of no link.
std::uint64_t Peers::refuse(const char* counter, const std::string& why) {
  telemetry_.counter(counter).add();
  if (refusals_.due(progress_.clock().now_ns())) log_.warn("refused {}", why);
  return 0;
}

void Peers::end_life(PeerLife& life, Fate fate, const std::string& why) {
  life.fate.store(fate);
  life.epoch.fetch_add(1);
  {
    const std::unique_lock lock(life.mutex);
    life.detail = why;
    if (fate == Fate::refused) life.held.clear();
  }
  for (const auto& link : life.all_links()) links_.lose(link, {Code::peer_lost}, why);
  if (fate == Fate::replaced || fate == Fate::forgotten) {
    const std::unique_lock lock(mutex_);
    sent_bytes_ -= std::exchange(life.sent_bytes, 0);
  }
}

std::uint64_t Peers::accepted(BackendInstance& from, void* connection, std::string_view peer,
                              std::uint64_t incarnation) {
  const Call call(calls_);  // so that a close finds the link
  if (!call.admitted()) return 0;
  const auto refuse_it = [&](std::string_view why) {
    return refuse("links.refused", fmt::format("a link over {} from {}", from.name(), why));
  };
  if (peer.empty() || !is_utf8(peer) || has_control_character(peer))
    return refuse_it("an agent whose name is empty, not UTF-8 or has a control character");
  if (peer == self_.name && incarnation != self_.incarnation)
    return refuse_it(fmt::format("another agent that is called {} too: names must be unique", peer));
  const auto life = life_for_link(peer, incarnation);
  if (!life)
    return refuse_it(
        fmt::format("agent {}: {} agents have come that nobody has named here (option "
                    "max_strangers), or it is the third of its name",
                    peer, limits_.strangers));
  if (life->all_links().size() >= most_links)
    return refuse_it(fmt::format("peer {}: it has {} links already", peer, most_links));
  const auto link = links_.accepted(life, from, connection);
  log_.info("peer {} connected over {}", peer, from.name());
  progress_.event();
  return link->token();
}

Result<void> Peers::forget(std::string_view name) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY(life, find(name));
  {
    const std::unique_lock lock(mutex_);
    if (const auto at = lives_.find(name); at != lives_.end() && at->second == life) lives_.erase(at);
  }
  const auto links = life->all_links();
  for (const auto& link : links)
    for (const auto& core : link->in_flight().all()) core->cancel();
  end_life(*life, Fate::forgotten, fmt::format("peer {} was forgotten here", name));
  for (const auto& link : links) links_.end(link);
  if (gone_) gone_(*life);
  return {};
}

// ------------------------------------------------------------------ metadata

/// Whether metadata may be taken in that an agent sends of itself.
Result<void> Peers::check_sender(const wire::Metadata& m) {
  const auto holder = known(m.name);
  if (holder && holder->incarnation != m.incarnation && holder->is_connected()) {
    contests_.ask(holder);
    return make_error(
        Code::would_block,
        "an agent {} of another incarnation is connected here: it is asked whether it is alive; "
        "if you have restarted, send again in {} s",
        m.name, std::chrono::duration_cast<std::chrono::seconds>(NameContests::patience).count());
  }
  const std::shared_lock lock(mutex_);
  if (sent_bytes_ < limits_.sent_bytes) return {};
  return make_error(
      Code::exhausted,
      "agents have sent {} bytes of metadata, at most {} are kept (option metadata_bytes): fetch or "
      "import it here instead",
      sent_bytes_, limits_.sent_bytes);
}

/// What our caller names counts no more.
void Peers::recount_sent(PeerLife& life) {
  const std::unique_lock lock(mutex_);
  const std::shared_lock of_life(life.mutex);
  sent_bytes_ -= life.sent_bytes;
  sent_bytes_ += life.sent_bytes = life.named.load() ? 0 : life.regions.bytes() + 1;
}

Result<void> Peers::check_of_another(const wire::Metadata& m) const {
  if (m.name != self_.name) return {};
  if (m.incarnation == self_.incarnation)
    return make_error(
        Code::invalid_argument,
        "this metadata is of this agent itself, {}: import that of a peer; a transfer to oneself needs none",
        m.name);
  return make_error(Code::invalid_argument,
                    "the peer is called {} as this agent is: give one of the two another name", m.name);
}

Result<ImportReport> Peers::import(wire::Metadata metadata, Origin origin) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY_VOID(check_of_another(metadata));
  if (origin == Origin::sender) HEADRACE_TRY_VOID(check_sender(metadata));
  const auto former = known(metadata.name);
  ImportReport report;
  report.restarted = former && former->incarnation != metadata.incarnation;
  const auto life = life_of(metadata.name, metadata.incarnation, origin);
  if (!life)
    return make_error(
        Code::exhausted,
        "{} agents have come that nobody has named here, which are all that are allowed (option "
        "max_strangers): import or fetch the metadata of {} here instead",
        limits_.strangers, metadata.name);
  HEADRACE_TRY(taken, take_metadata(*life, metadata, origin));
  recount_sent(*life);
  expect_again(*life);
  report.peer = life->name;
  report.incarnation = life->incarnation;
  report.left_out = taken.left_out;
  report.note = std::move(taken.note);
  const std::shared_lock lock(life->mutex);
  report.version = life->version;
  report.regions = life->regions.size();
  return report;
}

std::vector<PeerInfo> Peers::list() const {
  std::vector<std::shared_ptr<PeerLife>> lives;
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [name, life] : lives_) lives.push_back(life);
  }
  const auto all = backends_.all();
  std::vector<PeerInfo> infos;
  infos.reserve(lives.size());
  for (const auto& life : lives) infos.push_back(described_peer(*life, all));
  return infos;
}

Result<std::vector<Region>> Peers::regions_of(std::string_view name) const {
  HEADRACE_TRY(life, find(name));
  const std::shared_lock lock(life->mutex);
  std::vector<Region> all;
  all.reserve(life->regions.size());
  life->regions.for_each(
      [&](std::uint32_t id, const RemoteRegion& row) { all.push_back(described_remote(*life, id, row)); });
  return all;
}

Result<Region> Peers::region_of(std::string_view name, std::string_view region_name) const {
  HEADRACE_TRY(life, find(name));
  const std::shared_lock lock(life->mutex);
  const auto id = life->regions.find_name(region_name);
  const RemoteRegion* const row = id ? life->regions.find(*id) : nullptr;
  if (row == nullptr)
    return make_error(
        Code::not_found,
        "peer {} has no region called {}: see peer_regions, and take in its metadata again if it is new",
        name, region_name);
  return described_remote(*life, *id, *row);
}

// ------------------------------------------------------------------ connecting

Result<void> Peers::connect(std::string_view name, Timeout timeout, const std::vector<std::string>& wanted,
                            const std::function<bool()>& interrupted) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY(life, find(name));
  NoWay none;
  const std::vector<BackendInstance*> open = backends_.all();
  for (const std::string& asked : wanted) {
    if (std::ranges::none_of(open, [&](const BackendInstance* b) { return b->name() == asked; }))
      none.add(Code::not_supported, asked + ": not open in this agent");
  }
  std::vector<std::shared_ptr<Link>> links;
  for (BackendInstance* backend : open) {
    if (!wanted.empty() && std::ranges::find(wanted, backend->name()) == wanted.end()) continue;
    if (!backend->can(HEADRACE_REMOTE)) continue;
    if (auto link = links_.to(life, *backend)) {
      links.push_back(std::move(*link));
    } else {
      none.add(link.code(), link.error().message);
    }
  }
  HEADRACE_TRY_VOID(wait_for_links(name, links, progress_.deadline_in(timeout), interrupted));
  for (const auto& link : links) {
    if (link->state() == LinkState::ready) return {};
    none.add(link->lost_status().code, fmt::format("{}: {}", link->backend().name(), link->lost_text()));
  }
  return none.error(name);
}

/// Until none of these is connecting.
Result<void> Peers::wait_for_links(std::string_view peer, const std::vector<std::shared_ptr<Link>>& links,
                                   Deadline deadline, const std::function<bool()>& interrupted) const {
  const auto settled = [&] {
    return calls_.closed() || std::ranges::all_of(links, [](const auto& link) {
             return link->state() != LinkState::connecting;
           });
  };
  HEADRACE_TRY_VOID(await_peer(progress_, peer, settled, deadline, interrupted));
  if (calls_.closed()) return calls_.closed_meanwhile();
  return {};
}

}  // namespace headrace::engine
