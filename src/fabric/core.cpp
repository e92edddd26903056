// SPDX-License-Identifier: Apache-2.0
// Opening, closing, memory, peers, counting. Posts are in core_posts.cpp.
#include "fabric/core.hpp"

#include "base/random.hpp"
#include "engine/range_check.hpp"
#include "fabric/buffer_pool.hpp"
#include "fabric/groups.hpp"
#include "fabric/metered_provider.hpp"
#include "fabric/open_nics.hpp"
#include "fabric/peer_group.hpp"
#include "fabric/receiver.hpp"
#include "rail/nic_list.hpp"
#include "rail/nic_pairs.hpp"
#include "telemetry/nvtx.hpp"

#include <algorithm>
#include <future>
#include <map>
#include <utility>

namespace headrace::fabric {
namespace {

/// The kind of NIC, from its address: "tcp".
std::string kind_of(const rail::Provider& provider) {
  const std::string address = provider.address();
  return address.substr(0, address.find(':'));
}

/// not_supported if no NIC here is of the kind of one there.
Result<void> check_kinds(const NicList& here, const NicList& there) {
  HEADRACE_TRY(ours, rail::read_nic_list(here, "our address"));
  HEADRACE_TRY(theirs, rail::read_nic_list(there, "the peer's address"));
  if (rail::have_a_kind_in_common(ours, theirs)) return {};
  return make_error(Code::not_supported,
                    "no network card of the fabric reaches {}: ours are of another kind ({})", name_of(there),
                    name_of(here));
}

}  // namespace

// ------------------------------------------------------------------ opening and closing

Result<Fabric> Core::open(const FabricOptions& options) {
  const bool has_devices =
      !options.devices.empty() ||
      std::ranges::any_of(options.groups, [](const auto& each) { return !!each.device; });
  HEADRACE_TRY(plans, plan_groups(options, this_machine(has_devices)));
  HEADRACE_TRY(settings, NicSettings::read(options.options));
  std::vector<OpenGroup> groups;
  for (const GroupPlan& plan : plans) {
    HEADRACE_TRY(group, open_nics(plan, settings));
    groups.push_back(std::move(group));
  }
  CoreSetup setup;
  setup.spin = options.spin;
  return open(std::move(groups), setup);
}

Result<Fabric> Core::open(std::vector<OpenGroup> groups, const CoreSetup& setup) {
  const std::shared_ptr<Core> core(new Core(setup));
  HEADRACE_TRY_VOID(core->start(std::move(groups)));
  return Fabric(core);
}

Core::Core(const CoreSetup& setup)
    : clock_(setup.clock),
      links_(setup.links),
      spin_(setup.spin),
      peers_close_within_(setup.peers_close_within),
      id_(random_u64()),
      flags_(std::make_shared<FlagMaker>(setup.driver)),
      telemetry_(*clock_) {}

Result<void> Core::start(std::vector<OpenGroup> groups) {
  nvtx::load();
  std::vector<NicList> addresses;
  for (OpenGroup& group : groups) {
    std::vector<std::unique_ptr<rail::Provider>> metered;
    for (std::size_t nic = 0; nic < group.providers.size(); ++nic) {
      auto& provider = group.providers[nic];
      FabricNic& shown = group.shown.nics[nic];
      shown.provider = kind_of(*provider);
      shown.address = provider->address();
      shown.bits_per_second = provider->info().bits_per_second;
      metered.push_back(std::make_unique<MeteredProvider>(std::move(provider), telemetry_));
    }
    HEADRACE_TRY(carrier, Carrier::open(std::move(metered), {expectations_, tally_, clock_, links_}));
    addresses.push_back(carrier->nics());
    HEADRACE_TRY(worker, Worker::start(std::move(carrier), {fmt::format("hr-fabric-{}", workers_.size()),
                                                            group.shown.cpus, spin_}));
    workers_.push_back(std::move(worker));
    groups_.push_back(std::move(group.shown));
  }
  address_ = make_address(id_, std::move(addresses));
  return {};
}

void Core::close() {
  if (forked()) return;
  closed_ = true;
  for (const auto& worker : workers_) worker->begin_close();
  // A worker that gives back memory of GPUs may wait for their kernels, so these have to leave first.
  expectations_->close();
  close_queues();
  for (const auto& worker : workers_) worker->wait_closed();
  callbacks_->close();
}

void Core::leak(std::shared_ptr<Core> core) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): its sockets and threads are the parent's
  static_cast<void>(new std::shared_ptr<Core>(std::move(core)));
}

