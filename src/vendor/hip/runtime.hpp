// SPDX-License-Identifier: Apache-2.0
// AMD's HIP runtime, libamdhip64.so, found and bound at run time as a table of the CUDA driver: its functions
// take the same arguments, and its outcomes and flags have the same values.
#pragma once

#include "vendor/cuda/driver.hpp"

#include <functional>

/// Every function that is used: its name in the table, and its name in HIP.
#define HEADRACE_HIP_FUNCTIONS(FUNCTION)                                              \
  FUNCTION(init, "hipInit")                                                           \
  FUNCTION(driver_get_version, "hipDriverGetVersion")                                 \
  FUNCTION(get_error_name, "hipDrvGetErrorName")                                      \
  FUNCTION(get_error_string, "hipDrvGetErrorString")                                  \
  FUNCTION(device_get_count, "hipGetDeviceCount")                                     \
  FUNCTION(device_get, "hipDeviceGet")                                                \
  FUNCTION(device_get_name, "hipDeviceGetName")                                       \
  FUNCTION(device_get_uuid, "hipDeviceGetUuid")                                       \
  FUNCTION(device_total_mem, "hipDeviceTotalMem")                                     \
  FUNCTION(device_get_pci_bus_id, "hipDeviceGetPCIBusId")                             \
  FUNCTION(device_primary_ctx_retain, "hipDevicePrimaryCtxRetain")                    \
  FUNCTION(device_primary_ctx_release, "hipDevicePrimaryCtxRelease")                  \
  FUNCTION(ctx_get_current, "hipCtxGetCurrent")                                       \
  FUNCTION(ctx_get_device, "hipCtxGetDevice")                                         \
  FUNCTION(ctx_set_current, "hipCtxSetCurrent")                                       \
  FUNCTION(ctx_push_current, "hipCtxPushCurrent")                                     \
  FUNCTION(ctx_pop_current, "hipCtxPopCurrent")                                       \
  FUNCTION(ctx_synchronize, "hipCtxSynchronize")                                      \
  FUNCTION(ctx_get_stream_priority_range, "hipDeviceGetStreamPriorityRange")          \
  FUNCTION(stream_create_with_priority, "hipStreamCreateWithPriority")                \
  FUNCTION(stream_destroy, "hipStreamDestroy")                                        \
  FUNCTION(stream_query, "hipStreamQuery")                                            \
  FUNCTION(stream_synchronize, "hipStreamSynchronize")                                \
  FUNCTION(stream_wait_event, "hipStreamWaitEvent")                                   \
  FUNCTION(stream_is_capturing, "hipStreamIsCapturing")                               \
  FUNCTION(thread_exchange_stream_capture_mode, "hipThreadExchangeStreamCaptureMode") \
  FUNCTION(event_create, "hipEventCreateWithFlags")                                   \
  FUNCTION(event_destroy, "hipEventDestroy")                                          \
  FUNCTION(event_record, "hipEventRecord")                                            \
  FUNCTION(event_query, "hipEventQuery")                                              \
  FUNCTION(event_synchronize, "hipEventSynchronize")                                  \
  FUNCTION(event_elapsed_time, "hipEventElapsedTime")                                 \
  FUNCTION(mem_get_info, "hipMemGetInfo")                                             \
  FUNCTION(mem_alloc, "hipMalloc")                                                    \
  FUNCTION(mem_free, "hipFree")                                                       \
  FUNCTION(memcpy_async, "hipMemcpyDtoDAsync")                                        \
  FUNCTION(memset_d8_async, "hipMemsetD8Async")

namespace headrace::hip {

/// Loads the runtime, binds the functions above and starts it. The other functions of the table return
/// not_supported, and every attribute of a device is 0: HIP numbers them in another way.
///   errors   not_supported (no runtime, no GPU, a function is missing), backend_failed (it does not start)
[[nodiscard]] Result<cuda::DriverTable> load_runtime();
/// The same with a library that is loaded already, for tests.
[[nodiscard]] Result<cuda::DriverTable> bind_runtime(const std::function<void*(const char*)>& lookup);

}  // namespace headrace::hip
