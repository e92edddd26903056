// SPDX-License-Identifier: Apache-2.0
// Our own regions: registering with the backends, exporting, and taking back.
#include "engine/copy_pool.hpp"
#include "engine/engine.hpp"

#include "base/utf8.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace headrace::engine {
namespace {

constexpr std::size_t longest_name = 255;
constexpr std::size_t longest_note = 65536;

Result<void> check_range(const MemoryRange& range, std::size_t index) {
  const auto bad = [&](const char* what) {
    Error error = make_error(Code::invalid_argument, "range {} {}", index, what);
    error.page = index;
    return error;
  };
  switch (range.kind) {
    case MemoryKind::dram:
    case MemoryKind::vram:
      if (range.address == nullptr) return bad("has no address");
      if (range.length_bytes == 0) return bad("is empty: a region has at least one byte");
      if (reinterpret_cast<std::uint64_t>(range.address) + range.length_bytes < range.length_bytes)
        return bad("runs over the end of the address space");
      if (range.kind == MemoryKind::vram && range.device < 0) return bad("is GPU memory and names no device");
      return {};
    case MemoryKind::block:
    case MemoryKind::file:
      if (range.file_descriptor < 0 && range.path.empty())
        return bad("names neither a path nor a descriptor");
      return {};
    case MemoryKind::object:
      if (range.path.empty()) return bad("names no object");
      return {};
  }
  return bad("is of an unknown kind");
}

/// Whether all of it is mapped: msync with MS_ASYNC does nothing since Linux 2.6.19 but look for gaps
/// (msync(2)).
bool is_mapped(std::uint64_t begin, std::uint64_t end) {
  static const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = begin / page * page;
  return ::msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) == 0 || errno != ENOMEM;
}

/// Refuses host memory that is none. Ranges that follow one another cost one look.
Result<void> check_mapped(std::span<const MemoryRange> ranges) {
  const auto begin_of = [&](std::size_t i) { return reinterpret_cast<std::uint64_t>(ranges[i].address); };
  for (std::size_t i = 0; i < ranges.size();) {
    const std::size_t first = i;
    std::uint64_t end = begin_of(i) + ranges[i].length_bytes;
    const bool host = ranges[i].kind == MemoryKind::dram;
    for (++i; host && i < ranges.size() && ranges[i].kind == MemoryKind::dram && begin_of(i) == end; ++i)
      end += ranges[i].length_bytes;
    if (!host || is_mapped(begin_of(first), end)) continue;
    std::size_t bad = first;
    while (bad + 1 < i && is_mapped(begin_of(bad), begin_of(bad) + ranges[bad].length_bytes)) ++bad;
    Error error = make_error(Code::invalid_argument,
                             "range {}: {} bytes at {:#x} are not all memory of this process: was it freed, "
                             "or is the length wrong?",
                             bad, ranges[bad].length_bytes, begin_of(bad));
    error.page = bad;
    return error;
  }
  return {};
}

std::vector<IdRange> to_ranges(std::vector<std::uint32_t> ids) {
  std::sort(ids.begin(), ids.end());
  std::vector<IdRange> ranges;
  for (const std::uint32_t id : ids) {
    if (!ranges.empty() && ranges.back().first + ranges.back().count == id) {
      ++ranges.back().count;
    } else {
      ranges.push_back({id, 1});
    }
  }
  return ranges;
}

}  // namespace

/// Registers with each backend that takes the kind. False if none did.
bool Engine::register_with_backends(LocalRegion& region, const std::vector<BackendInstance*>& all,
                                    const std::vector<std::string>& only, std::string& refusals) {
  bool any = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    BackendInstance& backend = *all[i];
    if (!only.empty() && std::find(only.begin(), only.end(), backend.name()) == only.end()) continue;
    const int kind = static_cast<int>(region.info.kind);
    if (!backend.takes_local(kind) && !backend.takes_remote(kind)) {
      refusals += fmt::format("\n  {} does not take {}", backend.name(), kind_name(region.info.kind));
      continue;
    }
    auto handle = backend.register_region(region.to_c());
    if (!handle) {
      refusals += "\n  " + handle.error().message;
      continue;
    }
    region.handles.set_local(i, *handle);
    any = true;
  }
  return any;
}

