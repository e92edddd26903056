// SPDX-License-Identifier: Apache-2.0
#include "engine/mappings.hpp"

#include "base/errors.hpp"
#include "base/interrupt.hpp"
#include "engine/await_peer.hpp"

#include <algorithm>
#include <string>

namespace headrace {

std::span<std::byte> Mapping::bytes() const {
  return {static_cast<std::byte*>(state_->address), static_cast<std::size_t>(state_->length)};
}
int Mapping::device() const { return state_->device; }
bool Mapping::writable() const { return state_->writable; }
bool Mapping::alive() const { return state_->row->alive.load(std::memory_order_acquire); }

Mapping::State::~State() {
  if (calls.forked()) return;  // the parent's, as all that backends hold
  if (address != nullptr) backend->unmap(remote, address);
  if (remote != nullptr) backend->unload(remote);
}

}  // namespace headrace

namespace headrace::engine {
namespace {

/// Whether its peer, its link and its region are as they were when it was mapped.
bool still_there(const MappingRow& row) {
  if (row.life->fate.load() != Fate::alive || row.link->state() == LinkState::lost) return false;
  const std::shared_lock lock(row.life->mutex);
  return row.life->regions.find(row.region_id) != nullptr;
}

/// Whether this user can use such memory, over any backend.
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

/// A mapping that ended before the caller had it is none.
Result<void> check_alive(const MappingRow& row) {
  if (row.alive.load()) return {};
  if (row.life->fate.load() != Fate::alive || row.link->state() == LinkState::lost)
    return make_error(Code::peer_lost, "peer {} was lost while region {} was being mapped", row.life->name,
                      row.region_id);
  return make_error(Code::not_found, "peer {} has revoked region {} while it was being mapped",
                    row.life->name, row.region_id);
}

constexpr auto ask_again = std::chrono::milliseconds(1);  // a backend that waits for its peer

}  // namespace

/// What is to be mapped, for which user, and until when.
struct Mappings::Wanted {
  std::shared_ptr<PeerLife> life;
  std::uint32_t region_id = 0;
  RemoteRegion row;
  int device = -1;
  Deadline deadline = Deadline::never();
  const std::function<bool()>& interrupted;
};

/// What the backends that were asked for a mapping have said.
class Mappings::Refusals {
 public:
  void add(std::string_view said) { text_.append("\n  ").append(said); }
  /// The first that says more than that it does not map such memory decides what the caller can do.
  void add(const Error& error) {
    add(error.message);
    if (code_ == Code::not_supported) code_ = error.code;
  }
  [[nodiscard]] Error whole(const Wanted& wanted) const {
    return make_error(code_, "region {} of peer {} cannot be mapped:{}", wanted.region_id, wanted.life->name,
                      text_.empty() ? fmt::format(" no backend here maps {}",
                                                  kind_name(static_cast<MemoryKind>(wanted.row.kind)))
                                    : text_);
  }

 private:
  std::string text_;
  Code code_ = Code::not_supported;
};

Result<std::shared_ptr<Mapping::State>> Mappings::map(std::string_view name, RegionId region, Timeout timeout,
                                                      int device, const std::function<bool()>& interrupted) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY(wanted, find_wanted(name, region, timeout, device, interrupted));
  Refusals refusals;
  for (BackendInstance* backend : backends_.all()) {
    if (!backend->can(HEADRACE_MAP) || !backend->takes_remote(wanted.row.kind)) continue;
    if (device < 0 && backend->can(HEADRACE_NEEDS_VRAM)) {  // it would open a link between GPUs for nothing
      refusals.add(backend->name() + ": it maps memory for GPUs, not for the CPU");
      continue;
    }
    auto link = links_.to(wanted.life, *backend);
    if (!link) {
      // A link that cannot be made decides nothing, unless the peer is lost.
      link.code() == Code::peer_lost ? refusals.add(link.error()) : refusals.add(link.error().message);
      continue;
    }
    auto mapped = map_over(*backend, *link, wanted);
    if (mapped || mapped.code() == Code::timed_out || mapped.code() == Code::canceled) return mapped;
    refusals.add(mapped.error());
  }
  return refusals.whole(wanted);
}

Result<Mappings::Wanted> Mappings::find_wanted(std::string_view name, RegionId region, Timeout timeout,
                                               int device, const std::function<bool()>& interrupted) const {
  HEADRACE_TRY(life, peers_.find(name));
  Wanted wanted{life, region.value, {}, device, progress_.deadline_in(timeout), interrupted};
  {
    const std::shared_lock lock(life->mutex);
    const RemoteRegion* const found = life->regions.find(region.value);
    if (found == nullptr)
      return make_error(
          Code::not_found,
          "peer {} has no region {}: see peer_regions, and take in its metadata again if it is new", name,
          region.value);
    wanted.row = *found;
  }
  HEADRACE_TRY_VOID(check_user(wanted.row, region.value, name, device));
  return wanted;
}