Result<void> Core::usable() const {
  if (forked())
    return make_error(Code::invalid_argument,
                      "the fabric was opened before this process was forked: open one in the child");
  if (closed_) return make_error(Code::invalid_argument, "the fabric is closed: open another");
  return {};
}

// ------------------------------------------------------------------ what it is

std::vector<FabricGroup> Core::groups() const {
  auto groups = groups_;
  for (std::size_t i = 0; i < groups.size() && usable(); ++i) {
    static_cast<void>(workers_[i]->run([&nics = groups[i].nics](Carrier& carrier) {
      const auto health = carrier.health();
      for (std::size_t nic = 0; nic < health.size(); ++nic) {
        nics[nic].up = health[nic].up;
        nics[nic].why = health[nic].why;
      }
    }));
  }
  return groups;
}

std::uint64_t Core::bits_per_second() const {
  std::map<std::string, std::uint64_t> by_name;  // groups may share a card
  for (const FabricGroup& group : groups_)
    for (const FabricNic& nic : group.nics)
      if (!nic.provider.empty()) by_name[nic.name] = nic.bits_per_second;
  std::uint64_t sum = 0;
  for (const auto& [name, speed] : by_name) sum += speed;
  return sum;
}

FabricCounters Core::counters() const {
  if (forked()) return {};
  return {tally_->done, tally_->failed, expectations_->arrivals(), expectations_->lost(),
          callbacks_->failed()};
}

// ------------------------------------------------------------------ memory

Result<std::size_t> Core::group_for(const rail::Memory& memory, std::optional<std::size_t> group) const {
  if (group) {
    if (*group < groups_.size()) return *group;
    return make_error(Code::invalid_argument, "there is no group {}: the fabric has {}", *group,
                      groups_.size());
  }
  if (!memory.device) return std::size_t{0};
  const auto at =
      std::ranges::find_if(groups_, [&](const auto& each) { return each.device == memory.device; });
  if (at != groups_.end()) return static_cast<std::size_t>(at - groups_.begin());
  return make_error(Code::invalid_argument, "no group of the fabric is near GPU {}: open it with this device",
                    *memory.device);
}

Result<FabricMemory> Core::register_memory(const MemoryRange& range, FabricAccess access,
                                           std::optional<std::size_t> group) {
  HEADRACE_TRY_VOID(usable());
  if (range.kind != MemoryKind::dram && range.kind != MemoryKind::vram)
    return make_error(Code::invalid_argument, "a fabric registers dram and vram, not {}",
                      kind_name(range.kind));
  if (range.address == nullptr || range.length_bytes == 0)
    return make_error(Code::invalid_argument, "memory to register has an address and at least one byte");
  HEADRACE_TRY_VOID(engine::check_ranges(std::span(&range, 1)));
  if (access == FabricAccess::writable && !range.writable)
    return make_error(Code::invalid_argument,
                      "memory that is not writable cannot be writable for peers: register it as readable");
  constexpr rail::Access accesses[] = {rail::Access::local, rail::Access::peers_read,
                                       rail::Access::peers_read_and_write};
  rail::Memory memory{reinterpret_cast<std::uintptr_t>(range.address),
                      range.length_bytes,
                      {},
                      accesses[static_cast<std::size_t>(access)]};
  if (range.kind == MemoryKind::vram) memory.device = range.device;
  HEADRACE_TRY(number, group_for(memory, group));
  HEADRACE_TRY(region, workers_[number]->carrier().register_memory(memory));
  auto made = std::make_shared<Memory>();
  made->fabric = id_;
  made->group = number;
  made->access = access;
  made->writable = range.writable;
  made->region = std::move(region);
  auto identity = identify(memory);
  if (!identity) {
    workers_[number]->carrier().deregister(made->region);
    return std::move(identity).error();
  }
  made->identity = std::move(*identity);
  if (access != FabricAccess::local)
    made->descriptor = make_descriptor(access, range.length_bytes, workers_[number]->carrier().nics(),
                                       rail::Engine::descriptor(made->region));
  return FabricMemory(std::move(made));
}

