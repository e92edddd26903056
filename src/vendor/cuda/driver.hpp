// SPDX-License-Identifier: Apache-2.0
// NVIDIA's driver, libcuda.so.1, found and bound at run time: one build runs with and without a GPU.
#pragma once

#include "base/errors.hpp"
#include "vendor/cuda/types.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

/// Every function of the driver that is used: its name in the table, its name in the driver, its arguments.
/// All return an Outcome. The version of a function follows from `oldest_driver`: it is the version that a
/// driver of that release gives to programs of its time.
#define HEADRACE_CUDA_FUNCTIONS(FUNCTION)                                                                    \
  FUNCTION(init, "cuInit", unsigned flags)                                                                   \
  FUNCTION(driver_get_version, "cuDriverGetVersion", int* version)                                           \
  FUNCTION(get_error_name, "cuGetErrorName", Outcome outcome, const char** text)                             \
  FUNCTION(get_error_string, "cuGetErrorString", Outcome outcome, const char** text)                         \
  FUNCTION(device_get_count, "cuDeviceGetCount", int* count)                                                 \
  FUNCTION(device_get, "cuDeviceGet", Device* device, int ordinal)                                           \
  FUNCTION(device_get_name, "cuDeviceGetName", char* name, int capacity, Device device)                      \
  FUNCTION(device_get_uuid, "cuDeviceGetUuid", Uuid* uuid, Device device)                                    \
  FUNCTION(device_get_attribute, "cuDeviceGetAttribute", int* value, DeviceAttribute attribute,              \
           Device device)                                                                                    \
  FUNCTION(device_total_mem, "cuDeviceTotalMem", std::size_t* bytes, Device device)                          \
  FUNCTION(device_get_pci_bus_id, "cuDeviceGetPCIBusId", char* text, int capacity, Device device)            \
  FUNCTION(device_can_access_peer, "cuDeviceCanAccessPeer", int* can, Device device, Device peer)            \
  FUNCTION(device_primary_ctx_retain, "cuDevicePrimaryCtxRetain", Context* context, Device device)           \
  FUNCTION(device_primary_ctx_release, "cuDevicePrimaryCtxRelease", Device device)                           \
  FUNCTION(ctx_get_current, "cuCtxGetCurrent", Context* context)                                             \
  FUNCTION(ctx_get_device, "cuCtxGetDevice", Device* device)                                                 \
  FUNCTION(ctx_set_current, "cuCtxSetCurrent", Context context)                                              \
  FUNCTION(ctx_push_current, "cuCtxPushCurrent", Context context)                                            \
  FUNCTION(ctx_pop_current, "cuCtxPopCurrent", Context* context)                                             \
  FUNCTION(ctx_synchronize, "cuCtxSynchronize")                                                              \
  FUNCTION(ctx_enable_peer_access, "cuCtxEnablePeerAccess", Context peer, unsigned flags)                    \
  FUNCTION(ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange", int* least, int* greatest)          \
  FUNCTION(stream_create_with_priority, "cuStreamCreateWithPriority", Stream* stream, unsigned flags,        \
           int priority)                                                                                     \
  FUNCTION(stream_destroy, "cuStreamDestroy", Stream stream)                                                 \
  FUNCTION(stream_query, "cuStreamQuery", Stream stream)                                                     \
  FUNCTION(stream_synchronize, "cuStreamSynchronize", Stream stream)                                         \
  FUNCTION(stream_wait_event, "cuStreamWaitEvent", Stream stream, Event event, unsigned flags)               \
  FUNCTION(stream_get_ctx, "cuStreamGetCtx", Stream stream, Context* context)                                \
  FUNCTION(stream_is_capturing, "cuStreamIsCapturing", Stream stream, CaptureStatus* status)                 \
  FUNCTION(stream_begin_capture, "cuStreamBeginCapture", Stream stream, CaptureMode mode)                    \
  FUNCTION(stream_end_capture, "cuStreamEndCapture", Stream stream, Graph* graph)                            \
  FUNCTION(thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode", CaptureMode* mode)      \
  FUNCTION(graph_instantiate, "cuGraphInstantiateWithFlags", GraphExec* exec, Graph graph,                   \
           unsigned long long flags)                                                                         \
  FUNCTION(graph_launch, "cuGraphLaunch", GraphExec exec, Stream stream)                                     \
  FUNCTION(graph_exec_destroy, "cuGraphExecDestroy", GraphExec exec)                                         \
  FUNCTION(graph_destroy, "cuGraphDestroy", Graph graph)                                                     \
  FUNCTION(event_create, "cuEventCreate", Event* event, unsigned flags)                                      \
  FUNCTION(event_destroy, "cuEventDestroy", Event event)                                                     \
  FUNCTION(event_record, "cuEventRecord", Event event, Stream stream)                                        \
  FUNCTION(event_query, "cuEventQuery", Event event)                                                         \
  FUNCTION(event_synchronize, "cuEventSynchronize", Event event)                                             \
  FUNCTION(event_elapsed_time, "cuEventElapsedTime", float* milliseconds, Event from, Event to)              \
  FUNCTION(mem_get_info, "cuMemGetInfo", std::size_t* free_bytes, std::size_t* total_bytes)                  \
  FUNCTION(mem_alloc, "cuMemAlloc", Address* address, std::size_t bytes)                                     \
  FUNCTION(mem_free, "cuMemFree", Address address)                                                           \
  FUNCTION(mem_host_alloc, "cuMemHostAlloc", void** address, std::size_t bytes, unsigned flags)              \
  FUNCTION(mem_free_host, "cuMemFreeHost", void* address)                                                    \
  FUNCTION(mem_host_register, "cuMemHostRegister", void* address, std::size_t bytes, unsigned flags)         \
  FUNCTION(mem_host_unregister, "cuMemHostUnregister", void* address)                                        \
  FUNCTION(mem_host_get_device_pointer, "cuMemHostGetDevicePointer", Address* address, void* host,           \
           unsigned flags)                                                                                   \
  FUNCTION(mem_get_address_range, "cuMemGetAddressRange", Address* base, std::size_t* bytes, Address inside) \
  FUNCTION(pointer_get_attribute, "cuPointerGetAttribute", void* value, PointerAttribute attribute,          \
           Address address)                                                                                  \
  FUNCTION(pointer_set_attribute, "cuPointerSetAttribute", const void* value, PointerAttribute attribute,    \
           Address address)                                                                                  \
  FUNCTION(memcpy_async, "cuMemcpyAsync", Address target, Address source, std::size_t bytes, Stream stream)  \
  FUNCTION(memcpy_peer_async, "cuMemcpyPeerAsync", Address target, Context target_context, Address source,   \
           Context source_context, std::size_t bytes, Stream stream)                                         \
  FUNCTION(memcpy_batch_async, "cuMemcpyBatchAsync", Address* targets, Address* sources, std::size_t* bytes, \
           std::size_t count, CopyAttributes* attributes, std::size_t* first_of_attributes,                  \
           std::size_t attribute_count, std::size_t* failed, Stream stream)                                  \
  FUNCTION(memcpy_2d_async, "cuMemcpy2DAsync", const Copy2D* copy, Stream stream)                            \
  FUNCTION(memset_d8_async, "cuMemsetD8Async", Address target, unsigned char value, std::size_t bytes,       \
           Stream stream)                                                                                    \
  FUNCTION(memset_d32_async, "cuMemsetD32Async", Address target, std::uint32_t value, std::size_t words,     \
           Stream stream)                                                                                    \
  FUNCTION(ipc_get_mem_handle, "cuIpcGetMemHandle", IpcMemoryHandle* handle, Address address)                \
  FUNCTION(ipc_open_mem_handle, "cuIpcOpenMemHandle", Address* address, IpcMemoryHandle handle,              \
           unsigned flags)                                                                                   \
  FUNCTION(ipc_close_mem_handle, "cuIpcCloseMemHandle", Address address)                                     \
  FUNCTION(mem_create, "cuMemCreate", PhysicalMemory* memory, std::size_t bytes,                             \
           const AllocationProperties* properties, unsigned long long flags)                                 \
  FUNCTION(mem_release, "cuMemRelease", PhysicalMemory memory)                                               \
  FUNCTION(mem_address_reserve, "cuMemAddressReserve", Address* address, std::size_t bytes,                  \
           std::size_t alignment, Address wanted, unsigned long long flags)                                  \
  FUNCTION(mem_address_free, "cuMemAddressFree", Address address, std::size_t bytes)                         \
  FUNCTION(mem_map, "cuMemMap", Address address, std::size_t bytes, std::size_t offset,                      \
           PhysicalMemory memory, unsigned long long flags)                                                  \
  FUNCTION(mem_unmap, "cuMemUnmap", Address address, std::size_t bytes)                                      \
  FUNCTION(mem_set_access, "cuMemSetAccess", Address address, std::size_t bytes,                             \
           const AccessDescription* descriptions, std::size_t count)                                         \
  FUNCTION(mem_export_to_shareable_handle, "cuMemExportToShareableHandle", void* handle,                     \
           PhysicalMemory memory, HandleType type, unsigned long long flags)                                 \
  FUNCTION(mem_import_from_shareable_handle, "cuMemImportFromShareableHandle", PhysicalMemory* memory,       \
           void* handle, HandleType type)                                                                    \
  FUNCTION(mem_get_allocation_granularity, "cuMemGetAllocationGranularity", std::size_t* bytes,              \
           const AllocationProperties* properties, Granularity which)                                        \
  FUNCTION(mem_get_allocation_properties, "cuMemGetAllocationPropertiesFromHandle",                          \
           AllocationProperties* properties, PhysicalMemory memory)                                          \
  FUNCTION(mem_retain_allocation_handle, "cuMemRetainAllocationHandle", PhysicalMemory* memory,              \
           void* address)                                                                                    \
  FUNCTION(stream_write_value_32, "cuStreamWriteValue32", Stream stream, Address word, std::uint32_t value,  \
           unsigned flags)                                                                                   \
  FUNCTION(stream_write_value_64, "cuStreamWriteValue64", Stream stream, Address word, std::uint64_t value,  \
           unsigned flags)                                                                                   \
  FUNCTION(stream_wait_value_32, "cuStreamWaitValue32", Stream stream, Address word, std::uint32_t value,    \
           unsigned flags)                                                                                   \
  FUNCTION(stream_wait_value_64, "cuStreamWaitValue64", Stream stream, Address word, std::uint64_t value,    \
           unsigned flags)                                                                                   \
  FUNCTION(module_load_data, "cuModuleLoadData", Module* module, const void* image)                          \
  FUNCTION(module_unload, "cuModuleUnload", Module module)                                                   \
  FUNCTION(module_get_function, "cuModuleGetFunction", Function* function, Module module, const char* name)  \
  FUNCTION(func_load, "cuFuncLoad", Function function)                                                       \
  FUNCTION(func_get_attribute, "cuFuncGetAttribute", int* value, FunctionAttribute attribute,                \
           Function function)                                                                                \
  FUNCTION(func_set_attribute, "cuFuncSetAttribute", Function function, FunctionAttribute attribute,         \
           int value)                                                                                        \
  FUNCTION(launch_kernel_ex, "cuLaunchKernelEx", const LaunchConfig* config, Function function,              \
           void** parameters, void** extra)

