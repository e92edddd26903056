// SPDX-License-Identifier: Apache-2.0
#include "engine/local_regions.hpp"

#include "engine/plugin_host.hpp"
#include "engine/post_life.hpp"
#include "engine/range_check.hpp"

#include <algorithm>

namespace headrace::engine {
namespace {

std::string name_of(const RegisterOptions& options, std::size_t count, std::size_t i) {
  return options.name.empty() || count == 1 ? options.name : fmt::format("{}/{}", options.name, i);
}

std::shared_ptr<LocalRegion> make_region(const MemoryRange& range, const RegisterOptions& options,
                                         const LocalRegions::Backing& backing, std::size_t backends) {
  auto region = std::make_shared<LocalRegion>(backends);
  region->live.store(false);
  region->range = range;
  region->keep_alive = options.keep_alive;
  region->backing = backing.keep;
  region->memory_fd = backing.memory_fd;
  region->info.kind = range.kind;
  region->info.address = reinterpret_cast<std::uint64_t>(range.address);
  region->info.length_bytes = range.length_bytes;
  region->info.writable = range.writable;
  region->info.note = options.note;
  return region;
}

/// Registers with one backend, or says why not.
bool take(LocalRegion& region, BackendInstance& backend, std::size_t index, std::string& refusals) {
  const int kind = static_cast<int>(region.info.kind);
  if (!backend.takes_local(kind) && !backend.takes_remote(kind)) {
    refusals += fmt::format("\n  {} does not take {}", backend.name(), kind_name(region.info.kind));
    return false;
  }
  auto handle = backend.register_region(region.to_c());
  if (!handle) {
    refusals += "\n  " + handle.error().message;
    return false;
  }
  region.handles.set_local(index, *handle);
  return true;
}

/// Registers with each backend of `only`, or with all. False if none took it. `local` takes memory beside
/// those that reach peers.
bool register_with(LocalRegion& region, const std::vector<BackendInstance*>& all,
                   const std::vector<std::string>& only, std::string& refusals) {
  bool any = false, reaches_peers = false;
  std::size_t local = all.size();  // unless it was asked for
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool asked = only.empty() || std::ranges::find(only, all[i]->name()) != only.end();
    if (!asked && all[i]->name() == local_backend) local = i;
    if (!asked || !take(region, *all[i], i, refusals)) continue;
    any = true;
    reaches_peers = reaches_peers || all[i]->can(HEADRACE_REMOTE);
  }
  if (std::string ignored; reaches_peers && local < all.size())
    (void)take(region, *all[local], local, ignored);
  return any;
}

/// What its owner sees of a region, whose handles stay meanwhile.
Region described(const LocalRegion& region, const std::vector<BackendInstance*>& all) {
  Region info = region.info;
  info.backends.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (region.handles.local(i) != nullptr) info.backends.push_back(all[i]->name());
  return info;
}

Error no_such_region(std::uint32_t id, std::string_view purpose = {}) {
  return make_error(Code::not_found,
                    "this agent has no region {}{}: it was never registered here, or is deregistered already",
                    id, purpose);
}

/// Adds a region's row, and what its backends say about it. Its handles stay meanwhile.
Result<void> add_row(const LocalRegion& region, const std::vector<BackendInstance*>& all, wire::Metadata& m) {
  std::uint16_t mask = 0;
  for (std::size_t b = 0; b < all.size(); ++b) {
    if (region.handles.local(b) == nullptr) continue;
    mask |= static_cast<std::uint16_t>(1u << b);
    HEADRACE_TRY(bytes, all[b]->export_region(region.handles.local(b)));
    if (!bytes.empty())
      m.public_data.push_back({region.info.id.value, static_cast<std::uint16_t>(b), std::move(bytes)});
  }
  m.ids.push_back(region.info.id.value);
  m.addresses.push_back(region.info.address);
  m.lengths.push_back(region.info.length_bytes);
  m.kinds.push_back(
      static_cast<std::uint8_t>(static_cast<unsigned>(region.info.kind) |
                                (region.info.writable ? 0U : wire::MetadataLimits::read_only_bit)));
  m.masks.push_back(mask);
  if (!region.info.name.empty() || !region.info.note.empty())
    m.named.push_back({region.info.id.value, region.info.name, region.info.note});
  return {};
}

}  // namespace

