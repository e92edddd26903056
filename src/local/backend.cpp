// SPDX-License-Identifier: Apache-2.0
#include "local/backend.hpp"

#include "base/affinity.hpp"
#include "local/request.hpp"
#include "memory/copy_speed.hpp"

#include <algorithm>
#include <utility>

namespace headrace::local {
namespace {

Result<void> check_memory(const headrace_region_v1& args) {
  if (args.kind != HEADRACE_DRAM && args.kind != HEADRACE_VRAM)
    return make_error(Code::not_supported, "local moves memory of the host and of GPUs, not kind {}",
                      args.kind);
  if (args.address == 0 || args.length == 0)
    return make_error(Code::invalid_argument, "region {} has address {:#x} and {} bytes", args.region_id,
                      args.address, args.length);
  return {};
}

/// By the first region of each side, since a cost is told in constant time. While paths are ranked there are
/// none: then it is taken for a GPU's, for which another backend may be better.
bool is_of_host(const headrace_prepare_v1& args) {
  if (args.local->regions == nullptr || args.remote->regions == nullptr) return false;
  return !Handles::region(args.local->regions[0]).of_gpu() &&
         !Handles::remote(args.remote->regions[0]).of_gpu();
}

}  // namespace

Result<std::unique_ptr<LocalBackend>> LocalBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  HEADRACE_TRY(settings, read_settings(args));
  return std::unique_ptr<LocalBackend>(new LocalBackend(
      std::make_unique<Instance>(host, settings, gpu::GpuSource::installed(), gpu::is_in_sight())));
}

Result<std::unique_ptr<LocalBackend>> LocalBackend::open(plugin::Host host, const plugin::CreateArgs& args,
                                                         gpu::GpuSource source) {
  HEADRACE_TRY(settings, read_settings(args));
  return std::unique_ptr<LocalBackend>(
      new LocalBackend(std::make_unique<Instance>(host, settings, std::move(source), true)));
}

headrace_info_v1 LocalBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_LOCAL | HEADRACE_GRID;
  info.local_kinds = instance_->gpus_in_sight ? memory_kinds : HEADRACE_KIND_BIT(HEADRACE_DRAM);
  info.remote_kinds = info.local_kinds;
  return info;
}

Result<Region*> LocalBackend::register_region(const headrace_region_v1& args) {
  HEADRACE_TRY_VOID(check_memory(args));
  auto region = std::make_unique<Region>();
  region->id = args.region_id;
  region->base = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(args.address));
  region->length_bytes = args.length;
  region->writable = (args.flags & HEADRACE_REGION_READ_ONLY) == 0;
  if (args.kind == HEADRACE_VRAM) {
    HEADRACE_TRY(memory,
                 gpu::RegisteredMemory::find(instance_->gpus, args.device, args.address, args.length));
    region->gpu.emplace(std::move(memory));
  }
  return region.release();
}

void LocalBackend::deregister_region(Region& region) { delete &region; }

Result<Region*> LocalBackend::load_local(Region& region) { return &region; }

void LocalBackend::unload(Region& /*remote*/) {}

Result<Request*> LocalBackend::prepare(Link* /*link*/, const headrace_prepare_v1& args) {
  return Request::prepare(*instance_, args);
}

Status LocalBackend::post(Request& request, const headrace_post_v1& args) { return request.post(args); }
bool LocalBackend::poll(Request& request) { return request.poll(); }
void LocalBackend::cancel(Request& request) { request.cancel(); }
void LocalBackend::release(Request& request) { request.unref(); }

std::uint32_t LocalBackend::progress() { return instance_->rescue_stranded(); }

headrace_cost_v1 LocalBackend::cost(const headrace_prepare_v1& args) {
  if (!is_of_host(args))
    return {.struct_size = sizeof(headrace_cost_v1),
            .fixed_ns = 20'000,
            .ns_per_page = 100,
            .bytes_per_second = 3e9,
            .margin = 0.5,
            .method = "constant"};
  const CopySpeed speed = speed_of_copies();
  const bool shared_work = args.bytes > instance_->settings.inline_bytes;
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = shared_work ? 20'000.0 : 300.0,
          .ns_per_page = speed.ns_per_page,
          .bytes_per_second =
              speed.bytes_per_second * (shared_work ? std::min(instance_->helpers + 1, usable_cores()) : 1),
          .margin = 0.5,
          .method = "one thread measured at first use, times the threads that share the work"};
}

}  // namespace headrace::local
