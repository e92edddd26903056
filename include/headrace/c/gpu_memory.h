/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU memory in C, in the form that torch.cuda.memory.CUDAPluggableAllocator takes.
 * include/headrace/gpu_memory.hpp explains it.
 *
 * Threads: any.
 */
#ifndef HEADRACE_C_GPU_MEMORY_H
#define HEADRACE_C_GPU_MEMORY_H

#include <headrace/c/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of a GPU that other processes can map; the caller frees it. NULL: there is none, and the log says
 * why. `stream` is not used: the memory is there when the call returns. */
HEADRACE_C_API void* headrace_gpu_alloc(intptr_t bytes, int device, void* stream);
/* Gives it back, once its kernels have ended. NULL is ignored; the log names an address that is not of
 * headrace_gpu_alloc. The other arguments are not used. */
HEADRACE_C_API void headrace_gpu_free(void* address, intptr_t bytes, int device, void* stream);

#ifdef __cplusplus
}
#endif

#endif
