// SPDX-License-Identifier: Apache-2.0
#include "engine/can_carry.hpp"

#include "base/errors.hpp"
#include "engine/plugin_host.hpp"

#include <algorithm>

namespace headrace::engine {
namespace {

Error no(std::string why) { return {Code::not_supported, std::move(why)}; }

/// `vram` becomes true if one of the regions is GPU memory.
Result<void> takes_local_side(const BackendInstance& backend, std::size_t index, const PageList::State& list,
                              bool& vram) {
  for (const auto& region : list.local_regions) {
    vram = vram || region->info.kind == MemoryKind::vram;
    if (!backend.takes_local(static_cast<int>(region->info.kind)))
      return no(fmt::format("does not move {} here", kind_name(region->info.kind)));
    if (region->handles.local(index) == nullptr)
      return no(fmt::format("local region {} is not registered with it", region->info.id.value));
  }
  return {};
}

/// The remote side is memory of this agent, too.
Result<void> takes_own_remote_side(const BackendInstance& backend, std::size_t index,
                                   const PageList::State& list, bool& vram) {
  if (!backend.can(HEADRACE_LOCAL)) return no("does not move between regions of one agent");
  for (const auto& region : list.local_regions) {
    vram = vram || region->info.kind == MemoryKind::vram;
    if (!backend.takes_remote(static_cast<int>(region->info.kind)))
      return no(fmt::format("does not move to or from {}", kind_name(region->info.kind)));
    if (region->handles.local(index) == nullptr)
      return no(fmt::format("region {} is not registered with it", region->info.id.value));
  }
  return {};
}

Result<void> takes_peers_side(const BackendInstance& backend, const PageList::State& list, bool& vram) {
  if (!backend.can(HEADRACE_REMOTE)) return no("reaches no peers");
  const PeerLife& life = *list.life;
  const std::shared_lock lock(life.mutex);
  const int number = life.backend_number(backend.name());
  if (number < 0) return no(fmt::format("peer {} does not have it", life.name));
  for (const std::uint32_t id : list.columns.region_ids) {
    const RemoteRegion* const region = life.regions.find(id);
    if (region == nullptr)
      return Error{Code::not_found, fmt::format("peer {} has no region {} any more", life.name, id)};
    vram = vram || region->kind == HEADRACE_VRAM;
    if (!backend.takes_remote(region->kind))
      return no(fmt::format("does not move to or from a peer's {}",
                            kind_name(static_cast<MemoryKind>(region->kind))));
    if ((region->backends >> number & 1) == 0)
      return no(fmt::format("peer {} did not register region {} with it", life.name, id));
  }
  return {};
}

}  // namespace

bool is_asked_for(const BackendInstance& backend, const RequestPlan& plan) {
  return plan.backends.empty() || std::ranges::find(plan.backends, backend.name()) != plan.backends.end();
}

Result<void> can_carry(const BackendInstance& backend, std::size_t index, const RequestPlan& plan) {
  const bool inside_agent = !plan.remote->life;
  if (!is_asked_for(backend, plan) && !(inside_agent && backend.name() == local_backend))
    return no("not among the backends asked for");
  if (plan.grid && !backend.can(HEADRACE_GRID)) return no("does not move pages that are strided views");
  bool vram = false;
  HEADRACE_TRY_VOID(takes_local_side(backend, index, *plan.local, vram));
  HEADRACE_TRY_VOID(inside_agent ? takes_own_remote_side(backend, index, *plan.remote, vram)
                                 : takes_peers_side(backend, *plan.remote, vram));
  if (!vram && backend.can(HEADRACE_NEEDS_VRAM)) return no("moves host memory only to and from GPUs");
  return {};
}

}  // namespace headrace::engine
