// SPDX-License-Identifier: Apache-2.0
// Peers: what we know of them, the links to them, and letting go of what they revoke.
#include "engine/engine.hpp"
#include "wire/agent_message.hpp"

#include <algorithm>

namespace headrace {

std::span<std::byte> Mapping::bytes() const {
  return {static_cast<std::byte*>(state_->address), static_cast<std::size_t>(state_->length)};
}
int Mapping::device() const { return state_->device; }
bool Mapping::writable() const { return state_->writable; }
bool Mapping::alive() const { return state_->row->alive.load(std::memory_order_acquire); }

Mapping::State::~State() {
  if (engine && engine->forked()) return;  // the parent's, as all that backends hold
  if (address != nullptr) backend->unmap(remote, address);
  if (remote != nullptr) backend->unload(remote);
}

}  // namespace headrace

namespace headrace::engine {

Result<std::shared_ptr<PeerLife>> Engine::peer(std::string_view name) const {
  {
    const std::shared_lock lock(peers_mutex_);
    if (const auto at = peers_.find(name); at != peers_.end()) return at->second;
  }
  return make_error(Code::not_found,
                    "peer {} is unknown: import its metadata first (import_metadata, fetch_metadata or find)",
                    name);
}

/// The record of this life, made if need be; an earlier life of the name ends with it.
std::shared_ptr<PeerLife> Engine::life_of(std::string_view peer, std::uint64_t incarnation) {
  std::shared_ptr<PeerLife> former;
  std::shared_ptr<PeerLife> life;
  {
    const std::unique_lock lock(peers_mutex_);
    auto& at = peers_[std::string(peer)];
    if (at && at->incarnation == incarnation) return at;
    former = std::exchange(at, std::make_shared<PeerLife>(std::string(peer), incarnation));
    life = at;
  }
  if (former) {
    log_.info("peer {} has restarted: incarnation {:016x} replaces {:016x}", peer, incarnation,
              former->incarnation);
    telemetry_.event("engine", fmt::format("peer {} restarted", peer));
    end_life(former, Fate::replaced, fmt::format("peer {} has restarted since", peer));
  }
  return life;
}

/// Nothing of this life is used any more; its links are closed soon, which ends what is in flight. Calls no
/// backend.
void Engine::end_life(const std::shared_ptr<PeerLife>& life, Fate fate, const std::string& why) {
  life->fate.store(fate);
  life->epoch.fetch_add(1);
  {
    const std::unique_lock lock(life->mutex);
    life->detail = why;
  }
  end_mappings([&](const MappingRow& row) { return row.life == life; });
  for (const auto& link : life->all_links()) {
    link->set_lost({Code::peer_lost}, why);
    close_link_later(link);
  }
}

std::shared_ptr<Link> Engine::add_link(const std::shared_ptr<PeerLife>& life, BackendInstance& backend,
                                       void* connection) {
  std::shared_ptr<Link> link;
  {
    const std::unique_lock lock(peers_mutex_);
    link = std::make_shared<Link>(next_link_++, backend, life);
    if (connection != nullptr) {
      link->set_connection(connection);
      link->set_ready();
      life->out_of_reach.store(false);
    }
    links_.emplace(link->token(), link);
  }
  const std::unique_lock lock(life->mutex);
  life->links.push_back(link);
  return link;
}

void Engine::drop_link(const std::shared_ptr<Link>& link) {
  {
    const std::unique_lock lock(peers_mutex_);
    links_.erase(link->token());
  }
  if (const auto life = link->life()) {
    const std::unique_lock lock(life->mutex);
    std::erase(life->links, link);
  }
  // A peer that is gone need not answer our revocations.
  bool answered = false;
  {
    const std::lock_guard lock(revokes_mutex_);
    for (auto& [sequence, round] : rounds_) answered = round.waiting.erase(link->token()) > 0 || answered;
    std::erase_if(pending_revokes_, [&](const PendingRevoke& pending) { return pending.link == link; });
    pending_revoke_count_.store(pending_revokes_.size());
  }
  if (answered) progress_->event();
}

void Engine::close_link_later(const std::shared_ptr<Link>& link) {
  defer([this, link] {
    link->close();
    drop_link(link);
    progress_->event();
  });
}

void Engine::kill_link(const std::shared_ptr<Link>& link, std::string_view why) {
  const auto life = link->life();
  log_.warn("closing the link to peer {} over {}: {}", life ? life->name : "?", link->backend().name(), why);
  link->set_lost({Code::canceled}, why);
  link->close();
  drop_link(link);
  progress_->event();
}

Result<std::shared_ptr<Link>> Engine::link_to(const std::shared_ptr<PeerLife>& life,
                                              BackendInstance& backend) {
  const std::lock_guard one_at_a_time(life->connecting);
  if (life->fate.load() != Fate::alive) {
    const std::shared_lock lock(life->mutex);
    return Error{Code::peer_lost, life->detail};
  }
  if (auto link = life->usable_link(backend)) return link;
  std::optional<std::string> info;
  {
    const std::shared_lock lock(life->mutex);
    const int number = life->backend_number(backend.name());
    if (number >= 0) info = life->backends[static_cast<std::size_t>(number)].info;
  }
  if (!info)
    return make_error(Code::not_found,
                      "the metadata of peer {} says nothing about how to reach it over {}: import its "
                      "connection information",
                      life->name, backend.name());
  // Known under its token before the backend is asked: it may speak of the link before `connect` returns.
  const auto link = add_link(life, backend, nullptr);
  headrace_connect_v1 args{};
  args.struct_size = sizeof args;
  args.link_token = link->token();
  args.peer_name = life->name.c_str();
  args.peer_incarnation = life->incarnation;
  args.connection_info = {info->data(), info->size()};
  auto connection = backend.connect(args);
  if (!connection) {
    link->close();  // whoever waits for its connection waits no longer
    drop_link(link);
    return std::move(connection).error();
  }
  link->set_connection(*connection);
  return link;
}

Result<void> Engine::connect(std::string_view name, Timeout timeout, const std::vector<std::string>& wanted) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(life, peer(name));
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
  std::vector<std::shared_ptr<Link>> links;
  std::string refusals;
  Code code = Code::not_supported;
  const std::vector<BackendInstance*> open = backends();
  for (const std::string& asked : wanted) {
    if (std::none_of(open.begin(), open.end(), [&](const BackendInstance* b) { return b->name() == asked; }))
      refusals += fmt::format("\n  {}: not open in this agent", asked);
  }
  for (BackendInstance* backend : open) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), backend->name()) == wanted.end()) continue;
    if (!backend->can(HEADRACE_REMOTE)) continue;
    auto link = link_to(life, *backend);
    if (link) {
      links.push_back(std::move(*link));
    } else {
      if (link.code() == Code::peer_lost) code = Code::peer_lost;
      refusals += "\n  " + link.error().message;
    }
  }
  const auto settled = [&] {
    return std::all_of(links.begin(), links.end(),
                       [](const auto& link) { return link->state() != LinkState::connecting; });
  };
  if (!progress_->wait(settled, deadline))
    return make_error(
        Code::timed_out,
        "peer {} did not answer in time: is its process alive, and can it be reached from here?", name);
  bool ready = false;
  for (const auto& link : links) {
    if (link->state() == LinkState::ready) {
      ready = true;
    } else {
      if (link->lost_status().code == Code::peer_lost) code = Code::peer_lost;
      refusals += fmt::format("\n  {}: {}", link->backend().name(), link->lost_text());
    }
  }
  if (ready) return {};
  return make_error(code, "no way to peer {}:{}", name,
                    refusals.empty() ? " no backend that both have is open here: see Agent::backends, and "
                                       "those of the peer in Agent::peers"
                                     : refusals);
}

