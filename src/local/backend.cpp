// SPDX-License-Identifier: Apache-2.0
#include "local/backend.hpp"

#include "gpu/path_speed.hpp"
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
/// none, and nothing but host memory is assumed.
std::size_t gpu_sides(const headrace_prepare_v1& args) {
  std::size_t count = 0;
  for (const headrace_side_v1* const side : {args.local, args.remote})
    if (side->regions != nullptr && Handles::region(side->regions[0]).gpu() != nullptr) ++count;
  return count;
}

headrace_cost_v1 cost_of_gpu(const headrace_prepare_v1& args, std::size_t gpus,
                             const gpu::CourierSettings& courier) {
  const bool carried = courier.on && args.grid == nullptr && args.count <= gpu::Courier::most_runs &&
                       args.bytes <= courier.most_bytes;
  const gpu::PathSpeed& speed = gpu::speed_of(gpus == 2 ? gpu::Touches::gpus : gpu::Touches::host);
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = carried ? gpu::courier_ns : speed.fixed_ns,
          // 4096 bytes at 350 GB/s take 12 ns, 512 bytes at 250 take 2: the list is not the limit.
          .ns_per_page = 1,
          .bytes_per_second = speed.bytes_per_second,
          .margin = 0.5,
          .method = carried ? "by the courier, unless a stream is named" : speed.method};
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
  const bool gpus = instance_->gpus_in_sight;
  info.abilities = HEADRACE_LOCAL | HEADRACE_GRID;
  if (gpus) info.abilities |= HEADRACE_STREAM | HEADRACE_CAPTURE;
  info.local_kinds = gpus ? memory_kinds : HEADRACE_KIND_BIT(HEADRACE_DRAM);
  info.remote_kinds = info.local_kinds;
  return info;
}

Result<Region*> LocalBackend::register_region(const headrace_region_v1& args) {
  HEADRACE_TRY_VOID(check_memory(args));
  HEADRACE_TRY(memory, Region::find_memory(instance_->gpus, args));
  return new Region(args, instance_->settings.gpu.pins_registered, std::move(memory));
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
void LocalBackend::release(Request& request) { request.release(); }

Result<bool> LocalBackend::capture(Request& request, const headrace_capture_v1& args) {
  HEADRACE_TRY_VOID(check_gpus());
  return request.capture(args);
}
void LocalBackend::end_capture(Request& request) {
  if (instance_->gpus_in_sight) request.end_capture();
}
Result<void> LocalBackend::set_indices(Request& request, const headrace_indices_v1& args) {
  HEADRACE_TRY_VOID(check_gpus());
  return request.set_indices(args);
}
Result<std::uint64_t> LocalBackend::check(Request& request) {
  HEADRACE_TRY_VOID(check_gpus());
  return request.check();
}

/// Without GPUs an instance has no captures.
Result<void> LocalBackend::check_gpus() const {
  if (instance_->gpus_in_sight) return {};
  return make_error(Code::not_supported, "no GPU is in sight, so nothing is captured into CUDA graphs");
}

std::uint32_t LocalBackend::progress() { return instance_->posts.progress() + instance_->rescue_stranded(); }

std::uint32_t LocalBackend::arm(bool on) { return instance_->posts.arm(on); }

headrace_cost_v1 LocalBackend::cost(const headrace_prepare_v1& args) {
  if (const std::size_t gpus = gpu_sides(args); gpus > 0)
    return cost_of_gpu(args, gpus, instance_->settings.gpu.moves.courier);
  const CopySpeed speed = speed_of_copies();
  const bool shared_work = args.bytes > instance_->settings.inline_bytes;
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = shared_work ? 20'000.0 : 300.0,
          .ns_per_page = speed.ns_per_page,
          .bytes_per_second = speed.bytes_per_second * (shared_work ? instance_->copiers : 1),
          .margin = 0.5,
          .method = "one thread measured at first use, times the threads that share the work"};
}

}  // namespace headrace::local
