/* SPDX-License-Identifier: Apache-2.0
 *
 * The device code of Headrace: one C table that `libheadrace_kernels.so` fills in.
 *
 * The library holds compiled images for several kinds of GPU and launches its kernels. It links no CUDA
 * library: the host passes in the driver functions that it has loaded itself. Device code reads the first
 * half of this file too: the structs named move_* are kernel arguments, byte for byte.
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
#define HEADRACE_KERNELS_ABI_MINOR 3u
#define HEADRACE_KERNELS_SYMBOL "headrace_kernels_v1_table"
#define HEADRACE_MOVE_FEW_MOST 8
#define HEADRACE_MOVE_GRID_MOST 4
#define HEADRACE_COURIER_SLOTS 64
#define HEADRACE_COURIER_WORDS 32
#define HEADRACE_COURIER_HEAD_WORDS 4
#define HEADRACE_COURIER_PARTS_MOST 10

/* ------------------------------------------------------------------ moving bytes */

/* One side of a list of pages of one length. Page i begins at
 *   (base_of ? bases[base_of[i]] : base) + (indices ? indices[i] : i) * stride
 * Frozen. */
typedef struct headrace_move_side_v1 {
  uint64_t base;
  uint64_t stride;
  uint64_t indices; /* address of uint32_t[count]; 0: page i has index i */
  uint64_t bases;   /* address of uint64_t[]: base addresses, for example of several peers' memory */
  uint64_t base_of; /* address of uint32_t[count]; 0: `base` holds for all pages */
} headrace_move_side_v1;

/* State in device memory that several launches share. It begins as zeros. Launches that overlap need a state
 * each. Frozen. */
typedef struct headrace_move_state_v1 {
  uint32_t arrived; /* blocks of the running launch that are done; 0 between launches */
  uint32_t reserved;
  uint64_t launches; /* number of launches that stored this count: those with `value` 0 */
} headrace_move_state_v1;

/* How a move reports its end: it stores `value` to `word` once host and GPUs can see every byte. A reader
 * that loads the value with acquire sees the bytes. Frozen. */
typedef struct headrace_move_done_v1 {
  /* Address of a uint64_t, for example in mapped host memory. 0: nothing is stored, the stream's order
   * suffices. */
  uint64_t word;
  uint64_t value; /* 0: store the number of launches with this state and value 0, this one included */
  /* Address of a headrace_move_state_v1. 0 only if word is 0, or if value is not 0 and one block moves
   * (move_few). */
  uint64_t state;
} headrace_move_done_v1;

/* Bounds of page indices that a device may write between launches; in device memory. Frozen. */
typedef struct headrace_move_bounds_v1 {
  uint64_t source_pages; /* indices of the source must be below this */
  uint64_t target_pages; /* indices of the target must be below this */
  uint32_t count;        /* pages of the next launch, but at most `count` of the arguments */
  uint32_t reserved;
} headrace_move_bounds_v1;

/* Pages of one length. */
typedef struct headrace_move_pages_v1 {
  size_t struct_size;
  headrace_move_side_v1 source;
  headrace_move_side_v1 target;
  uint64_t page_bytes; /* any number > 0, any alignment */
  uint64_t count;
  headrace_move_done_v1 done;
  uint32_t most_multiprocessors; /* that the move may occupy; 0: all of the GPU */
  uint32_t flags;                /* HEADRACE_MOVE_BASES_ALIGNED or 0 */
  /* Address of a headrace_move_bounds_v1. 0: none, the host has checked the indices. Else both sides have
   * `indices`, and a page with an index out of bounds is skipped. */
  uint64_t bounds;
  /* With bounds: address of a uint64_t in mapped host memory. For one of the skipped pages the kernel stores
   * 2 * page + 1 if the source's index was out of bounds, 2 * page + 2 if the target's index was. */
  uint64_t refused;
} headrace_move_pages_v1;
/* All of `bases`, which the host may be unable to read, are multiples of 16. */
#define HEADRACE_MOVE_BASES_ALIGNED 1u

/* Pages that consist of several runs: counts[0] x ... x counts[dimensions - 1] of them. Run n[0], n[1], ...
 * begins n[0] * strides[0] + n[1] * strides[1] + ... bytes after the begin of its page on that side. */
typedef struct headrace_move_grids_v1 {
  size_t struct_size;
  headrace_move_pages_v1 pages; /* page_bytes: sum of all runs of a page. Its struct_size is set too */
  uint32_t dimensions;          /* 1 to HEADRACE_MOVE_GRID_MOST */
  uint32_t reserved;
  uint64_t run_bytes;                       /* any number > 0, any alignment */
  uint64_t counts[HEADRACE_MOVE_GRID_MOST]; /* last dimension fastest; pages.count * all counts < 2^31 */
  uint64_t source_strides[HEADRACE_MOVE_GRID_MOST];
  uint64_t target_strides[HEADRACE_MOVE_GRID_MOST];
} headrace_move_grids_v1;

/* Runs of any length, which the names here call parts: run i is lengths[i] bytes from source_base +
 * sources[i] to target_base + targets[i]. One warp moves one run: the caller cuts long runs. */