Result<std::shared_ptr<Memory>> Core::own(const FabricMemory& memory) const {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(found, made_here(memory));
  if (found->gone) return make_error(Code::not_found, "the memory was deregistered");
  if (found->identity != nullptr) HEADRACE_TRY_VOID(found->identity->check_unchanged());
  return found;
}

/// Of memory of a GPU.
Result<std::shared_ptr<const gpu::MemoryIdentity>> Core::identify(const rail::Memory& memory) {
  if (!memory.device) return std::shared_ptr<const gpu::MemoryIdentity>();
  HEADRACE_TRY(device, flags_->open_gpu(*memory.device));
  HEADRACE_TRY(identity, gpu::MemoryIdentity::of(std::move(device), memory.address, memory.bytes));
  return std::make_shared<const gpu::MemoryIdentity>(std::move(identity));
}

Result<std::shared_ptr<Memory>> Core::made_here(const FabricMemory& memory) const {
  if (!memory) return make_error(Code::invalid_argument, "the memory is empty: register some");
  if (memory.memory_->fabric != id_)
    return make_error(Code::invalid_argument, "the memory was registered with another fabric");
  return memory.memory_;
}

Result<void> Core::deregister(const FabricMemory& memory) {
  if (forked()) return usable();
  HEADRACE_TRY(found, made_here(memory));  // also while the fabric closes: its NICs may still use the memory
  const bool was_gone = found->gone.exchange(true);
  Worker& worker = *workers_[found->group];
  auto quiet = std::make_shared<std::promise<void>>();
  const auto is_quiet = quiet->get_future();
  const bool pushed = worker.push(
      [found, quiet](Carrier& carrier) { carrier.quiet(found, [quiet] { quiet->set_value(); }); });
  if (pushed) {
    is_quiet.wait();
    worker.carrier().deregister(found->region);
    if (found->region.memory.device) HEADRACE_TRY_VOID(wait_closed_by_peers(found));
  } else {
    worker.wait_closed();  // then no NIC is left
  }
  // Another thread may deregister the same memory. Nothing uses the memory once this call has returned.
  if (was_gone) return make_error(Code::not_found, "the memory was deregistered");
  return {};
}

/// A peer that does nothing, or whose kernels do not leave, must not hold up the caller for ever.
Result<void> Core::wait_closed_by_peers(const std::shared_ptr<Memory>& memory) {
  auto closed = std::make_shared<std::promise<void>>();
  const auto is_closed = closed->get_future();
  const bool pushed = workers_[memory->group]->push([memory, closed](Carrier& carrier) {
    carrier.when_closed_by_peers(memory, [closed] { closed->set_value(); });
  });
  if (!pushed || is_closed.wait_for(peers_close_within_) == std::future_status::ready) return {};
  return make_error(
      Code::timed_out,
      "the memory of GPU {} at {:#x} is deregistered, but a peer has not closed it within {} ms: "
      "free it when the peers have ended, or closed their fabrics",
      *memory->region.memory.device, memory->region.memory.address,
      std::chrono::duration_cast<std::chrono::milliseconds>(peers_close_within_).count());
}

Result<FabricBuffers> Core::host_buffers(std::size_t count, std::uint64_t bytes) {
  HEADRACE_TRY_VOID(usable());
  if (count == 0 || bytes == 0)
    return make_error(Code::invalid_argument,
                      "a pool has at least one buffer of at least one byte, not {} of {}", count, bytes);
  auto pool = std::make_shared<BufferPool>(shared_from_this(), count, bytes);
  HEADRACE_TRY_VOID(pool->open());
  return FabricBuffers(std::move(pool));
}