Result<void> Engine::forget(std::string_view name) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(life, peer(name));
  {
    const std::unique_lock lock(peers_mutex_);
    if (const auto at = peers_.find(name); at != peers_.end() && at->second == life) peers_.erase(at);
  }
  const auto links = life->all_links();
  for (const auto& link : links)
    for (const auto& core : link->in_flight().all()) core->cancel();
  end_life(life, Fate::forgotten, fmt::format("peer {} was forgotten here", name));
  for (const auto& link : links) {
    link->close();
    drop_link(link);
  }
  return {};
}

Result<void> Engine::notify(std::string_view name, std::string_view payload) {
  HEADRACE_TRY_VOID(usable());
  auto bytes = wire::encode(wire::UserMessage{0, 0, payload});
  if (!bytes) return std::move(bytes).error();
  if (name == settings_.name) {
    received_from_self(payload);
    return {};
  }
  HEADRACE_TRY(life, peer(name));
  std::string refusals;
  Code code = Code::peer_lost;
  std::vector<BackendInstance*> order = backends();
  // Every agent has host memory, and a backend of GPUs alone may be in the driver for milliseconds before it
  // looks for messages.
  std::stable_partition(order.begin(), order.end(),
                        [](BackendInstance* b) { return b->takes_remote(HEADRACE_DRAM); });
  // A link that is there comes before one that would have to be made.
  std::stable_partition(order.begin(), order.end(),
                        [&](BackendInstance* b) { return life->usable_link(*b) != nullptr; });
  for (BackendInstance* backend : order) {
    if (!backend->can(HEADRACE_NOTIFY)) continue;
    auto link = link_to(life, *backend);
    if (!link) {
      refusals += "\n  " + link.error().message;
      continue;
    }
    // What a link takes while it is being made goes with it unsaid if nobody is there.
    if (life->out_of_reach.load() && (*link)->state() == LinkState::connecting) {
      refusals += fmt::format("\n  {} (a new connection is being tried: send again once it is there)",
                              life->detail_text());
      continue;
    }
    const GatePass pass((*link)->gate());
    if (!pass) continue;
    const Status status = backend->notify((*link)->connection(), HEADRACE_CHANNEL_USER, *bytes);
    if (status.ok()) {
      counters_.notifications_sent.add();
      return {};
    }
    if (status.code == Code::would_block)
      return make_error(Code::would_block, "too many messages to peer {} wait to be taken: try again", name);
    code = status.code;
    const std::string why = (*link)->lost_text();
    refusals += fmt::format("\n  {}: {}", backend->name(), why.empty() ? code_sentence(status.code) : why);
  }
  return make_error(code, "no way to notify peer {}:{}", name,
                    refusals.empty() ? " no backend that both have carries messages" : refusals);
}

