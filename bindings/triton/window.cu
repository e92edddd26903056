// SPDX-License-Identifier: Apache-2.0
// The functions of headrace/device/window.cuh for kernels of Triton, as LLVM bitcode. headrace.triton has
// what kernels call.
//
// A program of Triton is a block: all its threads call a function, with the same arguments, and an answer is
// the same in all of them. Addresses are numbers here. Clang compiles this file as C++ for NVIDIA's GPUs,
// without CUDA; what CUDA has for window.cuh is here.
#define __CUDACC__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))

namespace {

struct Three {
  unsigned x, y, z;
};
__forceinline__ Three thread_index() {
  return {static_cast<unsigned>(__nvvm_read_ptx_sreg_tid_x()),
          static_cast<unsigned>(__nvvm_read_ptx_sreg_tid_y()),
          static_cast<unsigned>(__nvvm_read_ptx_sreg_tid_z())};
}
__forceinline__ Three block_size() {
  return {static_cast<unsigned>(__nvvm_read_ptx_sreg_ntid_x()),
          static_cast<unsigned>(__nvvm_read_ptx_sreg_ntid_y()),
          static_cast<unsigned>(__nvvm_read_ptx_sreg_ntid_z())};
}
__forceinline__ int __syncthreads_and(int mine) { return __nvvm_bar0_and(mine); }
__forceinline__ void __syncwarp() { __nvvm_bar_warp_sync(0xffffffffu); }
__forceinline__ int __all_sync(unsigned lanes, int mine) { return __nvvm_vote_all_sync(lanes, mine); }

}  // namespace

// Windows share a header with what uses these two, and do not use them.
#define __shared__ static
unsigned long long __shfl_sync(unsigned lanes, unsigned long long mine, int lane);

#define threadIdx thread_index()
#define blockDim block_size()
#include <headrace/device/window.cuh>

#define HEADRACE_FUNCTION extern "C" __attribute__((always_inline))

using headrace::device::Comparison;
using headrace::device::Scope;
using headrace::device::Signal;
using headrace::device::Window;

namespace {

__forceinline__ Window window_at(uint64_t handle) {
  return Window(reinterpret_cast<const headrace_device_window_v1*>(handle));
}
/// Of this rank.
__forceinline__ headrace_device_words_v1& words_at(uint64_t handle) {
  const auto& window = *reinterpret_cast<const headrace_device_window_v1*>(handle);
  return *reinterpret_cast<headrace_device_words_v1*>(window.words[window.rank]);
}

/// Copies by the threads of the block, of its first warp, or by its first thread. What any thread of the
/// block has written before is among the bytes.
template <Scope scope>
__forceinline__ int32_t put(uint64_t handle, uint32_t rank, uint64_t at_byte, uint64_t from, uint64_t bytes) {
  constexpr unsigned warp = scope == Scope::warp ? 32 : 1;
  const Window window = window_at(handle);
  const uint64_t room = window.peer_bytes(rank);
  __syncthreads();
  if (scope == Scope::block || headrace::device::detail::lane<Scope::block>() < warp)
    window.put<scope>(rank, at_byte, reinterpret_cast<const void*>(from), bytes);
  return at_byte <= room && bytes <= room - at_byte;
}

}  // namespace

HEADRACE_FUNCTION uint32_t headrace_window_rank(uint64_t handle) { return window_at(handle).rank(); }
HEADRACE_FUNCTION uint32_t headrace_window_size(uint64_t handle) { return window_at(handle).size(); }
HEADRACE_FUNCTION uint64_t headrace_window_peer_address(uint64_t handle, uint32_t rank) {
  return reinterpret_cast<uint64_t>(window_at(handle).peer_address(rank));
}
HEADRACE_FUNCTION uint64_t headrace_window_peer_bytes(uint64_t handle, uint32_t rank) {
  return window_at(handle).peer_bytes(rank);
}

