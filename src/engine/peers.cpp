// SPDX-License-Identifier: Apache-2.0
#include "engine/peers.hpp"

#include "base/names.hpp"
#include "base/utf8.hpp"
#include "engine/request_core.hpp"
#include "engine/take_metadata.hpp"

#include <algorithm>
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
  for (const auto& link : life.links) {
    if (link->state() == LinkState::ready) info.connected = true;
    any_lost = any_lost || link->state() == LinkState::lost;
  }
  info.lost = !info.connected && (any_lost || life.fate.load() != Fate::alive);
  for (const BackendInstance* backend : all)
    if (backend->can(HEADRACE_REMOTE) && life.backend_number(backend->name()) >= 0)
      info.backends.push_back(backend->name());
  return info;
}

/// What speaks against each way to a peer, and what the caller can do about it.
struct NoWay {
  Code code = Code::not_supported;
  std::string refusals;

  void add(Code why, std::string_view sentence) {
    if (why == Code::peer_lost) code = Code::peer_lost;
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

Result<std::shared_ptr<PeerLife>> Peers::find(std::string_view name) const {
  {
    const std::shared_lock lock(mutex_);
    if (const auto at = lives_.find(name); at != lives_.end()) return at->second;
  }
  return make_error(Code::not_found,
                    "peer {} is unknown: import its metadata first (import_metadata, fetch_metadata or find)",
                    name);
}

/// The record of this life, made if need be; an earlier life of the name ends with it.
std::shared_ptr<PeerLife> Peers::life_of(std::string_view peer, std::uint64_t incarnation) {
  std::shared_ptr<PeerLife> former;
  std::shared_ptr<PeerLife> life;
  {
    const std::unique_lock lock(mutex_);
    auto& at = lives_[std::string(peer)];
    if (at && at->incarnation == incarnation) return at;
    former = std::exchange(at, std::make_shared<PeerLife>(std::string(peer), incarnation));
    life = at;
  }
  if (former) {
    log_.info("peer {} has restarted: incarnation {:016x} replaces {:016x}", peer, incarnation,
              former->incarnation);
    telemetry_.event("engine", fmt::format("peer {} restarted", peer));
    end_life(*former, Fate::replaced, fmt::format("peer {} has restarted since", peer));
  }
  return life;
}

void Peers::end_life(PeerLife& life, Fate fate, const std::string& why) {
  life.fate.store(fate);
  life.epoch.fetch_add(1);
  {
    const std::unique_lock lock(life.mutex);
    life.detail = why;
  }
  for (const auto& link : life.all_links()) links_.lose(link, {Code::peer_lost}, why);
}

std::uint64_t Peers::accepted(BackendInstance& from, void* connection, std::string_view peer,
                              std::uint64_t incarnation) {
  if (calls_.closed()) return 0;
  if (peer.empty() || !is_utf8(peer) || has_control_character(peer)) {
    log_.warn(
        "refused a link over {} from an agent whose name is empty, not UTF-8 or has a control character",
        from.name());
    return 0;
  }
  if (peer == self_.name && incarnation != self_.incarnation) {
    log_.warn("refused a link over {} from another agent that is called {} too: names must be unique",
              from.name(), peer);
    return 0;
  }
  const auto link = links_.accepted(life_of(peer, incarnation), from, connection);
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
  return {};
}

// ------------------------------------------------------------------ metadata

Result<ImportReport> Peers::import(wire::Metadata metadata) {
  HEADRACE_TRY_VOID(calls_.usable());
  if (metadata.name == self_.name && metadata.incarnation == self_.incarnation)
    return make_error(
        Code::invalid_argument,
        "this metadata is of this agent itself, {}: import that of a peer; a transfer to oneself needs none",
        metadata.name);
  if (metadata.name == self_.name)
    return make_error(Code::invalid_argument,
                      "the peer is called {} as this agent is: give one of the two another name",
                      metadata.name);
  const auto former = find(metadata.name);
  ImportReport report;
  report.restarted = former && (*former)->incarnation != metadata.incarnation;
  const auto life = life_of(metadata.name, metadata.incarnation);
  HEADRACE_TRY_VOID(take_metadata(*life, metadata));
  expect_again(*life);
  report.peer = life->name;
  report.incarnation = life->incarnation;
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
  for (std::size_t i = 0; i < life->regions.size(); ++i)
    all.push_back(described_remote(*life, life->regions.ids()[i], life->regions.rows()[i]));
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

Result<void> Peers::connect(std::string_view name, Timeout timeout, const std::vector<std::string>& wanted) {
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
  HEADRACE_TRY_VOID(wait_for_a_link(name, links, timeout));
  for (const auto& link : links) {
    if (link->state() == LinkState::ready) return {};
    none.add(link->lost_status().code, fmt::format("{}: {}", link->backend().name(), link->lost_text()));
  }
  return none.error(name);
}

/// Until none of these is connecting.
Result<void> Peers::wait_for_a_link(std::string_view peer, const std::vector<std::shared_ptr<Link>>& links,
                                    Timeout timeout) const {
  const auto settled = [&] {
    return calls_.closed() || std::ranges::all_of(links, [](const auto& link) {
             return link->state() != LinkState::connecting;
           });
  };
  if (!progress_.wait(settled, progress_.deadline_in(timeout)))
    return make_error(
        Code::timed_out,
        "peer {} did not answer in time: is its process alive, and can it be reached from here?", peer);
  if (calls_.closed()) return calls_.closed_meanwhile();
  return {};
}

}  // namespace headrace::engine
