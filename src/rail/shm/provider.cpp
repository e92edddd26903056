// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/provider.hpp"

#include "base/random.hpp"
#include "gpu/gpus.hpp"
#include "gpu/peer_memory.hpp"
#include "host_link/socket_folder.hpp"
#include "rail/shm/address.hpp"

#include <utility>

namespace headrace::rail::shm {
namespace {

constexpr std::string_view socket_prefix = "fabric-";
constexpr std::uint32_t passes_without_system = 64;  // strangers and deaths can wait as long

std::string socket_path(const std::string& folder, std::uint64_t life) {
  return fmt::format("{}/{}{:016x}{}", folder, socket_prefix, life, host_link::socket_suffix);
}

}  // namespace

std::optional<gpu::GpuSource> Options::gpus_in_sight() {
  return gpu::is_in_sight() ? std::optional(gpu::GpuSource::installed()) : std::nullopt;
}

Result<std::unique_ptr<ShmProvider>> ShmProvider::open(const std::string& folder, const Options& options) {
  host_link::sweep_stale_sockets(folder, std::string(socket_prefix));
  const std::uint64_t life = random_u64();
  HEADRACE_TRY(listener, UnixListener::listen(socket_path(folder, life)));
  HEADRACE_TRY(parts, Parts::open(listener.fd()));
  return std::unique_ptr<ShmProvider>(
      new ShmProvider(std::move(parts), std::move(listener), {folder, life}, options));
}

ShmProvider::ShmProvider(Parts parts, UnixListener listener, Place place, const Options& options)
    : StreamProvider(std::move(parts), listener.fd(), options, place.life),
      listener_(std::move(listener)),
      folder_(std::move(place.folder)),
      copies_(options.copies) {
  set_address(encode(NearAddress{this_host(), life()}));
  changeable_info().name = "this host";
  changeable_info().near = true;
  if (options.gpus) gpus_.emplace(*options.gpus, gpu::MoveSettings{});
  changeable_info().gpu_memory = gpus_.has_value();
}

Result<stream::NewStream> ShmProvider::reach(std::string_view address) {
  HEADRACE_TRY(at, read_near_address(address));
  if (at.host != this_host())
    return make_error(Code::not_supported, "the NIC {} is on another host, or this one was started again",
                      address);
  auto stream = ShmStream::connect(socket_path(folder_, at.life), ways());
  if (!stream && stream.code() == Code::not_found)
    return make_error(
        Code::not_supported,
        "the NIC {} has closed, or uses another HEADRACE_RUNTIME_DIR than {}: give both processes "
        "the same folder",
        address, folder_);
  if (!stream) return std::move(stream).error().within(fmt::format("connect to {}", address));
  std::string where = (*stream)->peer_text();
  return stream::NewStream{std::move(*stream), std::move(where), at.life};
}

Result<stream::NewStream> ShmProvider::accept() {
  HEADRACE_TRY(socket, listener_.accept());
  HEADRACE_TRY(stream, ShmStream::accept(std::move(socket), ways()));
  std::string where = stream->peer_text();
  return stream::NewStream{std::move(stream), std::move(where), 0};
}

Result<std::shared_ptr<const gpu::MemoryIdentity>> ShmProvider::identify(const Memory& memory) {
  if (!memory.device) return std::shared_ptr<const gpu::MemoryIdentity>();
  HEADRACE_TRY(gpu, gpus_->open(*memory.device));
  HEADRACE_TRY_VOID(gpu::share_memory(*gpu->device, memory.address, static_cast<std::size_t>(memory.bytes)));
  HEADRACE_TRY(identity, gpu::MemoryIdentity::of(gpu->device, memory.address, memory.bytes));
  return std::make_shared<const gpu::MemoryIdentity>(std::move(identity));
}

/// Copies by GPUs that have begun may still write to it: waits for them.
void ShmProvider::deregister(MemoryId memory) {
  StreamProvider::deregister(memory);
  if (gpus_) gpus_->wait_idle();
}

bool ShmProvider::must_ask_system() {
  if (++passes_ < passes_without_system) return false;
  passes_ = 0;
  return true;
}

}  // namespace headrace::rail::shm
