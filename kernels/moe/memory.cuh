// SPDX-License-Identifier: Apache-2.0
// Loads, stores and numbers of the kernels: with kernels/common/words.cuh all that is written in PTX. Tests
// that run the kernels on a CPU bring their own (tests/support/moe_on_cpu.hpp).
//
// Bytes are loaded and stored plainly: a rank that sees a word sees the bytes that were written before it.
#pragma once

#include "kernels/common/words.cuh"
#include "moe/cast.hpp"

#include <stdint.h>

namespace headrace::kernels::moe {

/// 16 bytes, which a thread moves at once.
struct alignas(16) Vector {
  uint32_t words[4];
};

template <class T>
__device__ __forceinline__ T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t look_at_narrow(uint64_t address) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// What this thread has seen and written comes before what it writes from now on, for all GPUs.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/// The same for the blocks of this GPU.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ uint32_t add(uint64_t address, uint32_t value) {
  return atomicAdd(at<unsigned>(address), value);
}
__device__ __forceinline__ uint64_t add_wide(uint64_t address, uint64_t value) {
  return atomicAdd(at<unsigned long long>(address), static_cast<unsigned long long>(value));
}
__device__ __forceinline__ uint64_t set_bits(uint64_t address, uint64_t bits) {
  return atomicOr(at<unsigned long long>(address), static_cast<unsigned long long>(bits));
}
/// Returns what was there: `expected` if `value` is there now.
__device__ __forceinline__ uint64_t swap_if(uint64_t address, uint64_t expected, uint64_t value) {
  return atomicCAS(at<unsigned long long>(address), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(value));
}

__device__ __forceinline__ Vector load(uint64_t address) {
  Vector v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void store(uint64_t address, Vector v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.words[0]),
               "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
}

__device__ __forceinline__ float float_of(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t bits_of(float value) { return __float_as_uint(value); }
/// Rounded, never one step with an addition.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float sum(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float from_half(uint32_t bits) {
  float value;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(bits));
  return value;
}
__device__ __forceinline__ uint32_t two_halves(float low, float high) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ uint32_t two_bfloats(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

#if __CUDA_ARCH__ >= 890

/// Of float8_e4m3fn, in a word.
__device__ __forceinline__ uint32_t four_float8(float a, float b, float c, float d) {
  uint32_t four;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}
/// Number `i` of a word.
__device__ __forceinline__ float from_float8(uint32_t four, unsigned i) {
  uint32_t halves;
  asm("{\n.reg .b16 pair, rest;\nmov.b32 {pair, rest}, %1;\ncvt.rn.f16x2.e4m3x2 %0, pair;\n}"
      : "=r"(halves)
      : "r"(four >> i / 2 * 16));
  return from_half(halves >> i % 2 * 16);
}

#endif
#endif

#if !defined(__CUDACC__) || __CUDA_ARCH__ < 890

__device__ __forceinline__ uint32_t four_float8(float a, float b, float c, float d) {
  using headrace::moe::float8_of;
  return uint32_t{float8_of(a)} | uint32_t{float8_of(b)} << 8 | uint32_t{float8_of(c)} << 16 |
         uint32_t{float8_of(d)} << 24;
}
__device__ __forceinline__ float from_float8(uint32_t four, unsigned i) {
  return headrace::moe::float_of_float8(static_cast<uint8_t>(four >> i * 8));
}

#endif

}  // namespace headrace::kernels::moe