void Engine::received_from_self(std::string_view payload) {
  counters_.notifications_sent.add();
  counters_.notifications_received.add();
  if (!inbox_.put({incarnation_, 0, 0}, {settings_.name, std::string(payload)}))
    counters_.notifications_dropped.add();
  hand_over_notifications();
  progress_->event();
}

Result<ImportReport> Engine::import(wire::Metadata metadata) {
  HEADRACE_TRY_VOID(usable());
  if (metadata.name == settings_.name && metadata.incarnation == incarnation_)
    return make_error(
        Code::invalid_argument,
        "this metadata is of this agent itself, {}: import that of a peer; a transfer to oneself needs none",
        metadata.name);
  if (metadata.name == settings_.name)
    return make_error(Code::invalid_argument,
                      "the peer is called {} as this agent is: give one of the two another name",
                      metadata.name);
  bool known = false;
  {
    const std::shared_lock lock(peers_mutex_);
    const auto at = peers_.find(metadata.name);
    known = at != peers_.end() && at->second->incarnation != metadata.incarnation;
  }
  const auto life = life_of(metadata.name, metadata.incarnation);
  HEADRACE_TRY_VOID(take_regions(*life, metadata));
  ImportReport report;
  report.peer = life->name;
  report.incarnation = life->incarnation;
  report.restarted = known;
  const std::shared_lock lock(life->mutex);
  report.version = life->version;
  report.regions = life->regions.size();
  return report;
}

