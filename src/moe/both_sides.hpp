// SPDX-License-Identifier: Apache-2.0
// Functions that kernels and host code share. Headers with this macro use stdint.h alone.
#pragma once

#if defined(HEADRACE_BOTH_SIDES)  // by a family of kernels: a unity build compiles several together
#elif defined(__CUDACC__)
#define HEADRACE_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define HEADRACE_BOTH_SIDES constexpr
#endif
