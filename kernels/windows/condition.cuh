// SPDX-License-Identifier: Apache-2.0
// Whether a wait for a signal has ended. Host code includes it, too.
#pragma once

#include <headrace/plugin/kernels/windows_v1.h>

namespace headrace::kernels::windows {

#ifdef __CUDACC__
#define HEADRACE_WINDOWS_BOTH __device__ __forceinline__
#else
#define HEADRACE_WINDOWS_BOTH inline
#endif

/// `comparison` is one of headrace_comm_comparison_v1. HEADRACE_COMM_TAKE: above 0, as long as it is not
/// taken.
HEADRACE_WINDOWS_BOTH bool holds(int32_t comparison, uint64_t seen, uint64_t value) {
  switch (comparison) {
    case HEADRACE_COMM_EQ:
      return seen == value;
    case HEADRACE_COMM_NE:
      return seen != value;
    case HEADRACE_COMM_LT:
      return seen < value;
    case HEADRACE_COMM_LE:
      return seen <= value;
    case HEADRACE_COMM_GT:
      return seen > value;
    case HEADRACE_COMM_GE:
      return seen >= value;
    default:
      return seen != 0;
  }
}

#undef HEADRACE_WINDOWS_BOTH

}  // namespace headrace::kernels::windows