Result<void> Engine::take_regions(PeerLife& life, wire::Metadata& m) {
  std::vector<RemoteRegion> rows(m.ids.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto kind = static_cast<std::uint8_t>(m.kinds[i] & ~wire::MetadataLimits::read_only_bit);
    rows[i] = {m.addresses[i], m.lengths[i], m.masks[i], kind, kind == m.kinds[i]};
  }
  const std::unique_lock lock(life.mutex);
  const bool whole = m.since == 0 && !m.partial;
  if (m.since > 0 && m.since > life.version) {
    return make_error(Code::not_found,
                      "this update of peer {} starts from version {}, we hold {}: ask it for a full export",
                      life.name, m.since, life.version);
  }
  if (whole && life.has_metadata && m.version < life.version) return {};  // older news that came late
  life.has_metadata = true;
  for (std::size_t b = 0; b < m.backends.size(); ++b) {
    auto& backend = m.backends[b];
    if (b < life.backends.size() && life.backends[b].name != backend.name) {
      return make_error(Code::corrupt,
                        "metadata of peer {} renames its backend {} from {} to {} within one incarnation",
                        life.name, b, life.backends[b].name, backend.name);
    }
    if (b == life.backends.size()) life.backends.push_back({backend.name, backend.version, std::nullopt});
    if (backend.info) life.backends[b].info = std::move(backend.info);
  }
  const std::size_t before = life.regions.size();
  if (whole) life.regions.keep_only(m.ids);
  if (!m.gone.empty()) life.regions.erase(m.gone);
  const bool lost_some = life.regions.size() < before;
  life.regions.merge(std::move(m.ids), std::move(rows));
  for (auto& named : m.named) life.regions.set_name(named.id, std::move(named.name), std::move(named.note));
  for (auto& data : m.public_data) life.regions.set_public(data.id, data.backend, std::move(data.bytes));
  life.version = std::max(life.version, m.version);
  if (lost_some) life.epoch.fetch_add(1);
  return {};
}

std::vector<PeerInfo> Engine::peers() const {
  std::vector<std::shared_ptr<PeerLife>> lives;
  {
    const std::shared_lock lock(peers_mutex_);
    for (const auto& [name, life] : peers_) lives.push_back(life);
  }
  std::vector<PeerInfo> infos;
  for (const auto& life : lives) {
    PeerInfo info;
    info.name = life->name;
    info.incarnation = life->incarnation;
    const std::shared_lock lock(life->mutex);
    info.version = life->version;
    info.regions = life->regions.size();
    info.detail = life->detail;
    bool any_lost = !life->detail.empty();
    for (const auto& link : life->links) {
      if (link->state() == LinkState::ready) info.connected = true;
      any_lost = any_lost || link->state() == LinkState::lost;
    }
    info.lost = !info.connected && (any_lost || life->fate.load() != Fate::alive);
    for (const BackendInstance* backend : backends())
      if (life->backend_number(backend->name()) >= 0) info.backends.push_back(backend->name());
    infos.push_back(std::move(info));
  }
  return infos;
}

