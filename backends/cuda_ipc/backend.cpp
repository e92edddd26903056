// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/backend.hpp"

#include "backends/cuda_ipc/path_speed.hpp"
#include "backends/cuda_ipc/request.hpp"

namespace headrace::cuda_ipc {
namespace {

constexpr unsigned map_for_writing = 2;

Result<void> check_kind(std::int32_t kind) {
  if (kind == HEADRACE_VRAM || kind == HEADRACE_DRAM) return {};
  return make_error(Code::not_supported, "cuda_ipc moves memory of GPUs and of the host, not kind {}", kind);
}

RemoteRegion& remote_of(void* handle) { return *static_cast<RemoteRegion*>(handle); }

/// By the first region of each side, since a cost is told in constant time. While paths are ranked there are
/// none.
gpu::Touches reached_by(const headrace_prepare_v1& args) {
  const headrace_side_v1 &local = *args.local, &remote = *args.remote;
  if (local.regions == nullptr || remote.regions == nullptr) return gpu::Touches::gpus;
  const bool gpus = static_cast<const Region*>(local.regions[0])->gpu() != nullptr &&
                    remote_of(remote.regions[0]).is_of_gpu();
  return gpus ? gpu::Touches::gpus : gpu::Touches::host;
}

}  // namespace

// ------------------------------------------------------------------ life

Result<std::unique_ptr<plugin::Backend>> CudaIpcBackend::open(plugin::Host host,
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

Result<std::unique_ptr<plugin::Backend>> CudaIpcBackend::open(plugin::Host host,
                                                              const plugin::CreateArgs& args,
                                                              GpuSource source) {
  HEADRACE_TRY(settings, read_settings(args));
  HEADRACE_TRY(parts, host_link::Site::Parts::open(protocol, host, args.runtime_dir));
  return std::unique_ptr<plugin::Backend>(
      new CudaIpcBackend(std::make_unique<Instance>(host, settings, std::move(source), std::move(parts))));
}

headrace_info_v1 CudaIpcBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_LOCAL | HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_MAP | HEADRACE_NEEDS_VRAM |
                   HEADRACE_STREAM | HEADRACE_CAPTURE | HEADRACE_GRID;
  info.local_kinds = memory_kinds;
  info.remote_kinds = memory_kinds;
  info.max_message_bytes = host_link::max_message_bytes;
  return info;
}

// ------------------------------------------------------------------ links

Result<std::string> CudaIpcBackend::connection_info() { return instance_->connection_info(); }

Result<void*> CudaIpcBackend::connect(const headrace_connect_v1& args) { return instance_->connect(args); }

void CudaIpcBackend::disconnect(void* connection) { instance_->close(&Link::of(connection)); }

Status CudaIpcBackend::notify(void* connection, std::uint32_t channel, std::string_view bytes) {
  return Link::of(connection).notify(channel, bytes);
}

// ------------------------------------------------------------------ regions

Result<void*> CudaIpcBackend::register_region(const headrace_region_v1& args) {
  HEADRACE_TRY_VOID(check_kind(args.kind));
  HEADRACE_TRY(region, instance_->add_region(args));
  return const_cast<void*>(static_cast<const void*>(region));
}

void CudaIpcBackend::deregister_region(void* handle) {
  instance_->remove_region(static_cast<const Region*>(handle));
}

/// Which GPU it is of, so that a peer's host memory is moved by that one.
Result<std::string> CudaIpcBackend::export_region(void* handle) {
  const WorkingGpu* const gpu = static_cast<const Region*>(handle)->gpu();
  if (gpu == nullptr) return std::string();
  const std::uint32_t mark = gpu::mark_of(gpu->device->info());
  return std::string(reinterpret_cast<const char*>(&mark), sizeof mark);
}

Result<void*> CudaIpcBackend::load_local(void* handle) {
  return static_cast<void*>(new RemoteRegion(*static_cast<const Region*>(handle)));
}

Result<void*> CudaIpcBackend::load_remote(void* connection, const headrace_remote_region_v1& region) {
  HEADRACE_TRY_VOID(check_kind(region.kind));
  Link& link = Link::of(connection);
  if (link.state() == host_link::LinkState::lost) return link.why_lost().error();
  auto remote = std::make_unique<RemoteRegion>(link.shared(), region);
  // With one GPU there is little doubt which will want it, and the first post need not wait for the answer.
  if (const auto device = instance_->gpus.only_one(); device && remote->is_of_gpu())
    (void)remote->reach(*device);
  return static_cast<void*>(remote.release());
}

void CudaIpcBackend::unload(void* remote) { delete static_cast<RemoteRegion*>(remote); }

Result<std::span<std::byte>> CudaIpcBackend::map(void* remote, int device, unsigned access) {
  if (device < 0) return make_error(Code::not_supported, "cuda_ipc maps memory for a GPU, not for the CPU");
  HEADRACE_TRY(gpu, instance_->gpus.open(device));
  HEADRACE_TRY(address, remote_of(remote).map(*gpu, (access & map_for_writing) != 0));
  return std::span(reinterpret_cast<std::byte*>(address), remote_of(remote).length());
}

void CudaIpcBackend::unmap(void* remote, void* address) {
  remote_of(remote).unmap(reinterpret_cast<cuda::Address>(address));
}

// ------------------------------------------------------------------ requests

Result<void*> CudaIpcBackend::prepare(const headrace_prepare_v1& args) {
  std::shared_ptr<Link> link;
  if (args.connection != nullptr) link = Link::of(args.connection).shared();
  HEADRACE_TRY(request, Request::prepare(*instance_, args, std::move(link)));
  return static_cast<void*>(request);
}

Status CudaIpcBackend::post(void* request, const headrace_post_v1& args) {
  return static_cast<Request*>(request)->post(args);
}

bool CudaIpcBackend::poll(void* request) { return instance_->posts.poll(*static_cast<Request*>(request)); }

void CudaIpcBackend::cancel(void* request) { static_cast<Request*>(request)->cancel(); }
void CudaIpcBackend::release(void* request) { static_cast<Request*>(request)->unref(); }

headrace_cost_v1 CudaIpcBackend::cost(const headrace_prepare_v1& args) {
  const gpu::CourierSettings& courier = instance_->courier;
  const bool carried = courier.on && args.grid == nullptr && args.count <= gpu::Courier::most_parts &&
                       args.bytes <= courier.most_bytes;
  const PathSpeed& speed = speed_of(reached_by(args));
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = carried ? courier_ns : speed.fixed_ns,
          // 4096 bytes at 350 GB/s take 12 ns, 512 bytes at 250 take 2: the list is not the limit.
          .ns_per_page = 1,
          .bytes_per_second = speed.bytes_per_second,
          .margin = 0.5,
          .method = carried ? "by the courier, unless a stream is named" : speed.method};
}

Result<bool> CudaIpcBackend::capture(void* request, const headrace_capture_v1& args) {
  return static_cast<Request*>(request)->capture(args);
}

void CudaIpcBackend::end_capture(void* request) { static_cast<Request*>(request)->end_capture(); }

Result<void> CudaIpcBackend::set_indices(void* request, const headrace_indices_v1& args) {
  return static_cast<Request*>(request)->set_indices(args);
}

Result<std::uint64_t> CudaIpcBackend::check(void* request) { return static_cast<Request*>(request)->check(); }

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