/// timed_out, canceled: no other backend need be asked.
Result<std::shared_ptr<Mapping::State>> Mappings::map_over(BackendInstance& backend,
                                                           const std::shared_ptr<Link>& link,
                                                           const Wanted& wanted) {
  const auto settled = [&] { return calls_.closed() || link->state() != LinkState::connecting; };
  HEADRACE_TRY_VOID(await_peer(progress_, wanted.life->name, settled, wanted.deadline, wanted.interrupted));
  auto mapping = std::make_shared<Mapping::State>(calls_);
  mapping->engine = engine_.lock();
  mapping->backend = &backend;
  mapping->row = std::make_shared<MappingRow>();
  mapping->row->life = wanted.life;
  mapping->row->link = link;
  mapping->row->region_id = wanted.region_id;
  mapping->device = wanted.device;
  mapping->writable = wanted.row.writable;
  HEADRACE_TRY_VOID(ask_until(*mapping, wanted));
  keep(mapping->row);
  HEADRACE_TRY_VOID(check_alive(*mapping->row));
  return mapping;
}

/// Has the backend map it; again while it says would_block.
Result<void> Mappings::ask_until(Mapping::State& mapping, const Wanted& wanted) const {
  Interrupt interrupt(wanted.interrupted);
  for (;;) {
    auto outcome = map_once(mapping, wanted.row);
    if (outcome.code() != Code::would_block) return outcome;
    if (calls_.closed()) return calls_.closed_meanwhile();
    if (interrupt.asked())
      return Interrupt::error().within(fmt::format("wait for peer {}", wanted.life->name));
    if (wanted.deadline.expired(progress_.clock()))
      return make_error(Code::timed_out,
                        "peer {} did not hand over region {} for mapping in time: try again with more",
                        wanted.life->name, wanted.region_id);
    (void)progress_.wait([&] { return calls_.closed(); },
                         Deadline::earliest(wanted.deadline, progress_.deadline_in(ask_again)));
  }
}

/// Over its link, which is not connecting any more. would_block: the peer has not answered yet.
Result<void> Mappings::map_once(Mapping::State& mapping, const RemoteRegion& row) {
  const PeerLife& life = *mapping.row->life;
  Link& link = *mapping.row->link;
  BackendInstance& backend = *mapping.backend;
  const GatePass pass(link.gate());
  if (!pass) return make_error(link.lost_code(), "{}: {}", backend.name(), link.lost_text());
  if (mapping.remote == nullptr) {
    const std::string public_data = life.public_data_of(mapping.row->region_id, backend);
    HEADRACE_TRY(loaded,
                 backend.load_remote(link.connection(), row.to_c(mapping.row->region_id, public_data)));
    mapping.remote = loaded;
  }
  HEADRACE_TRY(mapped, backend.map(mapping.remote, mapping.device, mapping.writable));
  mapping.address = mapped.first;
  mapping.length = mapped.second;
  return {};
}

// ------------------------------------------------------------------ which are alive

void Mappings::keep(const std::shared_ptr<MappingRow>& row) {
  {
    const std::lock_guard lock(mutex_);
    rows_.emplace(std::pair{row->life.get(), row->region_id}, row);
    if (rows_.size() >= sweep_at_) {
      std::erase_if(rows_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = std::max(2 * rows_.size(), least_rows);
    }
  }
  // What ended before the row was in the list did not find it.
  if (!still_there(*row)) row->alive.store(false);
}

void Mappings::revoked(const PeerLife& life, std::span<const IdRange> ranges) {
  const std::lock_guard lock(mutex_);
  for (const IdRange& range : ranges) {
    for (auto at = rows_.lower_bound({&life, range.first});
         at != rows_.end() && at->first.first == &life && at->first.second - range.first < range.count; ++at)
      if (const auto row = at->second.lock()) row->alive.store(false);
  }
}

void Mappings::link_lost(const std::shared_ptr<Link>& link) {
  const std::lock_guard lock(mutex_);
  for (const auto& [region, weak] : rows_)
    if (const auto row = weak.lock(); row && row->link == link) row->alive.store(false);
}

bool Mappings::any() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(rows_, [](const auto& entry) { return !entry.second.expired(); });
}

}  // namespace headrace::engine
