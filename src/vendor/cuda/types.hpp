// SPDX-License-Identifier: Apache-2.0
// Types and values of NVIDIA's driver interface, as far as they are used here: the build needs no header of
// NVIDIA. Layouts and values are the driver's and never change. tests/unit/vendor/cuda_types_test.cpp
// compares them with cuda.h where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

// Handles. The objects are the driver's; distinct types keep them from being mixed up.
using Device = int;  ///< an ordinal from `device_get`
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;
using Address = std::uint64_t;         ///< of memory, as GPUs see it
using PhysicalMemory = std::uint64_t;  ///< memory of the virtual memory API that has no address yet

/// The default stream: ordered with all streams of its context except the non-blocking ones.
inline const auto legacy_stream = reinterpret_cast<Stream>(std::uintptr_t{1});

/// The result of a call of the driver. Any number may come back; these are the ones that the code knows.
enum class Outcome : std::int32_t {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  stub_library = 34,
  device_unavailable = 46,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  map_failed = 205,
  already_mapped = 208,
  no_binary_for_gpu = 209,
  not_mapped = 211,
  ecc_uncorrectable = 214,
  peer_access_unsupported = 217,
  operating_system = 304,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  peer_access_already_enabled = 704,
  peer_access_not_enabled = 705,
  context_is_destroyed = 709,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  system_not_ready = 802,
  system_driver_mismatch = 803,
  stream_capture_unsupported = 900,
  stream_capture_invalidated = 901,
  stream_capture_isolation = 905,
  stream_capture_implicit = 906,
  unknown = 999,
};

enum class DeviceAttribute : std::int32_t {
  max_threads_per_block = 1,
  multiprocessors = 16,
  integrated = 18,
  can_map_host_memory = 19,
  pci_bus = 33,
  pci_device = 34,
  async_engines = 40,
  unified_addressing = 41,
  pci_domain = 50,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_block_optin = 97,
  virtual_memory_management = 102,
  handle_type_file_descriptor = 103,
  dma_buf = 124,
};

enum class PointerAttribute : std::int32_t {
  context = 1,
  memory_type = 2,
  sync_memory_operations = 6,
  buffer_id = 7,  ///< different for every allocation of a process
  is_managed = 8,
  device_ordinal = 9,
  is_legacy_ipc_capable = 10,
  range_start = 11,
  range_size = 12,
  is_mapped = 13,
  allowed_handle_types = 14,
};

enum class MemoryType : std::uint32_t { host = 1, device = 2 };

enum class FunctionAttribute : std::int32_t {
  max_threads_per_block = 0,
  shared_bytes = 1,
  local_bytes = 3,
  registers = 4,
  max_dynamic_shared_bytes = 8,
};

// Flags. Passed as plain numbers, as the driver takes them.
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_default = 0;
inline constexpr unsigned event_blocking_sync = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned host_alloc_portable = 1;
inline constexpr unsigned host_alloc_device_map = 2;
inline constexpr unsigned host_register_portable = 1;
inline constexpr unsigned host_register_device_map = 2;
inline constexpr unsigned host_register_read_only = 8;
inline constexpr unsigned ipc_lazy_enable_peer_access = 1;
inline constexpr unsigned wait_value_geq = 0;
inline constexpr unsigned wait_value_equal = 1;
inline constexpr unsigned write_value_default = 0;

enum class CaptureMode : std::int32_t { global = 0, thread_local_ = 1, relaxed = 2 };
enum class CaptureStatus : std::int32_t { none = 0, active = 1, invalidated = 2 };

struct Uuid {
  unsigned char bytes[16];
};

struct IpcMemoryHandle {
  unsigned char bytes[64];
};

enum class HandleType : std::int32_t { none = 0, file_descriptor = 1, fabric = 8 };
enum class AllocationType : std::int32_t { pinned = 1 };
enum class LocationType : std::int32_t { none = 0, device = 1, host = 2, host_numa = 3 };
enum class AccessFlags : std::int32_t { none = 0, read = 1, read_write = 3 };
enum class Granularity : std::int32_t { minimum = 0, recommended = 1 };

struct MemoryLocation {
  LocationType type = LocationType::none;
  std::int32_t id = 0;
};

struct AllocationProperties {
  AllocationType type = AllocationType::pinned;
  HandleType handle_types = HandleType::none;  ///< bits
  MemoryLocation location;
  void* reserved_pointer = nullptr;
  unsigned char compression = 0;
  unsigned char gpu_direct_rdma_capable = 0;
  std::uint16_t usage = 0;
  unsigned char reserved[4] = {};
};

struct AccessDescription {
  MemoryLocation location;
  AccessFlags flags = AccessFlags::none;
};

/// When the sources of a batch of copies are read: in the stream's order, before the call returns, or at any
/// time.
enum class SourceOrder : std::int32_t { stream = 1, during_call = 2, any = 3 };
inline constexpr unsigned copy_prefer_overlap = 1;  ///< beside kernels, which means by copy engine

/// Attributes of copies in a batch. The hints are for memory without a fixed location.
struct CopyAttributes {
  SourceOrder source_order = SourceOrder::stream;
  MemoryLocation source_hint;
  MemoryLocation target_hint;
  unsigned flags = 0;
};

/// A copy of rows. Positions count bytes and rows from the pointer of their side.
struct Copy2D {
  std::size_t source_x_bytes = 0;
  std::size_t source_y = 0;
  MemoryType source_type = MemoryType::device;
  const void* source_host = nullptr;
  Address source_device = 0;
  void* source_array = nullptr;
  std::size_t source_pitch_bytes = 0;
  std::size_t target_x_bytes = 0;
  std::size_t target_y = 0;
  MemoryType target_type = MemoryType::device;
  void* target_host = nullptr;
  Address target_device = 0;
  void* target_array = nullptr;
  std::size_t target_pitch_bytes = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 0;
};

struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  void* attributes = nullptr;
  unsigned attribute_count = 0;
};

}  // namespace headrace::cuda