namespace {

/// Whether its peer, its link and its region are as they were when it was mapped.
bool still_there(const MappingRow& row) {
  if (row.life->fate.load() != Fate::alive || row.link->state() == LinkState::lost) return false;
  const std::shared_lock lock(row.life->mutex);
  return row.life->regions.find(row.region_id) != nullptr;
}

Region describe(const PeerLife& life, std::uint32_t id, const RemoteRegion& row) {
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

}  // namespace

Result<std::vector<Region>> Engine::peer_regions(std::string_view name) const {
  HEADRACE_TRY(life, peer(name));
  const std::shared_lock lock(life->mutex);
  std::vector<Region> all;
  all.reserve(life->regions.size());
  for (std::size_t i = 0; i < life->regions.size(); ++i)
    all.push_back(describe(*life, life->regions.ids()[i], life->regions.rows()[i]));
  return all;
}

Result<Region> Engine::peer_region(std::string_view name, std::string_view region_name) const {
  HEADRACE_TRY(life, peer(name));
  const std::shared_lock lock(life->mutex);
  const auto id = life->regions.find_name(region_name);
  const RemoteRegion* const row = id ? life->regions.find(*id) : nullptr;
  if (row == nullptr)
    return make_error(
        Code::not_found,
        "peer {} has no region called {}: see peer_regions, and take in its metadata again if it is new",
        name, region_name);
  return describe(*life, *id, *row);
}

void Engine::end_mappings(const std::function<bool(const MappingRow&)>& which) {
  const std::shared_lock lock(peers_mutex_);
  for (const auto& weak : mappings_)
    if (const auto row = weak.lock(); row && which(*row)) row->alive.store(false);
}

namespace {

/// Whether such memory can be used there at all, whoever maps it.
Result<void> check_user(const RemoteRegion& row, std::uint32_t id, std::string_view peer, int device) {
  if (device < -1)
    return make_error(Code::invalid_argument, "there is no GPU {}: they count from 0, and -1 means the CPU",
                      device);
  if (device >= 0 || row.kind != HEADRACE_VRAM) return {};
  return make_error(
      Code::invalid_argument,
      "region {} of peer {} is GPU memory, which the CPU cannot read: name the GPU that will use it (device)",
      id, peer);
}

/// What the backends that were asked for a mapping have said.
class Refusals {
 public:
  void add(std::string_view said) { text_.append("\n  ").append(said); }
  /// The first that says more than that it does not map such memory decides what the caller can do.
  void add(const Error& error) {
    add(error.message);
    if (code_ == Code::not_supported) code_ = error.code;
  }
  [[nodiscard]] Error whole(std::uint32_t id, std::string_view peer, int kind) const {
    return make_error(code_, "region {} of peer {} cannot be mapped:{}", id, peer,
                      text_.empty()
                          ? fmt::format(" no backend here maps {}", kind_name(static_cast<MemoryKind>(kind)))
                          : text_);
  }

 private:
  std::string text_;
  Code code_ = Code::not_supported;
};

}  // namespace

Result<std::shared_ptr<Mapping::State>> Engine::map(std::string_view name, RegionId region, Timeout timeout,
                                                    int device) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(life, peer(name));
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
  RemoteRegion row;
  {
    const std::shared_lock lock(life->mutex);
    const RemoteRegion* const found = life->regions.find(region.value);
    if (found == nullptr)
      return make_error(
          Code::not_found,
          "peer {} has no region {}: see peer_regions, and take in its metadata again if it is new", name,
          region.value);
    row = *found;
  }
  HEADRACE_TRY_VOID(check_user(row, region.value, name, device));
  Refusals refusals;
  for (BackendInstance* backend : backends()) {
    if (!backend->can(HEADRACE_MAP) || !backend->takes_remote(row.kind)) continue;
    if (device < 0 && backend->can(HEADRACE_NEEDS_VRAM)) {  // no link of GPUs only to hear it from there
      refusals.add(backend->name() + ": it maps memory for GPUs, not for the CPU");
      continue;
    }
    auto link = link_to(life, *backend);
    if (!link) {
      if (link.code() == Code::peer_lost)
        refusals.add(link.error());
      else
        refusals.add(link.error().message);  // of a way that is not there nothing decides
      continue;
    }
    if (!progress_->wait([&] { return (*link)->state() != LinkState::connecting; }, deadline))
      return make_error(
          Code::timed_out,
          "peer {} did not answer in time: is its process alive, and can it be reached from here?", name);
    auto mapping = std::make_shared<Mapping::State>();
    mapping->engine = shared_from_this();
    mapping->backend = backend;
    mapping->row = std::make_shared<MappingRow>();
    mapping->row->life = life;
    mapping->row->link = *link;
    mapping->row->region_id = region.value;
    mapping->device = device;
    mapping->writable = row.writable;
    auto mapped = map_over(*mapping, row, deadline);
    if (mapped) {
      {
        const std::unique_lock lock(peers_mutex_);
        std::erase_if(mappings_, [](const auto& weak) { return weak.expired(); });
        mappings_.push_back(mapping->row);
      }
      // What ended before the row was in the list did not find it.
      if (!still_there(*mapping->row)) mapping->row->alive.store(false);
      return mapping;
    }
    if (mapped.code() == Code::would_block)
      return make_error(Code::timed_out,
                        "peer {} did not hand over region {} for mapping in time: try again with more", name,
                        region.value);
    refusals.add(mapped.error());
  }
  return refusals.whole(region.value, name, row.kind);
}