typedef struct headrace_move_parts_v1 {
  size_t struct_size;
  uint64_t sources; /* address of uint64_t[count] */
  uint64_t targets; /* address of uint64_t[count] */
  uint64_t lengths; /* address of uint32_t[count] */
  uint64_t source_base;
  uint64_t target_base;
  uint64_t count;
  headrace_move_done_v1 done;
  uint32_t most_multiprocessors;
  uint32_t reserved;
} headrace_move_parts_v1;

/* A few runs that travel inside the launch, for the shortest time from post to done: one block moves them
 * all. */
typedef struct headrace_move_few_v1 {
  size_t struct_size;
  uint64_t sources[HEADRACE_MOVE_FEW_MOST];
  uint64_t targets[HEADRACE_MOVE_FEW_MOST];
  uint64_t lengths[HEADRACE_MOVE_FEW_MOST];
  uint64_t count; /* at most HEADRACE_MOVE_FEW_MOST */
  headrace_move_done_v1 done;
} headrace_move_few_v1;

/* ------------------------------------------------------------------ a kernel that stays */

/* A job for the courier: the runs ("parts") of one small request. Jobs are numbered from 1; job n is in slot
 * n % HEADRACE_COURIER_SLOTS of a ring in mapped host memory. Word 0 is the number of parts; 0: leave. Part
 * i is word 1 + 3 * i, its source, word 2 + 3 * i, its target, and word 3 + 3 * i, its bytes. Each word
 * carries the job's number in its 16 highest bits, so addresses have 48 bits. A job is complete once its
 * first HEADRACE_COURIER_HEAD_WORDS words carry its number, in any order of arrival. The writer writes these
 * words and all words of the parts, word 0 last and with release: later words are read after word 0 has been
 * seen. A slot begins at a multiple of 256 bytes. Frozen. */
typedef struct headrace_courier_job_v1 {
  uint64_t words[HEADRACE_COURIER_WORDS];
} headrace_courier_job_v1;
#define HEADRACE_COURIER_NUMBER_SHIFT 48
#define HEADRACE_COURIER_WORD(number, value) ((uint64_t)(number) << HEADRACE_COURIER_NUMBER_SHIFT | (value))

/* What the courier reports, in mapped host memory. Frozen. */
typedef struct headrace_courier_told_v1 {
  /* The last job that has ended; all jobs before it have ended. A reader that loads it with acquire sees the
   * bytes of them all. */
  uint64_t finished;
  uint64_t left; /* the last launch that has left: it reads no job any more */
} headrace_courier_told_v1;

/* One launch of the courier, a kernel that stays and moves jobs without further launches. */
typedef struct headrace_courier_v1 {
  size_t struct_size;
  uint64_t jobs;    /* address of a headrace_courier_job_v1[HEADRACE_COURIER_SLOTS] */
  uint64_t told;    /* address of a headrace_courier_told_v1 */
  uint64_t first;   /* its first job: the one after told.finished, since the launch before has left */
  uint64_t launch;  /* number that it stores to told.left when it leaves; not stored before */
  uint64_t idle_ns; /* it leaves if no job comes for this time, */
  uint64_t stay_ns; /* or before the next job once it has stayed this time; it always looks for a first one */
} headrace_courier_v1;

/* ------------------------------------------------------------------ the library */

/* Device code for one kind of GPU. Frozen. */
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
  const char* failed; /* out, on failure: the failed step, static text: "load image", "find move_pages" */
} headrace_kernels_open_v1;

typedef struct headrace_kernels_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_KERNELS_ABI_MAJOR */
  uint32_t abi_minor;
  const char* version; /* of Headrace */
  const headrace_kernel_image_v1* images;
  uint64_t image_count;

  /* Loads an image into the current context, with all of its kernels: a kernel that is loaded at its first
   * launch would wait for running kernels. */
  int32_t (*open)(headrace_kernels_open_v1* args, void** kernels);
  /* Unloads it. None of its launches is running. */
  int32_t (*close)(void* kernels);

  /* Each entry queues one launch on `stream` and returns. With count 0 the launch only reports the end. */
  int32_t (*move_pages)(void* kernels, const headrace_move_pages_v1* args, void* stream);
  int32_t (*move_parts)(void* kernels, const headrace_move_parts_v1* args, void* stream);
  int32_t (*move_few)(void* kernels, const headrace_move_few_v1* args, void* stream);
  /* Since 1.2. */
  int32_t (*move_grids)(void* kernels, const headrace_move_grids_v1* args, void* stream);
  /* Since 1.3. The launch occupies one multiprocessor until the courier leaves. */
  int32_t (*run_courier)(void* kernels, const headrace_courier_v1* args, void* stream);
} headrace_kernels_v1;

/* The struct_size of this version: the smallest that a host accepts. */
#define HEADRACE_KERNELS_V1_SIZE \
  (offsetof(headrace_kernels_v1, run_courier) + sizeof(((headrace_kernels_v1*)0)->run_courier))

/* The type of the one exported symbol: returns the table, which lives as long as the process. */
typedef const headrace_kernels_v1* (*headrace_kernels_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
