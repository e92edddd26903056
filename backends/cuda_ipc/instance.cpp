// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/instance.hpp"

#include "backends/cuda_ipc/control_messages.hpp"
#include "backends/cuda_ipc/link.hpp"

#include <chrono>
#include <thread>
#include <vector>

namespace headrace::cuda_ipc {

using host_link::RegionState;

namespace {

constexpr auto closing_poll_interval = std::chrono::microseconds(20);

}  // namespace

Instance::Instance(plugin::Host its_host, const Settings& settings, GpuSource source, Parts parts)
    : Site(its_host, cuda_ipc::protocol, settings.links, std::move(parts)),
      courier(settings.gpu.moves.courier),
      gpus(std::move(source), settings.gpu.moves),
      posts([this] { wake(); }),
      staging(its_host, settings.gpu.staging_bytes),
      pins_registered_(settings.gpu.pins_registered) {}

Instance::~Instance() {
  live().close();  // peers find it before our memory goes
  close_links();
}

std::shared_ptr<host_link::Link> Instance::make_link(host_link::Side side, UnixSocket socket,
                                                     host_link::PeerProcess process) {
  return std::make_shared<Link>(*this, side, std::move(socket), std::move(process));
}

Result<Region*> Instance::add_region(const headrace_region_v1& args) {
  HEADRACE_TRY(made, Region::make(gpus, args, pins_registered_));
  HEADRACE_TRY_VOID(
      live().enter(made->id(), {args.address, args.length}, RegionState::registered, !made->read_only()));
  const std::shared_ptr<Region> region(std::move(made));
  const std::scoped_lock lock(mutex_);
  regions_.insert_or_assign(region->id(), region);
  return region.get();
}

void Instance::remove_region(const Region* region) {
  const std::uint32_t id = region->id();
  live().leave(id);
  std::weak_ptr<const Region> held;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = regions_.find(id);
    held = found->second;
    regions_.erase(found);
  }
  std::vector<std::shared_ptr<host_link::Link>> told;
  with_links([&](const auto& links) {
    for (const auto& link : links) static_cast<Link&>(*link).tell_gone(id);
    told = links;
  });
  for (const auto& link : told) static_cast<Link&>(*link).give_up(id);
  // What our GPUs still move for peers that died, or that did not wait for it.
  while (!held.expired())
    if (posts.progress() == 0) std::this_thread::sleep_for(closing_poll_interval);
}

std::shared_ptr<const Region> Instance::region(std::uint32_t id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = regions_.find(id);
  return found == regions_.end() ? nullptr : found->second;
}

Result<const Proof*> Instance::proof(const WorkingGpu& gpu) {
  const std::scoped_lock lock(proof_mutex_);
  std::unique_ptr<const Proof>& proof = proofs_[gpu.device->ordinal()];
  if (proof == nullptr) {
    HEADRACE_TRY(made, Proof::make(gpu.device, gpu.mover->uploads));
    proof = std::move(made);
  }
  return proof.get();
}

}  // namespace headrace::cuda_ipc
