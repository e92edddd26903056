// SPDX-License-Identifier: Apache-2.0
// Types and values of NCCL's C interface, as far as they are used here: the build needs no header of NVIDIA.
// Layouts and values are the library's and never change; RCCL and NCCLX have the same.
// tests/unit/vendor/nccl_types_test.cpp compares them with nccl.h where that is installed.
#pragma once

#include "vendor/cuda/types.hpp"

#include <climits>
#include <cstddef>
#include <cstdint>

namespace headrace::nccl {

using Comm = struct CommObject*;
using Window = struct WindowObject*;
using Stream = cuda::Stream;

/// Brings the ranks of a communicator together. Passed by value.
struct UniqueId {
  char bytes[128];
};

enum class Outcome : std::int32_t {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
  timeout = 8,
};

enum class DataType : std::int32_t {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float8_e4m3 = 10,
  float8_e5m2 = 11,
};

/// Those that a communicator makes have other values.
enum class ReduceOp : std::int32_t { sum = 0, product = 1, max = 2, min = 3, avg = 4 };

enum class ScalarResidence : std::int32_t { device = 0, host_immediate = 1 };

inline constexpr int no_color = -1;       ///< of comm_split: in no group
inline constexpr int suspend_memory = 1;  ///< give back memory of the GPU
inline constexpr int shrink_default = 0;
inline constexpr int shrink_abort = 1;  ///< end what is under way first

inline constexpr int window_symmetric = 1;  ///< of window_register: for puts
/// Windows and the memory that they begin in have so many bytes between them, or a multiple.
inline constexpr std::size_t window_alignment = 4096;

/// How many signals of a rank wait_signal waits for.
struct AwaitedSignals {
  int count;
  int peer;
  int signal;
  int context;
};

/// Bits of `cta_policy`.
inline constexpr int policy_default = 0;
inline constexpr int policy_efficiency = 1;
inline constexpr int policy_zero = 2;  ///< copy engines in place of the GPU's processors, where they can

inline constexpr int undefined_int = INT_MIN;  ///< a field of Config that has not been set

/// How a communicator is made. A library reads the fields that its version has; `size` ends with the last of
/// them.
struct Config {
  std::size_t size = 0;
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  int blocking = undefined_int;
  int cga_cluster_size = undefined_int;
  int min_ctas = undefined_int;
  int max_ctas = undefined_int;
  const char* net_name = nullptr;
  int split_share = undefined_int;
  int traffic_class = undefined_int;
  const char* comm_name = nullptr;
  int collnet_enable = undefined_int;
  int cta_policy = undefined_int;
  int shrink_share = undefined_int;
  int nvls_ctas = undefined_int;
  int channels_per_net_peer = undefined_int;
  int nvlink_centric_sched = undefined_int;
  int graph_usage_mode = undefined_int;
  int num_rma_ctx = undefined_int;
  int max_p2p_peers = undefined_int;
  int graph_stream_ordering = undefined_int;
  int launch_order_implicit = undefined_int;
  int num_rma_sig = undefined_int;
  int rma_eager_init = undefined_int;
  int host_cft_mode = undefined_int;
  int nvls_host_mode = undefined_int;
};

/// How one call runs; else as its communicator.
struct CollConfig {
  std::size_t size = 0;
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  void* extensions = nullptr;  ///< a list of a vendor's own
  int min_ctas = undefined_int;
  int max_ctas = undefined_int;
  int nvls_ctas = undefined_int;
  int cga_cluster_size = undefined_int;
  const char* algorithms = nullptr;
  int force_algorithms = 1;
  int cta_policy = undefined_int;
  std::uint64_t profiler_tag = 0;  ///< here the structure of 2.31 ends
  cuda::Event launch_completion_event = nullptr;
};

}  // namespace headrace::nccl
