// SPDX-License-Identifier: Apache-2.0
// The device code of the family moe on a CPU: what its PTX does, by instructions of the host.
#pragma once

#define HEADRACE_MOE_BLOCK_THREADS 128

#include "tests/support/cpu_grid.hpp"
//
#include "kernels/moe/memory.cuh"

#include <chrono>

namespace headrace::kernels::moe {

/// Others must get on meanwhile.
inline uint64_t acquire(uint64_t address) {
  cpu_grid::block().give_way();
  return __atomic_load_n(at<uint64_t>(address), __ATOMIC_ACQUIRE);
}
inline void release(uint64_t address, uint64_t value) {
  __atomic_store_n(at<uint64_t>(address), value, __ATOMIC_RELEASE);
}
inline void store_relaxed(uint64_t address, uint64_t value) { release(address, value); }
inline uint64_t look_at(uint64_t address) { return acquire(address); }
inline uint32_t look_at_narrow(uint64_t address) {
  cpu_grid::block().give_way();
  return __atomic_load_n(at<uint32_t>(address), __ATOMIC_ACQUIRE);
}
inline void fence_system() {}
inline void fence_gpu() {}
inline uint32_t add(uint64_t address, uint32_t value) {
  return __atomic_fetch_add(at<uint32_t>(address), value, __ATOMIC_ACQ_REL);
}
inline uint64_t add_wide(uint64_t address, uint64_t value) {
  return __atomic_fetch_add(at<uint64_t>(address), value, __ATOMIC_ACQ_REL);
}
inline uint64_t set_bits(uint64_t address, uint64_t bits) {
  return __atomic_fetch_or(at<uint64_t>(address), bits, __ATOMIC_ACQ_REL);
}
inline uint64_t swap_if(uint64_t address, uint64_t expected, uint64_t value) {
  __atomic_compare_exchange_n(at<uint64_t>(address), &expected, value, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
  return expected;
}
inline Vector load(uint64_t address) { return *at<const Vector>(address); }
inline void store(uint64_t address, Vector v) { *at<Vector>(address) = v; }
inline uint64_t clock_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
inline float product(float a, float b) {
  const volatile float rounded = a * b;
  return rounded;
}
inline float sum(float a, float b) { return a + b; }
inline float from_half(uint32_t bits) {
  const _Float16 value = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
  return static_cast<float>(value);
}
inline uint32_t two_halves(float low, float high) {
  const auto bits = [](float value) {
    return uint32_t{std::bit_cast<uint16_t>(static_cast<_Float16>(value))};
  };
  return bits(low) | bits(high) << 16;
}
inline uint32_t two_bfloats(float low, float high) {
  const auto bits = [](float value) {
    const uint32_t all = bits_of(value);
    return value != value ? 0x7fffu : (all + 0x7fff + ((all >> 16) & 1)) >> 16;
  };
  return bits(low) | bits(high) << 16;
}

}  // namespace headrace::kernels::moe

#include "kernels/moe/choose.cuh"
#include "kernels/moe/combine.cuh"
#include "kernels/moe/dispatch.cuh"
#include "kernels/moe/window_rows.cuh"