/// Has its backend map it, over its link, which is not connecting any more. would_block: not in time.
Result<void> Engine::map_over(Mapping::State& mapping, const RemoteRegion& row, Deadline deadline) {
  PeerLife& life = *mapping.row->life;
  Link& link = *mapping.row->link;
  BackendInstance& backend = *mapping.backend;
  headrace_remote_region_v1 args{};
  args.struct_size = sizeof args;
  args.region_id = mapping.row->region_id;
  args.kind = row.kind;
  args.address = row.address;
  args.length = row.length;
  std::string public_data;
  {
    const std::shared_lock lock(life.mutex);
    public_data = life.regions.public_data(args.region_id,
                                           static_cast<std::uint32_t>(life.backend_number(backend.name())));
  }
  args.public_data = {public_data.data(), public_data.size()};
  const auto try_once = [&]() -> Result<void> {
    const GatePass pass(link.gate());
    if (!pass) return make_error(Code::peer_lost, "{}: {}", backend.name(), link.lost_text());
    if (mapping.remote == nullptr) {
      HEADRACE_TRY(loaded, backend.load_remote(link.connection(), args));
      mapping.remote = loaded;
    }
    HEADRACE_TRY(mapped, backend.map(mapping.remote, mapping.device, mapping.writable));
    mapping.address = mapped.first;
    mapping.length = mapped.second;
    return {};
  };
  Result<void> outcome = try_once();
  while (outcome.code() == Code::would_block && !deadline.expired()) {
    (void)progress_->wait([] { return false; },
                          Deadline::earliest(deadline, Deadline::after(std::chrono::milliseconds(1))));
    outcome = try_once();
  }
  return outcome;
}

// --- revocation

bool Engine::peer_uses(const PeerLife& life, std::span<const IdRange> ranges) const {
  for (const auto& link : life.all_links())
    for (const auto& core : link->in_flight().all())
      if (core->plan().remote->touches(ranges)) return true;
  return false;
}

void Engine::agent_message(const std::shared_ptr<Link>& link, const std::string& bytes) {
  auto message = wire::decode_agent_message(bytes);
  const auto life = link->life();
  if (!life) return;
  if (!message) {
    log_.warn("dropped an agent's message of peer {}: {}", life->name, message.error().message);
    return;
  }
  if (auto* revoke = std::get_if<wire::Revoke>(&*message)) {
    let_go(link, revoke->sequence, std::move(revoke->ranges));
  } else if (const auto* revoked = std::get_if<wire::Revoked>(&*message)) {
    {
      const std::lock_guard lock(revokes_mutex_);
      if (const auto round = rounds_.find(revoked->sequence); round != rounds_.end())
        round->second.waiting.erase(link->token());
    }
    progress_->event();
  } else if (std::holds_alternative<wire::Goodbye>(*message)) {
    log_.info("peer {} says goodbye", life->name);
    end_life(life, Fate::left, fmt::format("peer {} has closed its agent", life->name));
  }
}

/// A peer takes regions back: no new post uses them from here on; the answer waits for those that run.
void Engine::let_go(const std::shared_ptr<Link>& link, std::uint64_t sequence, std::vector<IdRange> ranges) {
  const auto life = link->life();
  if (!life) return;
  {
    const std::unique_lock lock(life->mutex);
    life->regions.erase(ranges);
  }
  life->epoch.fetch_add(1);
  end_mappings([&](const MappingRow& row) {
    return row.life == life && std::ranges::any_of(ranges, [&](const IdRange& range) {
             return row.region_id - range.first < range.count;
           });
  });
  {
    const std::lock_guard lock(revokes_mutex_);
    pending_revokes_.push_back({link, life, sequence, std::move(ranges)});
    pending_revoke_count_.store(pending_revokes_.size());
  }
  answer_revokes();
}