/// Takes the region from the backends. No post uses it any more.
void Engine::give_back(LocalRegion& region) {
  const std::unique_lock nobody_prepares(local_handles_mutex_);
  const auto all = backends();
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

/// What its owner sees of a region, whose handles stay meanwhile.
Region Engine::described(const LocalRegion& region, const std::vector<BackendInstance*>& all) {
  Region info = region.info;
  info.backends.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (region.handles.local(i) != nullptr) info.backends.push_back(all[i]->name());
  return info;
}

Result<std::vector<Region>> Engine::register_regions(std::span<const MemoryRange> ranges,
                                                     const RegisterOptions& options, const Backing& backing) {
  HEADRACE_TRY_VOID(usable());
  if (ranges.empty())
    return make_error(Code::invalid_argument, "there is nothing to register: the list is empty");
  if (options.name.size() > longest_name)
    return make_error(Code::invalid_argument, "a region's name has at most {} bytes, this one {}",
                      longest_name, options.name.size());
  if (!is_utf8(options.name))
    return make_error(Code::invalid_argument, "a region's name is UTF-8, and this one is not");
  if (options.note.size() > longest_note)
    return make_error(Code::invalid_argument, "a region's note has at most {} bytes, this one {}",
                      longest_note, options.note.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) HEADRACE_TRY_VOID(check_range(ranges[i], i));
  HEADRACE_TRY_VOID(check_mapped(ranges));

  const bool many = ranges.size() > 1;
  const auto name_of = [&](std::size_t i) {
    return options.name.empty() || !many ? options.name : fmt::format("{}/{}", options.name, i);
  };
  const std::vector<BackendInstance*> all = backends();
  std::vector<std::shared_ptr<LocalRegion>> made;
  std::vector<Region> regions;
  made.reserve(ranges.size());
  regions.reserve(ranges.size());
  {
    const std::unique_lock lock(regions_mutex_);
    for (std::size_t i = 0; i < ranges.size() && !options.name.empty(); ++i) {
      if (region_names_.contains(name_of(i)))
        return make_error(
            Code::invalid_argument,
            "a region is called {} already: names are unique in an agent, give this one another or none",
            name_of(i));
    }
    // The table hands out the ids before the backends know the regions; nobody else sees them until `live`.
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      auto region = std::make_shared<LocalRegion>(all.size());
      region->live.store(false);
      region->range = ranges[i];
      region->keep_alive = options.keep_alive;
      region->backing = backing.keep;
      region->memory_fd = backing.memory_fd;
      region->info.kind = ranges[i].kind;
      region->info.address = reinterpret_cast<std::uint64_t>(ranges[i].address);
      region->info.length_bytes = ranges[i].length_bytes;
      region->info.writable = ranges[i].writable;
      region->info.name = name_of(i);
      region->info.note = options.note;
      region->info.id = {regions_.add(region->info.kind == MemoryKind::dram ? region->info.address : 0,
                                      region->info.length_bytes, region)};
      if (!options.name.empty()) region_names_[region->info.name] = region->info.id.value;
      made.push_back(std::move(region));
    }
  }
  std::string refusals;
  std::size_t registered = 0;
  while (registered < made.size() &&
         register_with_backends(*made[registered], all, options.backends, refusals))
    ++registered;
  if (registered < made.size()) {
    for (std::size_t i = 0; i < registered; ++i) give_back(*made[i]);
    const std::unique_lock lock(regions_mutex_);
    for (const auto& region : made) {
      regions_.remove(region->info.id.value);
      region_names_.erase(region->info.name);
    }
    return make_error(Code::not_supported, "no backend takes this {} memory:{}",
                      kind_name(ranges[registered].kind),
                      refusals.empty() ? " none of those asked for is open" : refusals);
  }
  for (const auto& region : made) {
    regions.push_back(described(*region, all));
    region->live.store(true, std::memory_order_release);
  }
  regions_changed();
  return regions;
}

std::shared_ptr<LocalRegion> Engine::local_region(std::uint32_t id) const {
  const std::shared_lock lock(regions_mutex_);
  const auto* const found = regions_.find(id);
  return found != nullptr && (*found)->live.load(std::memory_order_acquire) ? *found : nullptr;
}

std::vector<Region> Engine::regions() const {
  const std::vector<BackendInstance*> all = backends();
  const std::shared_lock handles_stay(local_handles_mutex_);
  const std::shared_lock lock(regions_mutex_);
  std::vector<Region> found;
  found.reserve(regions_.size());
  regions_.for_each([&](std::uint32_t, const std::shared_ptr<LocalRegion>& region) {
    if (region->live.load()) found.push_back(described(*region, all));
  });
  return found;
}

