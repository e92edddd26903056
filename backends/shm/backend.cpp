// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/backend.hpp"

#include "backends/shm/regions.hpp"
#include "backends/shm/request.hpp"
#include "backends/shm/speed.hpp"

#include <algorithm>

namespace headrace::shm {

// ------------------------------------------------------------------ life

Result<std::unique_ptr<ShmBackend>> ShmBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  HEADRACE_TRY(settings, read_settings(args));
  HEADRACE_TRY(parts, host_link::Site::Parts::open(protocol, host, args));
  return std::unique_ptr<ShmBackend>(
      new ShmBackend(std::make_unique<Instance>(host, settings, std::move(parts))));
}

headrace_info_v1 ShmBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_GRID | HEADRACE_COUNT;
  if (instance_->settings.map) info.abilities |= HEADRACE_MAP;
  info.local_kinds = memory_kinds;
  info.remote_kinds = memory_kinds;
  info.max_message_bytes = host_link::max_message_bytes;
  return info;
}

// ------------------------------------------------------------------ links

Result<std::string> ShmBackend::connection_info() { return instance_->connection_info(); }

Result<Link*> ShmBackend::connect(const headrace_connect_v1& args) {
  HEADRACE_TRY(link, instance_->connect(args));
  return &Link::of(*link);
}

void ShmBackend::disconnect(Link& link) { instance_->close(&link); }

Status ShmBackend::notify(Link& link, std::uint32_t channel, std::string_view bytes) {
  return link.notify(channel, bytes);
}

std::uint64_t ShmBackend::unsent(Link& link) { return link.unsent(); }

// ------------------------------------------------------------------ regions

Result<LocalRegion*> ShmBackend::register_region(const headrace_region_v1& region) {
  if (region.kind != HEADRACE_DRAM)
    return make_error(Code::not_supported, "shm moves host memory (dram), not kind {}", region.kind);
  if (region.address == 0 || region.length == 0) {
    return make_error(Code::invalid_argument, "region {} has address {:#x} and {} bytes", region.region_id,
                      region.address, region.length);
  }
  auto local = std::make_unique<LocalRegion>();
  local->region_id = region.region_id;
  local->base = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(region.address));
  local->length_bytes = region.length;
  SharedMemory memory;
  if (region.memory_fd >= 0 && instance_->settings.map) {
    UniqueFd file(::fcntl(region.memory_fd, F_DUPFD_CLOEXEC, 0));
    if (file) {
      memory = {{region.region_id, region.memory_offset, region.length},
                std::make_shared<const UniqueFd>(std::move(file))};
      local->shared = true;
    } else {
      instance_->host.log(
          HEADRACE_LOG_WARN,
          fmt::format(
              "region {} is not offered for mapping, attach takes its place: duplicate its memory file: {}",
              region.region_id, os_error_text(errno)));
    }
  }
  HEADRACE_TRY(slot, instance_->live().enter(region.region_id, {region.address, region.length},
                                             local->shared ? RegionState::allocated : RegionState::registered,
                                             (region.flags & HEADRACE_REGION_READ_ONLY) == 0));
  local->slot = slot;
  if (local->shared) {
    instance_->share(std::move(memory));
  } else {
    instance_->served.add(*local);
  }
  return local.release();
}

void ShmBackend::deregister_region(LocalRegion& region) {
  const std::unique_ptr<LocalRegion> owned(&region);
  instance_->live().leave(region.region_id);
  if (region.shared) {
    instance_->unshare(region.region_id);
  } else {
    instance_->served.remove(region);
  }
}

Result<RemoteRegion*> ShmBackend::load_remote(Link& link, const headrace_remote_region_v1& region) {
  if (region.kind != HEADRACE_DRAM)
    return make_error(Code::not_supported, "shm moves host memory (dram), not kind {}", region.kind);
  if (link.state() == LinkState::lost) return link.why_lost().error();
  auto remote =
      std::make_unique<RemoteRegion>(link.shared(), region.region_id, region.address, region.length);
  (void)remote->resolve();  // what is not here yet is looked for again by the requests that need it
  return remote.release();
}

