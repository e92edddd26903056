// SPDX-License-Identifier: Apache-2.0
// Our declarations of the driver's types against cuda.h, where that is installed: sizes, offsets, values, and
// the signature of every function. The compiler checks them; the test only reports that it did.
#include "vendor/cuda/driver.hpp"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
// cuda.h renames functions by macro to newer versions. These are the names that a program of CUDA 12.8 uses.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

namespace {

using namespace headrace::cuda;

#define HEADRACE_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))
#define HEADRACE_SAME_PLACE(our_struct, our_field, their_struct, their_field)             \
  static_assert(offsetof(our_struct, our_field) == offsetof(their_struct, their_field) && \
                sizeof(our_struct::our_field) == sizeof(their_struct::their_field))

HEADRACE_SAME_VALUE(Outcome::invalid_value, CUDA_ERROR_INVALID_VALUE);
HEADRACE_SAME_VALUE(Outcome::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
HEADRACE_SAME_VALUE(Outcome::not_initialized, CUDA_ERROR_NOT_INITIALIZED);
HEADRACE_SAME_VALUE(Outcome::deinitialized, CUDA_ERROR_DEINITIALIZED);
HEADRACE_SAME_VALUE(Outcome::stub_library, CUDA_ERROR_STUB_LIBRARY);
HEADRACE_SAME_VALUE(Outcome::device_unavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
HEADRACE_SAME_VALUE(Outcome::no_device, CUDA_ERROR_NO_DEVICE);
HEADRACE_SAME_VALUE(Outcome::invalid_device, CUDA_ERROR_INVALID_DEVICE);
HEADRACE_SAME_VALUE(Outcome::invalid_image, CUDA_ERROR_INVALID_IMAGE);
HEADRACE_SAME_VALUE(Outcome::invalid_context, CUDA_ERROR_INVALID_CONTEXT);
HEADRACE_SAME_VALUE(Outcome::map_failed, CUDA_ERROR_MAP_FAILED);
HEADRACE_SAME_VALUE(Outcome::already_mapped, CUDA_ERROR_ALREADY_MAPPED);
HEADRACE_SAME_VALUE(Outcome::no_binary_for_gpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
HEADRACE_SAME_VALUE(Outcome::not_mapped, CUDA_ERROR_NOT_MAPPED);
HEADRACE_SAME_VALUE(Outcome::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
HEADRACE_SAME_VALUE(Outcome::peer_access_unsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
HEADRACE_SAME_VALUE(Outcome::operating_system, CUDA_ERROR_OPERATING_SYSTEM);
HEADRACE_SAME_VALUE(Outcome::invalid_handle, CUDA_ERROR_INVALID_HANDLE);
HEADRACE_SAME_VALUE(Outcome::illegal_state, CUDA_ERROR_ILLEGAL_STATE);
HEADRACE_SAME_VALUE(Outcome::not_found, CUDA_ERROR_NOT_FOUND);
HEADRACE_SAME_VALUE(Outcome::not_ready, CUDA_ERROR_NOT_READY);
HEADRACE_SAME_VALUE(Outcome::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
HEADRACE_SAME_VALUE(Outcome::launch_out_of_resources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
HEADRACE_SAME_VALUE(Outcome::peer_access_already_enabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
HEADRACE_SAME_VALUE(Outcome::peer_access_not_enabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
HEADRACE_SAME_VALUE(Outcome::context_is_destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
HEADRACE_SAME_VALUE(Outcome::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
HEADRACE_SAME_VALUE(Outcome::host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
HEADRACE_SAME_VALUE(Outcome::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
HEADRACE_SAME_VALUE(Outcome::not_permitted, CUDA_ERROR_NOT_PERMITTED);
HEADRACE_SAME_VALUE(Outcome::not_supported, CUDA_ERROR_NOT_SUPPORTED);
HEADRACE_SAME_VALUE(Outcome::system_not_ready, CUDA_ERROR_SYSTEM_NOT_READY);
HEADRACE_SAME_VALUE(Outcome::system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
HEADRACE_SAME_VALUE(Outcome::stream_capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
HEADRACE_SAME_VALUE(Outcome::stream_capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
HEADRACE_SAME_VALUE(Outcome::stream_capture_isolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
HEADRACE_SAME_VALUE(Outcome::stream_capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
HEADRACE_SAME_VALUE(Outcome::unknown, CUDA_ERROR_UNKNOWN);

HEADRACE_SAME_VALUE(DeviceAttribute::max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
HEADRACE_SAME_VALUE(DeviceAttribute::multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
HEADRACE_SAME_VALUE(DeviceAttribute::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
HEADRACE_SAME_VALUE(DeviceAttribute::can_map_host_memory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
HEADRACE_SAME_VALUE(DeviceAttribute::pci_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
HEADRACE_SAME_VALUE(DeviceAttribute::pci_device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
HEADRACE_SAME_VALUE(DeviceAttribute::async_engines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
HEADRACE_SAME_VALUE(DeviceAttribute::unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
HEADRACE_SAME_VALUE(DeviceAttribute::pci_domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
HEADRACE_SAME_VALUE(DeviceAttribute::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
HEADRACE_SAME_VALUE(DeviceAttribute::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
HEADRACE_SAME_VALUE(DeviceAttribute::max_shared_memory_per_block_optin,
                    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
HEADRACE_SAME_VALUE(DeviceAttribute::virtual_memory_management,
                    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
HEADRACE_SAME_VALUE(DeviceAttribute::handle_type_file_descriptor,
                    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
HEADRACE_SAME_VALUE(DeviceAttribute::dma_buf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);

HEADRACE_SAME_VALUE(PointerAttribute::context, CU_POINTER_ATTRIBUTE_CONTEXT);
HEADRACE_SAME_VALUE(PointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
HEADRACE_SAME_VALUE(PointerAttribute::sync_memory_operations, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
HEADRACE_SAME_VALUE(PointerAttribute::buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID);
HEADRACE_SAME_VALUE(PointerAttribute::is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
HEADRACE_SAME_VALUE(PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
HEADRACE_SAME_VALUE(PointerAttribute::is_legacy_ipc_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
HEADRACE_SAME_VALUE(PointerAttribute::range_start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
HEADRACE_SAME_VALUE(PointerAttribute::range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
HEADRACE_SAME_VALUE(PointerAttribute::is_mapped, CU_POINTER_ATTRIBUTE_MAPPED);
HEADRACE_SAME_VALUE(PointerAttribute::allowed_handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
HEADRACE_SAME_VALUE(MemoryType::host, CU_MEMORYTYPE_HOST);
HEADRACE_SAME_VALUE(MemoryType::device, CU_MEMORYTYPE_DEVICE);

HEADRACE_SAME_VALUE(FunctionAttribute::max_threads_per_block, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
HEADRACE_SAME_VALUE(FunctionAttribute::shared_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
HEADRACE_SAME_VALUE(FunctionAttribute::local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
HEADRACE_SAME_VALUE(FunctionAttribute::registers, CU_FUNC_ATTRIBUTE_NUM_REGS);
HEADRACE_SAME_VALUE(FunctionAttribute::max_dynamic_shared_bytes,
                    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

HEADRACE_SAME_VALUE(stream_non_blocking, CU_STREAM_NON_BLOCKING);
HEADRACE_SAME_VALUE(event_default, CU_EVENT_DEFAULT);
HEADRACE_SAME_VALUE(event_blocking_sync, CU_EVENT_BLOCKING_SYNC);
HEADRACE_SAME_VALUE(event_disable_timing, CU_EVENT_DISABLE_TIMING);
HEADRACE_SAME_VALUE(host_alloc_portable, CU_MEMHOSTALLOC_PORTABLE);
HEADRACE_SAME_VALUE(host_alloc_device_map, CU_MEMHOSTALLOC_DEVICEMAP);
HEADRACE_SAME_VALUE(host_register_portable, CU_MEMHOSTREGISTER_PORTABLE);
HEADRACE_SAME_VALUE(host_register_device_map, CU_MEMHOSTREGISTER_DEVICEMAP);
HEADRACE_SAME_VALUE(host_register_read_only, CU_MEMHOSTREGISTER_READ_ONLY);
HEADRACE_SAME_VALUE(ipc_lazy_enable_peer_access, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
HEADRACE_SAME_VALUE(wait_value_geq, CU_STREAM_WAIT_VALUE_GEQ);
HEADRACE_SAME_VALUE(wait_value_equal, CU_STREAM_WAIT_VALUE_EQ);
HEADRACE_SAME_VALUE(write_value_default, CU_STREAM_WRITE_VALUE_DEFAULT);
HEADRACE_SAME_VALUE(CaptureMode::global, CU_STREAM_CAPTURE_MODE_GLOBAL);
HEADRACE_SAME_VALUE(CaptureMode::thread_local_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
HEADRACE_SAME_VALUE(CaptureMode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
HEADRACE_SAME_VALUE(CaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
HEADRACE_SAME_VALUE(CaptureStatus::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
HEADRACE_SAME_VALUE(HandleType::file_descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
HEADRACE_SAME_VALUE(HandleType::fabric, CU_MEM_HANDLE_TYPE_FABRIC);
HEADRACE_SAME_VALUE(AllocationType::pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
HEADRACE_SAME_VALUE(LocationType::device, CU_MEM_LOCATION_TYPE_DEVICE);
HEADRACE_SAME_VALUE(LocationType::host, CU_MEM_LOCATION_TYPE_HOST);
HEADRACE_SAME_VALUE(LocationType::host_numa, CU_MEM_LOCATION_TYPE_HOST_NUMA);
HEADRACE_SAME_VALUE(AccessFlags::read, CU_MEM_ACCESS_FLAGS_PROT_READ);
HEADRACE_SAME_VALUE(AccessFlags::read_write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
HEADRACE_SAME_VALUE(Granularity::minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
HEADRACE_SAME_VALUE(Granularity::recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

static_assert(sizeof(Uuid) == sizeof(CUuuid) && sizeof(IpcMemoryHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
HEADRACE_SAME_PLACE(AllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
HEADRACE_SAME_PLACE(AllocationProperties, location, CUmemAllocationProp, location);
HEADRACE_SAME_PLACE(AllocationProperties, reserved_pointer, CUmemAllocationProp, win32HandleMetaData);
static_assert(offsetof(AllocationProperties, compression) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
HEADRACE_SAME_PLACE(AccessDescription, flags, CUmemAccessDesc, flags);
#if CUDA_VERSION >= 12080
HEADRACE_SAME_VALUE(SourceOrder::stream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
HEADRACE_SAME_VALUE(SourceOrder::during_call, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
HEADRACE_SAME_VALUE(SourceOrder::any, CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
HEADRACE_SAME_VALUE(copy_prefer_overlap, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
HEADRACE_SAME_PLACE(CopyAttributes, source_hint, CUmemcpyAttributes, srcLocHint);
HEADRACE_SAME_PLACE(CopyAttributes, target_hint, CUmemcpyAttributes, dstLocHint);
HEADRACE_SAME_PLACE(CopyAttributes, flags, CUmemcpyAttributes, flags);
#endif
static_assert(sizeof(Copy2D) == sizeof(CUDA_MEMCPY2D));
HEADRACE_SAME_PLACE(Copy2D, source_device, CUDA_MEMCPY2D, srcDevice);
HEADRACE_SAME_PLACE(Copy2D, source_pitch_bytes, CUDA_MEMCPY2D, srcPitch);
HEADRACE_SAME_PLACE(Copy2D, target_type, CUDA_MEMCPY2D, dstMemoryType);
HEADRACE_SAME_PLACE(Copy2D, target_host, CUDA_MEMCPY2D, dstHost);
HEADRACE_SAME_PLACE(Copy2D, target_pitch_bytes, CUDA_MEMCPY2D, dstPitch);
HEADRACE_SAME_PLACE(Copy2D, height, CUDA_MEMCPY2D, Height);
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
HEADRACE_SAME_PLACE(LaunchConfig, block_x, CUlaunchConfig, blockDimX);
HEADRACE_SAME_PLACE(LaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
HEADRACE_SAME_PLACE(LaunchConfig, stream, CUlaunchConfig, hStream);  // NOLINT(bugprone-sizeof-expression)
HEADRACE_SAME_PLACE(LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);

/// Two arguments are passed alike: they have one size, and both are pointers or neither is.
template <class Ours, class Theirs>
constexpr bool alike = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <class Ours, class Theirs>
struct SameShape : std::false_type {};
template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameShape<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<sizeof(OurResult) == sizeof(TheirResult) && (alike<Ours, Theirs> && ...)> {};

#define HEADRACE_SAME_FUNCTION(member, theirs) \
  static_assert(SameShape<decltype(DriverTable::member), decltype(&(theirs))>::value, #theirs)
HEADRACE_SAME_FUNCTION(init, cuInit);
HEADRACE_SAME_FUNCTION(driver_get_version, cuDriverGetVersion);
HEADRACE_SAME_FUNCTION(get_error_name, cuGetErrorName);
HEADRACE_SAME_FUNCTION(get_error_string, cuGetErrorString);
HEADRACE_SAME_FUNCTION(device_get_count, cuDeviceGetCount);
HEADRACE_SAME_FUNCTION(device_get, cuDeviceGet);
HEADRACE_SAME_FUNCTION(device_get_name, cuDeviceGetName);
HEADRACE_SAME_FUNCTION(device_get_uuid, cuDeviceGetUuid);
HEADRACE_SAME_FUNCTION(device_get_attribute, cuDeviceGetAttribute);
HEADRACE_SAME_FUNCTION(device_total_mem, cuDeviceTotalMem);
HEADRACE_SAME_FUNCTION(device_get_pci_bus_id, cuDeviceGetPCIBusId);
HEADRACE_SAME_FUNCTION(device_can_access_peer, cuDeviceCanAccessPeer);
HEADRACE_SAME_FUNCTION(device_primary_ctx_retain, cuDevicePrimaryCtxRetain);
HEADRACE_SAME_FUNCTION(device_primary_ctx_release, cuDevicePrimaryCtxRelease);
HEADRACE_SAME_FUNCTION(ctx_get_current, cuCtxGetCurrent);
HEADRACE_SAME_FUNCTION(ctx_set_current, cuCtxSetCurrent);
HEADRACE_SAME_FUNCTION(ctx_push_current, cuCtxPushCurrent);
HEADRACE_SAME_FUNCTION(ctx_pop_current, cuCtxPopCurrent);
HEADRACE_SAME_FUNCTION(ctx_synchronize, cuCtxSynchronize);
HEADRACE_SAME_FUNCTION(ctx_enable_peer_access, cuCtxEnablePeerAccess);
HEADRACE_SAME_FUNCTION(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange);
HEADRACE_SAME_FUNCTION(stream_create_with_priority, cuStreamCreateWithPriority);
HEADRACE_SAME_FUNCTION(stream_destroy, cuStreamDestroy);
HEADRACE_SAME_FUNCTION(stream_query, cuStreamQuery);
HEADRACE_SAME_FUNCTION(stream_synchronize, cuStreamSynchronize);
HEADRACE_SAME_FUNCTION(stream_wait_event, cuStreamWaitEvent);
HEADRACE_SAME_FUNCTION(stream_get_ctx, cuStreamGetCtx);
HEADRACE_SAME_FUNCTION(stream_is_capturing, cuStreamIsCapturing);
HEADRACE_SAME_FUNCTION(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode);
HEADRACE_SAME_FUNCTION(stream_begin_capture, cuStreamBeginCapture);
HEADRACE_SAME_FUNCTION(stream_end_capture, cuStreamEndCapture);
HEADRACE_SAME_FUNCTION(graph_instantiate, cuGraphInstantiateWithFlags);
HEADRACE_SAME_FUNCTION(graph_launch, cuGraphLaunch);
HEADRACE_SAME_FUNCTION(graph_exec_destroy, cuGraphExecDestroy);
HEADRACE_SAME_FUNCTION(graph_destroy, cuGraphDestroy);
HEADRACE_SAME_FUNCTION(event_create, cuEventCreate);
HEADRACE_SAME_FUNCTION(event_destroy, cuEventDestroy);
HEADRACE_SAME_FUNCTION(event_record, cuEventRecord);
HEADRACE_SAME_FUNCTION(event_query, cuEventQuery);
HEADRACE_SAME_FUNCTION(event_synchronize, cuEventSynchronize);
HEADRACE_SAME_FUNCTION(event_elapsed_time, cuEventElapsedTime);
HEADRACE_SAME_FUNCTION(mem_get_info, cuMemGetInfo);
HEADRACE_SAME_FUNCTION(mem_alloc, cuMemAlloc);
HEADRACE_SAME_FUNCTION(mem_free, cuMemFree);
HEADRACE_SAME_FUNCTION(mem_host_alloc, cuMemHostAlloc);
HEADRACE_SAME_FUNCTION(mem_free_host, cuMemFreeHost);
HEADRACE_SAME_FUNCTION(mem_host_register, cuMemHostRegister);
HEADRACE_SAME_FUNCTION(mem_host_unregister, cuMemHostUnregister);
HEADRACE_SAME_FUNCTION(mem_host_get_device_pointer, cuMemHostGetDevicePointer);
HEADRACE_SAME_FUNCTION(mem_get_address_range, cuMemGetAddressRange);
HEADRACE_SAME_FUNCTION(pointer_get_attribute, cuPointerGetAttribute);
HEADRACE_SAME_FUNCTION(pointer_set_attribute, cuPointerSetAttribute);
HEADRACE_SAME_FUNCTION(memcpy_async, cuMemcpyAsync);
HEADRACE_SAME_FUNCTION(memcpy_peer_async, cuMemcpyPeerAsync);
#if CUDA_VERSION >= \
    12080  // newer headers declare it differently, and give the form of 12.8 to programs that ask for it
static_assert(SameShape<decltype(DriverTable::memcpy_batch_async), PFN_cuMemcpyBatchAsync_v12080>::value);
#endif
HEADRACE_SAME_FUNCTION(memcpy_2d_async, cuMemcpy2DAsync);
HEADRACE_SAME_FUNCTION(memset_d8_async, cuMemsetD8Async);
HEADRACE_SAME_FUNCTION(memset_d32_async, cuMemsetD32Async);
HEADRACE_SAME_FUNCTION(ipc_get_mem_handle, cuIpcGetMemHandle);
HEADRACE_SAME_FUNCTION(ipc_open_mem_handle, cuIpcOpenMemHandle);
HEADRACE_SAME_FUNCTION(ipc_close_mem_handle, cuIpcCloseMemHandle);
HEADRACE_SAME_FUNCTION(mem_create, cuMemCreate);
HEADRACE_SAME_FUNCTION(mem_release, cuMemRelease);
HEADRACE_SAME_FUNCTION(mem_address_reserve, cuMemAddressReserve);
HEADRACE_SAME_FUNCTION(mem_address_free, cuMemAddressFree);
HEADRACE_SAME_FUNCTION(mem_map, cuMemMap);
HEADRACE_SAME_FUNCTION(mem_unmap, cuMemUnmap);
HEADRACE_SAME_FUNCTION(mem_set_access, cuMemSetAccess);
HEADRACE_SAME_FUNCTION(mem_export_to_shareable_handle, cuMemExportToShareableHandle);
HEADRACE_SAME_FUNCTION(mem_import_from_shareable_handle, cuMemImportFromShareableHandle);
HEADRACE_SAME_FUNCTION(mem_get_allocation_granularity, cuMemGetAllocationGranularity);
HEADRACE_SAME_FUNCTION(mem_get_allocation_properties, cuMemGetAllocationPropertiesFromHandle);
HEADRACE_SAME_FUNCTION(mem_retain_allocation_handle, cuMemRetainAllocationHandle);
HEADRACE_SAME_FUNCTION(stream_write_value_32, cuStreamWriteValue32);
HEADRACE_SAME_FUNCTION(stream_write_value_64, cuStreamWriteValue64);
HEADRACE_SAME_FUNCTION(stream_wait_value_32, cuStreamWaitValue32);
HEADRACE_SAME_FUNCTION(stream_wait_value_64, cuStreamWaitValue64);
HEADRACE_SAME_FUNCTION(module_load_data, cuModuleLoadData);
HEADRACE_SAME_FUNCTION(module_unload, cuModuleUnload);
HEADRACE_SAME_FUNCTION(module_get_function, cuModuleGetFunction);
HEADRACE_SAME_FUNCTION(func_load, cuFuncLoad);
HEADRACE_SAME_FUNCTION(func_get_attribute, cuFuncGetAttribute);
HEADRACE_SAME_FUNCTION(func_set_attribute, cuFuncSetAttribute);
HEADRACE_SAME_FUNCTION(launch_kernel_ex, cuLaunchKernelEx);

}  // namespace
#define HEADRACE_HAS_CUDA_H 1
#endif

TEST(CudaTypes, our_declarations_match_the_drivers_header) {
#ifndef HEADRACE_HAS_CUDA_H
  GTEST_SKIP() << "cuda.h is not installed";
#endif
}