Result<std::shared_ptr<std::byte>> Engine::storage(RegionId id) const {
  HEADRACE_TRY_VOID(usable());
  const auto region = local_region(id.value);
  if (!region)
    return make_error(Code::not_found,
                      "this agent has no region {}: it was never registered here, or is deregistered already",
                      id.value);
  if (!region->backing)
    return make_error(Code::not_supported,
                      "region {} was registered, not allocated: its memory is the caller's own", id.value);
  return std::shared_ptr<std::byte>(std::const_pointer_cast<void>(region->backing),
                                    static_cast<std::byte*>(region->range.address));
}

std::uint64_t Engine::regions_version() const {
  const std::shared_lock lock(regions_mutex_);
  return regions_.version();
}

void Engine::on_regions_changed(std::function<void()> changed) {
  const std::lock_guard lock(on_notification_mutex_);
  on_regions_changed_ = std::move(changed);
}

void Engine::regions_changed() {
  const std::lock_guard lock(on_notification_mutex_);
  if (on_regions_changed_) callbacks_->push(on_regions_changed_);
}

Result<void> Engine::deregister(std::span<const RegionId> ids, Timeout timeout) {
  HEADRACE_TRY_VOID(usable());
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
  const std::lock_guard one_at_a_time(deregistering_);
  std::vector<std::shared_ptr<LocalRegion>> going;
  std::vector<std::uint32_t> numbers;
  {
    const std::shared_lock lock(regions_mutex_);
    for (const RegionId id : ids) {
      const auto* const found = regions_.find(id.value);
      if (found == nullptr)
        return make_error(
            Code::not_found,
            "this agent has no region {}: it was never registered here, or is deregistered already",
            id.value);
      going.push_back(*found);
      numbers.push_back(id.value);
    }
  }
  const std::vector<IdRange> ranges = to_ranges(std::move(numbers));
  // First invalid for new posts of ours, then a look at who is in flight: `RequestCore::start` does it the
  // other way round.
  for (const auto& region : going) region->live.store(false);
  local_epoch_.fetch_add(1);
  const auto stay = [&](Error error) {
    for (const auto& region : going) region->live.store(true);
    local_epoch_.fetch_add(1);
    return error;
  };
  const auto in_use = [&] {
    const auto uses = [&](const InFlight& flights) {
      const auto cores = flights.all();
      return std::any_of(cores.begin(), cores.end(), [&](const auto& core) {
        return core->plan().local->touches(ranges) ||
               (!core->plan().remote->life && core->plan().remote->touches(ranges));
      });
    };
    std::vector<std::shared_ptr<Link>> links;
    {
      const std::shared_lock lock(peers_mutex_);
      for (const auto& [token, link] : links_) links.push_back(link);
    }
    return uses(own_in_flight_) ||
           std::any_of(links.begin(), links.end(), [&](const auto& link) { return uses(link->in_flight()); });
  };
  if (in_use()) {
    if (timeout && timeout->count() <= 0)
      return stay(make_error(Code::would_block,
                             "a request that uses the region is in flight, or lies in a graph: wait for it, "
                             "or cancel it, first"));
    if (!progress_->wait([&] { return !in_use(); }, deadline))
      return stay(make_error(
          Code::timed_out,
          "a request that uses the region is still in flight, or lies in a graph: cancel it first"));
  }
  if (auto asked = ask_peers_to_let_go(ranges, deadline); !asked) return stay(std::move(asked).error());
  for (const auto& region : going) give_back(*region);
  {
    const std::unique_lock lock(regions_mutex_);
    for (const auto& region : going) {
      regions_.remove(region->info.id.value);
      region_names_.erase(region->info.name);
    }
  }
  regions_changed();
  return {};
}

