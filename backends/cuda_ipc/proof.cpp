// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/proof.hpp"

#include "base/random.hpp"

namespace headrace::cuda_ipc {
namespace {

Result<void> copy_word(const gpu::Device& device, const gpu::Stream& stream, cuda::Address target,
                       cuda::Address source) {
  const gpu::ContextGuard guard(device);
  HEADRACE_CUDA_TRY(device.driver(),
                    device.driver().memcpy_async(target, source, sizeof(std::uint64_t), stream.handle()),
                    "copy 8 bytes by GPU {}", device.ordinal());
  return stream.wait_idle();
}

Error not_proved(const Error& cause) {
  return Error{Code::not_supported,
               "memory of cudaMalloc cannot be shared with this peer, whose IPC handles do not lead to it (" +
                   cause.message +
                   "): processes of different PID namespaces cannot use them. Run both in one (containers: "
                   "--pid=host), "
                   "or use memory of the virtual memory API (torch: "
                   "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"};
}

}  // namespace

Result<std::unique_ptr<const Proof>> Proof::make(const std::shared_ptr<const gpu::Device>& device,
                                                 const gpu::Stream& stream) {
  const std::uint64_t nonce = random_u64();
  HEADRACE_TRY(memory, gpu::DeviceMemory::allocate(device, sizeof nonce));
  HEADRACE_TRY_VOID(copy_word(*device, stream, memory.address(), reinterpret_cast<cuda::Address>(&nonce)));
  HEADRACE_TRY(shared, gpu::share_memory(*device, memory.address(), sizeof nonce));
  return std::unique_ptr<const Proof>(new Proof(std::move(memory), shared.handle, nonce));
}

Result<void> check_proof(const std::shared_ptr<const gpu::Device>& device, const gpu::Stream& stream,
                         const cuda::IpcMemoryHandle& handle, std::uint64_t nonce) {
  gpu::SharedMemory shared;
  shared.sharing = gpu::Sharing::ipc;
  shared.bytes = sizeof nonce;
  shared.handle = handle;
  auto opened = gpu::PeerMemory::open(device, shared);
  if (!opened) {
    // The driver takes the handle for one of ours, or finds no such process.
    const bool misled = opened.code() == Code::invalid_argument || opened.code() == Code::not_found;
    return misled ? not_proved(opened.error()) : std::move(opened).error();
  }
  std::uint64_t found = 0;
  HEADRACE_TRY_VOID(copy_word(*device, stream, reinterpret_cast<cuda::Address>(&found), opened->address()));
  if (found == nonce) return {};
  return not_proved(Error{Code::not_supported, "memory of another process was found"});
}

}  // namespace headrace::cuda_ipc