Result<FabricReceiver> Core::receive_all(std::size_t count, std::uint64_t bytes,
                                         std::function<void(std::span<const std::byte>)> received) {
  HEADRACE_TRY_VOID(usable());
  if (count == 0 || bytes == 0 || !received)
    return make_error(Code::invalid_argument,
                      "a receiver has at least one buffer of at least one byte, and a function");
  auto pool = std::make_shared<BufferPool>(shared_from_this(), count, bytes);
  HEADRACE_TRY_VOID(pool->open());
  auto made = std::make_shared<Receiver>(shared_from_this(), std::move(pool), count, std::move(received));
  HEADRACE_TRY_VOID(made->start());
  return FabricReceiver(std::move(made));
}

// ------------------------------------------------------------------ peers

Result<FabricPeer> Core::connect(const FabricAddress& address) {
  HEADRACE_TRY_VOID(usable());
  if (!address) return make_error(Code::invalid_argument, "the address is empty: take that of a fabric");
  HEADRACE_TRY_VOID(check_kinds(workers_.front()->carrier().nics(), address.parts_->groups.front()));
  static_cast<void>(workers_.front()->push(
      [owner = address.parts_->groups.front()](Carrier& carrier) { carrier.connect(owner); }));
  return FabricPeer(address);
}

Result<void> Core::forget(const FabricPeer& peer) {
  HEADRACE_TRY_VOID(usable());
  if (!peer) return make_error(Code::invalid_argument, "the peer is empty");
  for (const auto& worker : workers_)
    static_cast<void>(worker->push([parts = peer.address().parts_](Carrier& carrier) {
      for (const NicList& owner : parts->groups) carrier.forget(owner);
    }));
  return {};
}

Result<FabricPeers> Core::peer_group(std::uint32_t scope, std::span<const FabricAddress> addresses) {
  HEADRACE_TRY_VOID(usable());
  if (scope >= Expectations::barrier_scope)
    return make_error(Code::invalid_argument, "scope {} is above {}", scope, Expectations::barrier_scope - 1);
  auto group = std::make_shared<PeerGroup>(scope, weak_from_this());
  for (const FabricAddress& address : addresses) {
    HEADRACE_TRY(peer, connect(address));
    group->add(peer);
  }
  return FabricPeers(std::move(group));
}

// ------------------------------------------------------------------ counting

Result<FabricExpectation> Core::expect(Immediate immediate, std::uint64_t arrivals) {
  HEADRACE_TRY_VOID(usable());
  if (immediate.scope >= Expectations::barrier_scope)
    return make_error(Code::invalid_argument, "scope {} is above {}", immediate.scope,
                      Expectations::barrier_scope - 1);
  HEADRACE_TRY(made, expectations_->expect(immediate, arrivals));
  return FabricExpectation(std::move(made));
}

Result<std::shared_ptr<Watchers>> Core::watchers_of(std::optional<int> device) {
  const auto near =
      std::ranges::find_if(groups_, [&](const auto& each) { return device && each.device == device; });
  const auto group = near == groups_.end() ? 0 : static_cast<std::size_t>(near - groups_.begin());
  const std::lock_guard lock(watchers_mutex_);
  auto& kept = watchers_[{group, device.has_value()}];
  if (kept != nullptr) return kept;
  std::shared_ptr<const gpu::Device> gpu;
  if (device) {
    HEADRACE_TRY(opened, flags_->open_gpu(*device));
    gpu = std::move(opened);
  }
  HEADRACE_TRY(made, Watchers::make(gpu, callbacks_, fork_));
  if (!workers_[group]->poll_memory(made))
    return make_error(Code::invalid_argument, "the fabric is closed: open another");
  kept = made;
  return made;
}

Result<FabricWatcher> Core::watch(Changed changed, std::optional<int> device) {
  HEADRACE_TRY_VOID(usable());
  if (!changed) return make_error(Code::invalid_argument, "a watched word needs a function that is told");
  if (device) HEADRACE_TRY_VOID(flags_->open_gpu(*device));
  HEADRACE_TRY(all, watchers_of(device));
  HEADRACE_TRY(made, all->add(std::move(changed)));
  return FabricWatcher(std::move(made));
}

void Core::on_unexpected(std::function<void(Immediate, std::uint64_t)> arrived) {
  if (!forked()) expectations_->on_unexpected(std::move(arrived));
}

}  // namespace headrace::fabric