void ShmBackend::unload(RemoteRegion& remote) { delete &remote; }

constexpr unsigned map_for_writing = 2;

Result<std::span<std::byte>> ShmBackend::map(RemoteRegion& remote, int device, unsigned access) {
  if (device >= 0)
    return make_error(Code::not_supported, "shm maps memory for the CPU, not for GPU {}", device);
  const bool known = remote.resolve();
  if (const auto wrong = remote.contradiction()) return *wrong;
  if (std::byte* const mapped = remote.mapped(); mapped != nullptr) {
    if ((access & map_for_writing) == 0 || remote.writable()) return std::span(mapped, remote.length_bytes());
    return make_error(Code::not_supported, "region {} of peer {} is read-only: map it for reading",
                      remote.region_id(), remote.link()->peer_name());
  }
  const std::string owner = remote.link()->peer_name();
  if (!known)
    return make_error(Code::would_block, "the memory file of region {} of peer {} is on its way",
                      remote.region_id(), owner);
  if (!remote.live())
    return make_error(Code::not_found, "region {} of peer {} is not registered any more", remote.region_id(),
                      owner);
  return make_error(
      Code::not_supported,
      "region {} of peer {} was registered, not allocated: only memory from allocate can be mapped",
      remote.region_id(), owner);
}

// ------------------------------------------------------------------ requests

Result<Request*> ShmBackend::prepare(Link* link, const headrace_prepare_v1& args) {
  return Request::prepare(*instance_, args, link->shared());
}

Status ShmBackend::post(Request& request, const headrace_post_v1& args) { return request.post(args); }
bool ShmBackend::poll(Request& request) { return request.poll(); }
void ShmBackend::cancel(Request& request) { request.cancel(); }
void ShmBackend::release(Request& request) { request.unref(); }

headrace_cost_v1 ShmBackend::cost(const headrace_prepare_v1& args) {
  const bool mapped =
      args.remote->regions != nullptr && Handles::remote(args.remote->regions[0]).mapped() != nullptr;
  const CopySpeed speed = mapped ? speed_of_copies() : speed_of_attach();
  const bool shared_work = args.bytes > instance_->settings.inline_bytes;
  headrace_cost_v1 cost{};
  cost.struct_size = sizeof cost;
  cost.fixed_ns = shared_work ? 20'000 : mapped ? 300 : 1'500;
  cost.ns_per_page = speed.ns_per_page;
  cost.bytes_per_second = speed.bytes_per_second * (shared_work ? instance_->copiers : 1);
  cost.margin = 0.5;
  cost.method = "one thread measured at first use, times the threads that share the work";
  return cost;
}

// ------------------------------------------------------------------ progress

std::uint32_t ShmBackend::progress() {
  std::uint32_t done = instance_->progress_links();
  if (instance_->has_stranded.load(std::memory_order_acquire)) done += rescue_stranded();
  return done + instance_->look(done);
}

std::uint32_t ShmBackend::rescue_stranded() {
  std::vector<Request*> stranded;
  {
    const std::lock_guard lock(instance_->stranded_mutex);
    stranded.swap(instance_->stranded);
    instance_->has_stranded.store(false, std::memory_order_release);
  }
  for (Request* const request : stranded) {
    if (!request->rescue()) {
      request->unref();
      continue;
    }
    const std::lock_guard lock(instance_->stranded_mutex);
    instance_->stranded.push_back(request);
    instance_->has_stranded.store(true, std::memory_order_release);
  }
  return static_cast<std::uint32_t>(stranded.size());
}

int ShmBackend::descriptor() { return instance_->descriptor(); }

std::uint32_t ShmBackend::arm(bool on) {
  const std::uint32_t arrived = instance_->arm(on);
  return on && instance_->has_stranded.load(std::memory_order_acquire) ? arrived + 1 : arrived;
}

}  // namespace headrace::shm