namespace headrace::cuda {

/// The oldest supported driver, by the version that it reports: CUDA 12.8.
inline constexpr int oldest_driver = 12080;

/// The driver's functions. A fake fills the same table. Copied freely: the library is never unloaded.
struct DriverTable {
#define HEADRACE_CUDA_MEMBER(member, symbol, ...) Outcome (*member)(__VA_ARGS__) = nullptr;
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_CUDA_MEMBER)
#undef HEADRACE_CUDA_MEMBER
};

/// Finds an exported symbol of a driver library; null if there is none.
using SymbolLookup = void* (*)(const char* name);

/// Loads libcuda.so.1, binds the table and initialises the driver.
///   errors   not_supported (no driver, too old: both versions, no GPU, a function is missing),
///            backend_failed (it does not start: the driver's own words)
[[nodiscard]] Result<DriverTable> load_driver();
/// The same with a driver library that is loaded already, for tests.
[[nodiscard]] Result<DriverTable> bind_driver(SymbolLookup lookup);

/// "12.8" for 12080.
[[nodiscard]] std::string version_text(int version);
/// The driver's words for an outcome: "out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
[[nodiscard]] std::string outcome_text(const DriverTable& driver, Outcome outcome);
/// The default code for an outcome, if the caller has no better one; backend_failed if none fits.
[[nodiscard]] Code code_of_outcome(Outcome outcome) noexcept;

/// An error whose cause is the driver: driver_error(driver, outcome, "allocate {} bytes", n) reads
/// "allocate 64 bytes: out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
template <class... Args>
[[nodiscard]] Error driver_error(const DriverTable& driver, Outcome outcome, fmt::format_string<Args...> what,
                                 Args&&... args) {
  return Error{code_of_outcome(outcome),
               fmt::format(what, std::forward<Args>(args)...) + ": " + outcome_text(driver, outcome)};
}

}  // namespace headrace::cuda

/// Returns an error from the function unless the call of the driver succeeds:
/// HEADRACE_CUDA_TRY(driver, driver.mem_alloc(&address, bytes), "allocate {} bytes", bytes);
#define HEADRACE_CUDA_TRY(driver, call, ...)                                          \
  do {                                                                                \
    if (const ::headrace::cuda::Outcome headrace_outcome = (call);                    \
        headrace_outcome != ::headrace::cuda::Outcome::success)                       \
      return ::headrace::cuda::driver_error((driver), headrace_outcome, __VA_ARGS__); \
  } while (false)