LocalRegions::LocalRegions(const Self& self, CallGate& calls, Backends& backends, RegionUsers& users,
                           Progress& progress, CallbackQueue& callbacks)
    : self_(self),
      calls_(calls),
      backends_(backends),
      users_(users),
      progress_(progress),
      callbacks_(callbacks) {}

// ------------------------------------------------------------------ registering

Result<std::vector<Region>> LocalRegions::add(std::span<const MemoryRange> ranges,
                                              const RegisterOptions& options, const Backing& backing) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY_VOID(check_names(options));
  HEADRACE_TRY_VOID(check_ranges(ranges));
  const std::vector<BackendInstance*> all = backends_.all();
  HEADRACE_TRY(made, enter(ranges, options, backing, all.size()));
  std::string refusals;
  std::size_t registered = 0;
  while (registered < made.size() && register_with(*made[registered], all, options.backends, refusals))
    ++registered;
  if (registered < made.size()) {
    for (std::size_t i = 0; i < registered; ++i) give_back(*made[i]);
    remove(made);
    return make_error(Code::not_supported, "no backend takes this {} memory:{}",
                      kind_name(ranges[registered].kind),
                      refusals.empty() ? " none of those asked for is open" : refusals);
  }
  std::vector<Region> regions;
  regions.reserve(made.size());
  for (const auto& region : made) regions.push_back(described(*region, all));
  show(made);
  changed();
  return regions;
}

/// The table hands out the ids before the backends know the regions. Until `live` no other thread sees them.
Result<LocalRegions::Regions> LocalRegions::enter(std::span<const MemoryRange> ranges,
                                                  const RegisterOptions& options, const Backing& backing,
                                                  std::size_t backends) {
  Regions made;
  made.reserve(ranges.size());
  const std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < ranges.size() && !options.name.empty(); ++i) {
    if (const std::string name = name_of(options, ranges.size(), i); names_.contains(name))
      return make_error(
          Code::invalid_argument,
          "a region is called {} already: names are unique in an agent, give this one another or none", name);
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    auto region = make_region(ranges[i], options, backing, backends);
    region->info.name = name_of(options, ranges.size(), i);
    region->info.id = {table_.add(region->info.kind == MemoryKind::dram ? region->info.address : 0,
                                  region->info.length_bytes, region)};
    if (!options.name.empty()) names_[region->info.name] = region->info.id.value;
    made.push_back(std::move(region));
  }
  return made;
}

/// Exports list them from now on. An export that was made meanwhile has the version of their ids without
/// them: for later updates they are new once more.
void LocalRegions::show(const Regions& regions) {
  const std::unique_lock lock(mutex_);
  for (const auto& region : regions) {
    region->listed.store(true);
    region->live.store(true, std::memory_order_release);
    table_.renew(region->info.id.value, exported_.load());
  }
}

void LocalRegions::remove(const Regions& regions) {
  const std::unique_lock lock(mutex_);
  for (const auto& region : regions) {
    table_.remove(region->info.id.value);
    names_.erase(region->info.name);
  }
}

/// Takes the region from the backends. No post uses it any more.
void LocalRegions::give_back(LocalRegion& region) {
  const std::unique_lock nobody_prepares(handles_mutex_);
  const auto all = backends_.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (void* const handle = region.handles.far(i); handle != nullptr) {
      region.handles.set_far(i, nullptr);
      all[i]->unload(handle);
    }
    if (void* const handle = region.handles.local(i); handle != nullptr) {
      region.handles.set_local(i, nullptr);
      all[i]->deregister_region(handle);
    }
  }
}

// ------------------------------------------------------------------ looking

std::shared_ptr<LocalRegion> LocalRegions::find(std::uint32_t id) const {
  const std::shared_lock lock(mutex_);
  const auto* const found = table_.find(id);
  return found != nullptr && (*found)->live.load(std::memory_order_acquire) ? *found : nullptr;
}