Result<wire::Metadata> Engine::export_metadata(const ExportOptions& options) const {
  HEADRACE_TRY_VOID(usable());
  wire::Metadata m;
  m.name = settings_.name;
  m.incarnation = incarnation_;
  m.partial = options.regions_none || !options.regions.empty();
  const auto all = backends();
  {
    const std::shared_lock lock(backends_mutex_);
    for (std::size_t b = 0; b < all.size(); ++b) {
      m.backends.push_back({all[b]->name(), all[b]->table().version,
                            options.connection_info && all[b]->can(HEADRACE_REMOTE)
                                ? std::optional(connection_infos_[b])
                                : std::nullopt});
    }
  }
  std::vector<std::shared_ptr<LocalRegion>> chosen;
  {
    const std::shared_lock lock(regions_mutex_);
    m.version = regions_.version();
    if (options.since_version > m.version) {
      return make_error(Code::invalid_argument,
                        "since_version {} is still to come: the latest is {}, which metadata_version tells",
                        options.since_version, m.version);
    }
    m.since = m.partial ? 0 : options.since_version;
    if (!options.regions.empty()) {
      std::vector<std::uint32_t> ids;
      for (const RegionId id : options.regions) ids.push_back(id.value);
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      for (const std::uint32_t id : ids) {
        const auto* const found = regions_.find(id);
        if (found == nullptr || !(*found)->live.load())
          return make_error(Code::not_found,
                            "this agent has no region {} to export: it was never registered here, or is "
                            "deregistered already",
                            id);
        chosen.push_back(*found);
      }
    } else if (!options.regions_none) {
      auto changes = regions_.changes_since(options.since_version);
      for (const std::uint32_t id : changes.added)
        if (const auto& region = *regions_.find(id); region->live.load()) chosen.push_back(region);
      if (options.since_version > 0)
        for (const auto& range : changes.gone) m.gone.push_back({range.first, range.count});
    }
  }
  m.ids.reserve(chosen.size());
  m.addresses.reserve(chosen.size());
  m.lengths.reserve(chosen.size());
  m.kinds.reserve(chosen.size());
  m.masks.reserve(chosen.size());
  for (const auto& region : chosen) {
    std::uint16_t mask = 0;
    const std::shared_lock handles_stay(local_handles_mutex_);
    for (std::size_t b = 0; b < all.size(); ++b) {
      if (region->handles.local(b) == nullptr) continue;
      mask |= static_cast<std::uint16_t>(1u << b);
      HEADRACE_TRY(bytes, all[b]->export_region(region->handles.local(b)));
      if (!bytes.empty())
        m.public_data.push_back({region->info.id.value, static_cast<std::uint16_t>(b), std::move(bytes)});
    }
    m.ids.push_back(region->info.id.value);
    m.addresses.push_back(region->info.address);
    m.lengths.push_back(region->info.length_bytes);
    m.kinds.push_back(
        static_cast<std::uint8_t>(static_cast<unsigned>(region->info.kind) |
                                  (region->info.writable ? 0U : wire::MetadataLimits::read_only_bit)));
    m.masks.push_back(mask);
    if (!region->info.name.empty() || !region->info.note.empty())
      m.named.push_back({region->info.id.value, region->info.name, region->info.note});
  }
  return m;
}

// --- backends

Result<void> Engine::add_backend(const FoundBackend& found,
                                 std::vector<std::pair<std::string, std::string>> settings) {
  HEADRACE_TRY_VOID(usable());
  if (found.table == nullptr) return Error{Code::not_supported, found.refusal};
  for (const BackendInstance* open : backends())
    if (open->name() == found.name)
      return make_error(Code::invalid_argument, "backend {} is open already: an agent has one of each",
                        found.name);
  InstanceArgs args;
  args.agent_name = settings_.name;
  args.incarnation = incarnation_;
  args.pool_threads = static_cast<std::uint32_t>(copy_pool_threads());
  args.runtime_dir = settings_.runtime_dir;
  args.settings = std::move(settings);
  HEADRACE_TRY(instance, BackendInstance::open(found.table, args, *this));
  std::string info;
  if (instance->can(HEADRACE_REMOTE)) {
    HEADRACE_TRY(given, instance->connection_info());
    info = std::move(given);
  }
  BackendInstance& opened = *instance;
  {
    const std::unique_lock lock(backends_mutex_);
    if (backends_.size() == max_backends)
      return make_error(Code::exhausted, "an agent opens at most {} backends: name those that it needs",
                        max_backends);
    backends_.push_back(std::move(instance));
    connection_infos_.push_back(std::move(info));
  }
  return progress_->add(opened);
}

std::vector<BackendInstance*> Engine::backends() const {
  const std::shared_lock lock(backends_mutex_);
  std::vector<BackendInstance*> all;
  all.reserve(backends_.size());
  for (const auto& backend : backends_) all.push_back(backend.get());
  return all;
}

std::size_t Engine::backend_index(const BackendInstance& backend) const {
  const std::shared_lock lock(backends_mutex_);
  for (std::size_t i = 0; i < backends_.size(); ++i)
    if (backends_[i].get() == &backend) return i;
  return max_backends;
}

}  // namespace headrace::engine
