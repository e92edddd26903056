/* SPDX-License-Identifier: Apache-2.0
 *
 * The device code of Headrace: one C table that `libheadrace_kernels.so` fills in.
 *
 * The library holds compiled images for several kinds of GPU and launches its kernels. It links no CUDA
 * library: the host passes in the driver functions that it has loaded itself. Kernels are grouped in
 * families. This header has what all families share; headrace/plugin/kernels/<family>_v1.h has the arguments
 * and the table of one family. Device code reads these headers too: most argument structs are kernel
 * arguments, byte for byte.
 *
 * Rules for every entry
 *   sizes      fields are only ever appended to structs with struct_size; the side that makes one sets it.
 *              The other structs are frozen
 *   context    the GPU's context is current on the calling thread: the context in which `open` was called
 *   errors     an entry that returns int32_t returns the driver's number (CUresult, 0: it worked)
 *   threads    launches may come from any thread, several at once; open and close of one set of kernels may
 *              not run beside them
 *   addresses  every address is one that the GPU can use: its own memory, a peer's mapped memory, or mapped
 *              host memory. The kernels check no address
 *   unload     the library is never unloaded
 */
#ifndef HEADRACE_PLUGIN_KERNELS_V1_H
#define HEADRACE_PLUGIN_KERNELS_V1_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_KERNELS_ABI_MAJOR 1u
#define HEADRACE_KERNELS_ABI_MINOR 0u
#define HEADRACE_KERNELS_SYMBOL "headrace_kernels_v1_table"

/* Device code for one kind of GPU: the kernels of all families. Frozen. */
typedef struct headrace_kernel_image_v1 {
  const char* name; /* "sm_90a" */
  uint32_t major;   /* of the compute capability that it was compiled for */
  uint32_t minor;
  uint32_t exact; /* 1: runs on exactly this one ("sm_90a"); 0: on this and higher minors of the same major */
  uint32_t reserved;
  const void* data;
  uint64_t bytes;
} headrace_kernel_image_v1;

/* The driver's functions that the library calls, with the driver's arguments. */
typedef struct headrace_kernels_driver_v1 {
  size_t struct_size;
  int32_t (*module_load_data)(void** module, const void* image);
  int32_t (*module_unload)(void* module);
  int32_t (*module_get_function)(void** function, void* module, const char* name);
  int32_t (*func_load)(void* function);
  int32_t (*launch_kernel_ex)(const void* config, void* function, void** parameters, void** extra);
} headrace_kernels_driver_v1;

typedef struct headrace_kernels_open_v1 {
  size_t struct_size;
  const headrace_kernels_driver_v1* driver; /* valid until close */
  const headrace_kernel_image_v1* image;    /* one of the table's images */
  uint32_t multiprocessors;                 /* of the GPU */
  uint32_t reserved;
  const char* failed;        /* out, on failure: the failed step, static text: "load the image" */
  const char* failed_kernel; /* out, on failure: the kernel of that step, static text; NULL: it has none */
} headrace_kernels_open_v1;

/* The first member, `family`, of the table of a family. Frozen. The table's other members are entries,
 * function pointers, which are never NULL. An entry that launches takes the set that `open` gave, queues one
 * launch on `stream` and returns:
 *   int32_t (*entry)(void* kernels, const <arguments>* args, void* stream) */
typedef struct headrace_kernel_family_v1 {
  size_t struct_size; /* of the whole table */
  /* Raised by 1 with each appended entry, and with each field appended to an argument struct of the
   * family. A change that breaks callers is a family of another name. */
  uint32_t version;
  uint32_t reserved;
} headrace_kernel_family_v1;

typedef struct headrace_kernels_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_KERNELS_ABI_MAJOR */
  uint32_t abi_minor;
  const char* version; /* of Headrace */
  const headrace_kernel_image_v1* images;
  uint64_t image_count;

  /* Loads an image into the current context, with the kernels of all families: a kernel that is loaded at
   * its first launch would wait for running kernels. */
  int32_t (*open)(headrace_kernels_open_v1* args, void** kernels);
  /* Unloads it. None of its launches is running. */
  int32_t (*close)(void* kernels);

  /* The table of the family of this name, which lives as long as the process. NULL: the library has no such
   * family, or an older version of it. Version 0 asks for the family in any version. */
  const headrace_kernel_family_v1* (*family)(const char* name, uint32_t version);
} headrace_kernels_v1;

/* The struct_size of this version: the smallest that a host accepts. */
#define HEADRACE_KERNELS_V1_SIZE \
  (offsetof(headrace_kernels_v1, family) + sizeof(((headrace_kernels_v1*)0)->family))

/* The type of the one exported symbol: returns the table, which lives as long as the process. */
typedef const headrace_kernels_v1* (*headrace_kernels_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