void Engine::answer_revokes() {
  std::vector<PendingRevoke> pending;
  {
    const std::lock_guard lock(revokes_mutex_);
    pending.swap(pending_revokes_);
  }
  std::vector<PendingRevoke> still;
  bool full = false;
  for (PendingRevoke& revoke : pending) {
    if (peer_uses(*revoke.life, revoke.ranges)) {
      still.push_back(std::move(revoke));
      continue;
    }
    for (const auto& link : revoke.life->all_links()) {
      const GatePass pass(link->gate());
      if (pass) link->unload(revoke.ranges);
    }
    const GatePass pass(revoke.link->gate());
    if (!pass) continue;
    const Status sent =
        revoke.link->notify(*wire::encode(wire::AgentMessage{wire::Revoked{revoke.sequence}}));
    if (sent.code == Code::would_block) {
      full = true;
      still.push_back(std::move(revoke));
    }
  }
  const std::lock_guard lock(revokes_mutex_);
  for (PendingRevoke& revoke : still) pending_revokes_.push_back(std::move(revoke));
  pending_revoke_count_.store(pending_revokes_.size());
  if (full) progress_->at(now_ns() + 1'000'000, [this] { answer_revokes(); });
}

Result<void> Engine::ask_peers_to_let_go(std::span<const IdRange> ranges, Deadline deadline) {
  std::vector<std::uint64_t> sequences;
  std::string silent;
  Result<void> outcome;
  for (std::size_t at = 0; at < ranges.size() && outcome.ok(); at += wire::revoke_ranges) {
    const auto part = ranges.subspan(at, std::min(wire::revoke_ranges, ranges.size() - at));
    std::uint64_t sequence = 0;
    std::vector<std::shared_ptr<Link>> links;
    {
      const std::shared_lock lock(peers_mutex_);
      for (const auto& [token, link] : links_)
        if (link->state() != LinkState::lost && link->backend().can(HEADRACE_NOTIFY)) links.push_back(link);
    }
    {
      const std::lock_guard lock(revokes_mutex_);
      sequence = next_round_++;
      for (const auto& link : links) rounds_[sequence].waiting.emplace(link->token(), link);
    }
    sequences.push_back(sequence);
    const std::string message =
        *wire::encode(wire::AgentMessage{wire::Revoke{sequence, {part.begin(), part.end()}}});
    for (const auto& link : links) {
      Status sent{Code::would_block};
      while (sent.code == Code::would_block) {
        const GatePass pass(link->gate());
        if (!pass) break;
        sent = link->state() != LinkState::lost ? link->notify(message) : Status{Code::peer_lost};
        if (sent.code != Code::would_block) break;
        if (deadline.expired()) break;
        (void)progress_->poll();
      }
      if (!sent.ok() && sent.code != Code::would_block) {  // a link that is going: nobody is left to ask
        const std::lock_guard lock(revokes_mutex_);
        rounds_[sequence].waiting.erase(link->token());
      }
    }
  }
  const auto answered = [&] {
    const std::lock_guard lock(revokes_mutex_);
    return std::all_of(sequences.begin(), sequences.end(),
                       [&](std::uint64_t s) { return rounds_[s].waiting.empty(); });
  };
  if (!progress_->wait(answered, deadline)) {
    const std::lock_guard lock(revokes_mutex_);
    std::set<std::string> names;
    for (const std::uint64_t s : sequences)
      for (const auto& [token, link] : rounds_[s].waiting)
        if (const auto life = link->life()) names.insert(life->name);
    for (const std::string& name : names) silent += (silent.empty() ? "" : ", ") + name;
    outcome =
        make_error(Code::timed_out,
                   "no answer from {}: the regions stay registered; try again, or forget the peer", silent);
  }
  const std::lock_guard lock(revokes_mutex_);
  for (const std::uint64_t s : sequences) rounds_.erase(s);
  return outcome;
}

}  // namespace headrace::engine
