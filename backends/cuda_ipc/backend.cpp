// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/backend.hpp"

#include "backends/cuda_ipc/request.hpp"
#include "gpu/path_speed.hpp"

namespace headrace::cuda_ipc {
namespace {

constexpr unsigned map_for_writing = 2;

Result<void> check_kind(std::int32_t kind) {
  if (kind == HEADRACE_VRAM || kind == HEADRACE_DRAM) return {};
  return make_error(Code::not_supported, "cuda_ipc moves memory of GPUs and of the host, not kind {}", kind);
}

/// By the first region of each side, since a cost is told in constant time. While paths are ranked there are
/// none.
gpu::Touches reached_by(const headrace_prepare_v1& args) {
  const headrace_side_v1 &local = *args.local, &remote = *args.remote;
  if (local.regions == nullptr || remote.regions == nullptr) return gpu::Touches::gpus;
  const bool gpus =
      Handles::region(local.regions[0]).gpu() != nullptr && Handles::remote(remote.regions[0]).is_of_gpu();
  return gpus ? gpu::Touches::gpus : gpu::Touches::host;
}

}  // namespace

// ------------------------------------------------------------------ life

Result<std::unique_ptr<CudaIpcBackend>> CudaIpcBackend::open(plugin::Host host,
                                                             const plugin::CreateArgs& args) {
  if (auto settings = read_settings(args); !settings) return std::move(settings).error();  // wrong anywhere
  if (!gpu::is_in_sight()) {  // agents without a GPU shall not pay for links that nothing can travel over
    return make_error(
        Code::not_supported,
        "no NVIDIA GPU here: neither /dev/nvidiactl, /dev/dxg nor /dev/nvmap is there. Install the "
        "driver (570 or newer); in a container, start it with GPUs");
  }
  return open(host, args, GpuSource::installed());
}

Result<std::unique_ptr<CudaIpcBackend>> CudaIpcBackend::open(plugin::Host host,
                                                             const plugin::CreateArgs& args,
                                                             GpuSource source) {
  HEADRACE_TRY(settings, read_settings(args));
  HEADRACE_TRY(parts, host_link::Site::Parts::open(protocol, host, args));
  return std::unique_ptr<CudaIpcBackend>(
      new CudaIpcBackend(std::make_unique<Instance>(host, settings, std::move(source), std::move(parts))));
}

headrace_info_v1 CudaIpcBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_MAP | HEADRACE_NEEDS_VRAM | HEADRACE_STREAM |
                   HEADRACE_CAPTURE | HEADRACE_GRID | HEADRACE_COUNT;
  info.local_kinds = memory_kinds;
  info.remote_kinds = memory_kinds;
  info.max_message_bytes = host_link::max_message_bytes;
  return info;
}

// ------------------------------------------------------------------ links

Result<std::string> CudaIpcBackend::connection_info() { return instance_->connection_info(); }

Result<Link*> CudaIpcBackend::connect(const headrace_connect_v1& args) {
  HEADRACE_TRY(link, instance_->connect(args));
  return &Link::of(*link);
}

void CudaIpcBackend::disconnect(Link& link) { instance_->close(&link); }

Status CudaIpcBackend::notify(Link& link, std::uint32_t channel, std::string_view bytes) {
  return link.notify(channel, bytes);
}

std::uint64_t CudaIpcBackend::unsent(Link& link) { return link.unsent(); }

// ------------------------------------------------------------------ regions

Result<Region*> CudaIpcBackend::register_region(const headrace_region_v1& args) {
  HEADRACE_TRY_VOID(check_kind(args.kind));
  return instance_->add_region(args);
}

void CudaIpcBackend::deregister_region(Region& region) { instance_->remove_region(&region); }

/// Which GPU it is of, so that a peer's host memory is moved by that one.
Result<std::string> CudaIpcBackend::export_region(Region& region) {
  const WorkingGpu* const gpu = region.gpu();
  if (gpu == nullptr) return std::string();
  const std::uint32_t mark = gpu::mark_of(gpu->device->info());
  return std::string(reinterpret_cast<const char*>(&mark), sizeof mark);
}

Result<RemoteRegion*> CudaIpcBackend::load_remote(Link& link, const headrace_remote_region_v1& region) {
  HEADRACE_TRY_VOID(check_kind(region.kind));
  if (link.state() == host_link::LinkState::lost) return link.why_lost().error();
  auto remote = std::make_unique<RemoteRegion>(link.shared(), region);
  // With one GPU there is little doubt which will want it, and the first post need not wait for the answer.
  if (const auto device = instance_->gpus.only_one(); device && remote->is_of_gpu())
    (void)remote->reach(*device);
  return remote.release();
}

void CudaIpcBackend::unload(RemoteRegion& remote) { delete &remote; }

Result<std::span<std::byte>> CudaIpcBackend::map(RemoteRegion& remote, int device, unsigned access) {
  if (device < 0) return make_error(Code::not_supported, "cuda_ipc maps memory for a GPU, not for the CPU");
  HEADRACE_TRY(gpu, instance_->gpus.open(device));
  HEADRACE_TRY(address, remote.map(*gpu, (access & map_for_writing) != 0));
  return std::span(reinterpret_cast<std::byte*>(address), remote.length());
}

void CudaIpcBackend::unmap(RemoteRegion& remote, void* address) {
  remote.unmap(reinterpret_cast<cuda::Address>(address));
}

// ------------------------------------------------------------------ requests

Result<Request*> CudaIpcBackend::prepare(Link* link, const headrace_prepare_v1& args) {
  return Request::prepare(*instance_, args, link->shared());
}

Status CudaIpcBackend::post(Request& request, const headrace_post_v1& args) { return request.post(args); }

bool CudaIpcBackend::poll(Request& request) { return instance_->posts.poll(request); }

void CudaIpcBackend::cancel(Request& request) { request.cancel(); }
void CudaIpcBackend::release(Request& request) { request.unref(); }

headrace_cost_v1 CudaIpcBackend::cost(const headrace_prepare_v1& args) {
  const gpu::CourierSettings& courier = instance_->courier;
  const bool carried = courier.on && args.grid == nullptr && args.count <= gpu::Courier::most_runs &&
                       args.bytes <= courier.most_bytes;
  const gpu::PathSpeed& speed = gpu::speed_of(reached_by(args));
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = carried ? gpu::courier_ns : speed.fixed_ns,
          // 4096 bytes at 350 GB/s take 12 ns, 512 bytes at 250 take 2: the list is not the limit.
          .ns_per_page = 1,
          .bytes_per_second = speed.bytes_per_second,
          .margin = 0.5,
          .method = carried ? "by the courier, unless a stream is named" : speed.method};
}

Result<bool> CudaIpcBackend::capture(Request& request, const headrace_capture_v1& args) {
  return request.capture(args);
}

void CudaIpcBackend::end_capture(Request& request) { request.end_capture(); }

Result<void> CudaIpcBackend::set_indices(Request& request, const headrace_indices_v1& args) {
  return request.set_indices(args);
}

Result<std::uint64_t> CudaIpcBackend::check(Request& request) { return request.check(); }

// ------------------------------------------------------------------ progress

std::uint32_t CudaIpcBackend::progress() {
  std::uint32_t done = instance_->posts.progress();
  done += instance_->progress_links();
  return done + instance_->look(done);
}

int CudaIpcBackend::descriptor() { return instance_->descriptor(); }

std::uint32_t CudaIpcBackend::arm(bool on) {
  const std::uint32_t arrived = instance_->arm(on);
  return arrived + instance_->posts.arm(on);
}

}  // namespace headrace::cuda_ipc