const LocalRegion* LocalRegions::Look::find(std::uint32_t id) const {
  const auto* const found = table_.find(id);
  return found != nullptr && (*found)->live.load(std::memory_order_relaxed) ? found->get() : nullptr;
}

const LocalRegion* LocalRegions::Look::at_address(std::uint64_t address, std::uint64_t length) const {
  const auto found = table_.find_address(address, length);
  return found && (*found->record)->live.load(std::memory_order_relaxed) ? found->record->get() : nullptr;
}

LocalRegions::Look LocalRegions::look_by_address() {
  std::shared_lock lock(mutex_);
  while (!table_.indexed()) {
    lock.unlock();
    {
      const std::unique_lock exclusive(mutex_);
      table_.index();
    }
    lock.lock();
  }
  return {table_, std::move(lock)};
}

std::vector<Region> LocalRegions::list() const {
  const std::vector<BackendInstance*> all = backends_.all();
  const auto handles_stay = hold_handles();
  const std::shared_lock lock(mutex_);
  std::vector<Region> found;
  found.reserve(table_.size());
  table_.for_each([&](std::uint32_t, const std::shared_ptr<LocalRegion>& region) {
    if (region->live.load()) found.push_back(described(*region, all));
  });
  return found;
}

Result<std::shared_ptr<std::byte>> LocalRegions::storage(RegionId id) const {
  HEADRACE_TRY_VOID(calls_.usable());
  const auto region = find(id.value);
  if (!region) return no_such_region(id.value);
  if (!region->backing)
    return make_error(Code::not_supported,
                      "region {} was registered, not allocated: its memory is the caller's own", id.value);
  return std::shared_ptr<std::byte>(std::const_pointer_cast<void>(region->backing),
                                    static_cast<std::byte*>(region->range.address));
}

std::uint64_t LocalRegions::version() const {
  const std::shared_lock lock(mutex_);
  return table_.version();
}

void LocalRegions::on_changed(std::function<void()> changed) {
  const std::lock_guard lock(on_changed_mutex_);
  on_changed_ = std::move(changed);
}

void LocalRegions::changed() {
  const std::lock_guard lock(on_changed_mutex_);
  if (on_changed_) callbacks_.push(on_changed_);
}

// ------------------------------------------------------------------ taking back

Result<void> LocalRegions::deregister(std::span<const RegionId> ids, Timeout timeout) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  const Deadline deadline = progress_.deadline_in(timeout);
  const std::lock_guard one_at_a_time(deregistering_);
  HEADRACE_TRY(going, chosen(ids));
  std::vector<std::uint32_t> numbers;
  for (const auto& region : going) numbers.push_back(region->info.id.value);
  const std::vector<IdRange> ranges = to_ranges(std::move(numbers));
  // First invalid for new posts of ours, then a look at those in flight: a post does it in the other order.
  for (const auto& region : going) region->live.store(false);
  epoch_.fetch_add(1);
  auto quiet = wait_for_posts(ranges, timeout, deadline);
  if (quiet) return take_from_peers(going, ranges, deadline);
  put_back(going);
  return quiet;
}

/// The version rises first: metadata from before does not bring the regions back to a peer that has answered.
Result<void> LocalRegions::take_from_peers(const Regions& regions, std::span<const IdRange> ranges,
                                           Deadline deadline) {
  bool given_back = false;
  auto quiet = users_.ask_peers(ranges, withdraw(regions), deadline, [&] {
    for (const auto& region : regions) give_back(*region);
    given_back = true;
  });
  if (!given_back) {
    put_back(regions);
    return quiet;
  }
  remove(regions);
  if (!quiet) unconfirmed_.insert(unconfirmed_.end(), regions.begin(), regions.end());
  return quiet;
}

/// Exports list them no longer. Returns the version from which on that is so.
std::uint64_t LocalRegions::withdraw(const Regions& regions) {
  std::uint64_t version = 0;
  {
    const std::unique_lock lock(mutex_);
    for (const auto& region : regions) {
      region->listed.store(false);
      table_.withdraw(region->info.id.value);
    }
    version = table_.version();
  }
  changed();
  return version;
}