HEADRACE_FUNCTION int32_t headrace_window_put_thread(uint64_t handle, uint32_t rank, uint64_t at_byte,
                                                     uint64_t from, uint64_t bytes) {
  return put<Scope::thread>(handle, rank, at_byte, from, bytes);
}
HEADRACE_FUNCTION int32_t headrace_window_put_warp(uint64_t handle, uint32_t rank, uint64_t at_byte,
                                                   uint64_t from, uint64_t bytes) {
  return put<Scope::warp>(handle, rank, at_byte, from, bytes);
}
HEADRACE_FUNCTION int32_t headrace_window_put_block(uint64_t handle, uint32_t rank, uint64_t at_byte,
                                                    uint64_t from, uint64_t bytes) {
  return put<Scope::block>(handle, rank, at_byte, from, bytes);
}

// Triton wants an answer of each function: those that have none return 0.

HEADRACE_FUNCTION int32_t headrace_window_fence(uint64_t handle) {
  window_at(handle).fence();
  return 0;
}
HEADRACE_FUNCTION int32_t headrace_window_flush(uint64_t handle) {
  window_at(handle).flush<Scope::block>();
  return 0;
}
HEADRACE_FUNCTION int32_t headrace_window_signal_add(uint64_t handle, uint32_t rank, uint32_t number,
                                                     uint64_t value) {
  window_at(handle).signal<Scope::block>(rank, number, value, Signal::add);
  return 0;
}
HEADRACE_FUNCTION int32_t headrace_window_signal_set(uint64_t handle, uint32_t rank, uint32_t number,
                                                     uint64_t value) {
  window_at(handle).signal<Scope::block>(rank, number, value, Signal::set);
  return 0;
}
/// comparison: as headrace::device::Comparison counts them.
HEADRACE_FUNCTION int32_t headrace_window_wait_signal(uint64_t handle, uint32_t rank, uint32_t number,
                                                      uint32_t comparison, uint64_t value) {
  return window_at(handle).wait_signal<Scope::block>(rank, number, static_cast<Comparison>(comparison),
                                                     value);
}
HEADRACE_FUNCTION int32_t headrace_window_add_counter(uint64_t handle, uint32_t number, uint64_t value) {
  window_at(handle).add_counter<Scope::block>(number, value);
  return 0;
}
HEADRACE_FUNCTION int32_t headrace_window_wait_counter(uint64_t handle, uint32_t number, uint32_t comparison,
                                                       uint64_t value) {
  return window_at(handle).wait_counter<Scope::block>(number, static_cast<Comparison>(comparison), value);
}
HEADRACE_FUNCTION int32_t headrace_window_barrier(uint64_t handle, uint32_t number) {
  return window_at(handle).barrier<Scope::block>(number);
}
HEADRACE_FUNCTION int32_t headrace_window_barrier_at(uint64_t handle, uint64_t at_byte) {
  return window_at(handle).barrier_at<Scope::block>(at_byte);
}

// One thread must read a word for all, because it may change: Triton's own atomic operations do so.

HEADRACE_FUNCTION uint64_t headrace_window_signal_word(uint64_t handle, uint32_t rank, uint32_t number) {
  return reinterpret_cast<uint64_t>(words_at(handle).signals[number] + rank);
}
HEADRACE_FUNCTION uint64_t headrace_window_counter_word(uint64_t handle, uint32_t number) {
  return reinterpret_cast<uint64_t>(words_at(handle).counters + number);
}
HEADRACE_FUNCTION int32_t headrace_window_reset_signal(uint64_t handle, uint32_t rank, uint32_t number) {
  __syncthreads();
  window_at(handle).reset_signal(rank, number);
  __syncthreads();
  return 0;
}
HEADRACE_FUNCTION int32_t headrace_window_reset_counter(uint64_t handle, uint32_t number) {
  __syncthreads();
  window_at(handle).reset_counter(number);
  __syncthreads();
  return 0;
}