/// They stay after all.
void LocalRegions::put_back(const Regions& regions) {
  bool withdrawn = false;
  {
    const std::unique_lock lock(mutex_);
    for (const auto& region : regions) {
      withdrawn = !region->listed.exchange(true) || withdrawn;
      table_.put_back(region->info.id.value);
      region->live.store(true);
    }
  }
  epoch_.fetch_add(1);
  if (withdrawn) changed();
}

Result<LocalRegions::Regions> LocalRegions::chosen(std::span<const RegionId> ids) const {
  Regions going;
  const std::shared_lock lock(mutex_);
  for (const RegionId id : ids) {
    const auto* const found = table_.find(id.value);
    if (found == nullptr) return no_such_region(id.value);
    going.push_back(*found);
  }
  return going;
}

Result<void> LocalRegions::wait_for_posts(std::span<const IdRange> ranges, Timeout timeout,
                                          Deadline deadline) const {
  if (!users_.in_use(ranges)) return {};
  if (timeout && timeout->count() <= 0)
    return make_error(
        Code::would_block,
        "a request that uses the region is in flight, or lies in a graph: wait for it, or cancel "
        "it, first");
  const auto quiet = [&] { return calls_.closed() || !users_.in_use(ranges); };
  if (!progress_.wait(quiet, deadline))
    return make_error(
        Code::timed_out,
        "a request that uses the region is still in flight, or lies in a graph: cancel it first");
  if (calls_.closed()) return calls_.closed_meanwhile();
  return {};
}

void LocalRegions::close() {
  Regions regions;
  {
    const std::unique_lock lock(mutex_);
    table_.for_each(
        [&](std::uint32_t, const std::shared_ptr<LocalRegion>& region) { regions.push_back(region); });
  }
  for (const auto& region : regions) give_back(*region);
}

// ------------------------------------------------------------------ exporting

Result<wire::Metadata> LocalRegions::exported(const ExportOptions& options) const {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  wire::Metadata m;
  m.name = self_.name;
  m.incarnation = self_.incarnation;
  m.partial = options.regions_none || !options.regions.empty();
  const auto all = backends_.all();
  m.backends = backends_.exported(options.connection_info);
  m.backends.resize(std::min(m.backends.size(), all.size()));  // another may have been opened meanwhile
  HEADRACE_TRY(regions, select(options, m));
  m.ids.reserve(regions.size());
  m.addresses.reserve(regions.size());
  m.lengths.reserve(regions.size());
  m.kinds.reserve(regions.size());
  m.masks.reserve(regions.size());
  for (const auto& region : regions) {
    const auto handles_stay = hold_handles();
    HEADRACE_TRY_VOID(add_row(*region, all, m));
  }
  return m;
}

/// The regions to export; fills in the versions and what is gone.
Result<LocalRegions::Regions> LocalRegions::select(const ExportOptions& options, wire::Metadata& m) const {
  Regions regions;
  const std::shared_lock lock(mutex_);
  m.version = table_.version();
  raise(exported_, m.version);
  if (options.since_version > m.version) {
    return make_error(Code::invalid_argument,
                      "since_version {} is still to come: the latest is {}, which metadata_version tells",
                      options.since_version, m.version);
  }
  m.since = m.partial ? 0 : options.since_version;
  if (m.whole()) m.end = table_.next_id();
  if (!options.regions.empty()) {
    std::vector<std::uint32_t> ids;
    for (const RegionId id : options.regions) ids.push_back(id.value);
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const std::uint32_t id : ids) {
      const auto* const found = table_.find(id);
      if (found == nullptr || !(*found)->listed.load()) return no_such_region(id, " to export");
      regions.push_back(*found);
    }
  } else if (!options.regions_none) {
    auto changes = table_.changes_since(options.since_version);
    for (const std::uint32_t id : changes.added)
      if (const auto& region = *table_.find(id); region->listed.load()) regions.push_back(region);
    if (options.since_version > 0)
      for (const auto& range : changes.gone) m.gone.push_back({range.first, range.count});
  }
  return regions;
}

}  // namespace headrace::engine
