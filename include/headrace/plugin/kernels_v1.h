/* SPDX-License-Identifier: Apache-2.0
 *
 * The device code of Headrace: one C table that `libheadrace_kernels.so` fills in.
 *
 * The library holds compiled images for several kinds of GPU and knows how its kernels are launched. It links
 * no CUDA library: the host hands over the functions of the driver that it has loaded itself. The first part
 * of this file is read by device code too: the structs named move_* are arguments of kernels, byte for byte.
 *
 * Rules that hold for every entry
 *   sizes      structs with struct_size are only ever appended to; whoever makes one sets it. The others are
 *              frozen
 *   context    the GPU's context is current on the calling thread, the one that `open` was called in
 *   errors     an entry that returns int32_t answers the driver's number (CUresult, 0: it worked)
 *   threads    launches may come from any thread, several at once; open and close of one set not beside them
 *   addresses  every address is one that the GPU can use: its own memory, a peer's that is mapped, host
 *              memory that is mapped. The kernels check none
 *   unload     it is never unloaded
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

/* Of a list of pages of one length. Page i begins at
 *   (base_of ? bases[base_of[i]] : base) + (indices ? indices[i] : i) * stride. Frozen. */
typedef struct headrace_move_side_v1 {
  uint64_t base;
  uint64_t stride;
  uint64_t indices; /* address of uint32_t[count]; 0: page i is number i */
  uint64_t bases;   /* address of uint64_t[]: memories that pages lie in, of several peers for example */
  uint64_t base_of; /* address of uint32_t[count]; 0: all pages count from `base` */
} headrace_move_side_v1;

/* What launches with one state share, in device memory, zeros at first. Launches that overlap need a state
 * each. Frozen. */
typedef struct headrace_move_state_v1 {
  uint32_t arrived; /* blocks of the running launch that are done; 0 between launches */
  uint32_t reserved;
  uint64_t launches; /* told by count: those with `value` 0 */
} headrace_move_state_v1;

/* How the end of a move is told: `value` is stored to `word` when every byte of it can be seen by host and
 * GPUs. A reader that has seen it, with acquire, sees the bytes. Frozen. */
typedef struct headrace_move_done_v1 {
  uint64_t word; /* address of a uint64_t, in mapped host memory for example; 0: nothing is told, the stream's
                    order suffices */
  uint64_t value; /* 0: a count of the launches with this state that tell 0, this one included */
  uint64_t state; /* address of a headrace_move_state_v1; 0 only with word 0, or value not 0 and one block
                     (move_few) */
} headrace_move_done_v1;

/* What the numbers of pages are held to that a device may write between launches, in device memory. Frozen.
 */
typedef struct headrace_move_bounds_v1 {
  uint64_t source_pages; /* numbers of the source are below this, */
  uint64_t target_pages; /* those of the target below that */
  uint32_t count; /* pages of the next launch; of more than the arguments' `count` the first are moved */
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
  uint32_t most_multiprocessors; /* of the GPU that it may occupy; 0: all */
  uint32_t flags;                /* HEADRACE_MOVE_BASES_ALIGNED or 0 */
  uint64_t bounds;  /* address of a headrace_move_bounds_v1; 0: none, the host has checked. Else both sides
                       have  `indices`, and a page with a number out of bounds is passed over */
  uint64_t refused; /* with bounds: address of a uint64_t in mapped host memory, to which 2 * page + 1 is
                       stored for one of the pages whose source's number was out of bounds, 2 * page + 2 if
                       the target's was */
} headrace_move_pages_v1;
#define HEADRACE_MOVE_BASES_ALIGNED \
  1u /* all of `bases`, which the host may not be able to read, are multiples of 16 */

/* Pages that consist of runs: counts[0] x ... x counts[dimensions - 1] of them, and the run with the numbers
 * n[0], n[1], ... begins n[0] * strides[0] + n[1] * strides[1] + ... bytes behind its page's begin on that
 * side. */
typedef struct headrace_move_grids_v1 {
  size_t struct_size;
  headrace_move_pages_v1
      pages;           /* page_bytes: of all runs of a page together. struct_size is filled in, too */
  uint32_t dimensions; /* 1 to HEADRACE_MOVE_GRID_MOST */
  uint32_t reserved;
  uint64_t run_bytes;                       /* any number > 0, any alignment */
  uint64_t counts[HEADRACE_MOVE_GRID_MOST]; /* the last dimension is the fastest; pages.count * all counts <
                                               2^31 */
  uint64_t source_strides[HEADRACE_MOVE_GRID_MOST];
  uint64_t target_strides[HEADRACE_MOVE_GRID_MOST];
} headrace_move_grids_v1;

/* Parts of any length: part i is lengths[i] bytes from source_base + sources[i] to target_base + targets[i].
 * A part is moved by one warp: cut what is long. */
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

/* A few parts that travel inside the launch, for the least time from post to done: one block moves them all.
 */
typedef struct headrace_move_few_v1 {
  size_t struct_size;
  uint64_t sources[HEADRACE_MOVE_FEW_MOST];
  uint64_t targets[HEADRACE_MOVE_FEW_MOST];
  uint64_t lengths[HEADRACE_MOVE_FEW_MOST];
  uint64_t count; /* at most HEADRACE_MOVE_FEW_MOST */
  headrace_move_done_v1 done;
} headrace_move_few_v1;

/* ------------------------------------------------------------------ a kernel that stays */

/* A job for the courier. Jobs are numbered from 1 on, job n lies in slot n % HEADRACE_COURIER_SLOTS of a ring
 * in mapped host memory. Word 0 is the number of its parts, 0: leave; part i is words 1 + 3 * i, its source,
 * 2 + 3 * i, its target, and 3 + 3 * i, its bytes. Each word bears the job's number in its 16 highest bits,
 * so addresses have 48 bits: a job is there once its first HEADRACE_COURIER_HEAD_WORDS words are, whatever
 * order they come in. Whoever writes a job writes these and all words of its parts, word 0 last and with
 * release: words behind the first ones are read after word 0 has been seen. A slot begins at a multiple of
 * 256 bytes. Frozen. */
typedef struct headrace_courier_job_v1 {
  uint64_t words[HEADRACE_COURIER_WORDS];
} headrace_courier_job_v1;
#define HEADRACE_COURIER_NUMBER_SHIFT 48
#define HEADRACE_COURIER_WORD(number, value) ((uint64_t)(number) << HEADRACE_COURIER_NUMBER_SHIFT | (value))

/* What the courier tells, in mapped host memory. Frozen. */
typedef struct headrace_courier_told_v1 {
  uint64_t finished; /* the last job that has ended; all before it have. A reader that has seen it, with
                        acquire, sees the bytes of them all */
  uint64_t left;     /* the launch that was the last to leave: it looks at no job any more */
} headrace_courier_told_v1;

/* One launch of the courier. */
typedef struct headrace_courier_v1 {
  size_t struct_size;
  uint64_t jobs; /* address of a headrace_courier_job_v1[HEADRACE_COURIER_SLOTS] */
  uint64_t told; /* address of a headrace_courier_told_v1 */
  uint64_t
      first; /* the job that it begins with: the one after told.finished, for the launch before has left */
  uint64_t launch;  /* told when it leaves; not told before */
  uint64_t idle_ns; /* it leaves if no job comes for so long, */
  uint64_t
      stay_ns; /* and before the next job once it has stayed so long; for the first it looks in any case */
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

/* The driver's functions that the library calls; arguments as in the driver. */
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
  const headrace_kernel_image_v1* image;    /* one of the table's */
  uint32_t multiprocessors;                 /* that the GPU has */
  uint32_t reserved;
  const char* failed; /* out, on failure: what did not work, static text: "load image", "find move_pages" */
} headrace_kernels_open_v1;

typedef struct headrace_kernels_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_KERNELS_ABI_MAJOR */
  uint32_t abi_minor;
  const char* version; /* of Headrace */
  const headrace_kernel_image_v1* images;
  uint64_t image_count;

  /* Loads an image into the current context, all of its kernels at once: one that is loaded at its first
   * launch would wait for kernels that run. */
  int32_t (*open)(headrace_kernels_open_v1* args, void** kernels);
  /* Unloads it. No launch of it is running. */
  int32_t (*close)(void* kernels);

  /* Each queues one launch on `stream` and returns. Of count 0 it queues a launch that tells the end alone.
   */
  int32_t (*move_pages)(void* kernels, const headrace_move_pages_v1* args, void* stream);
  int32_t (*move_parts)(void* kernels, const headrace_move_parts_v1* args, void* stream);
  int32_t (*move_few)(void* kernels, const headrace_move_few_v1* args, void* stream);
  /* Since 1.2. */
  int32_t (*move_grids)(void* kernels, const headrace_move_grids_v1* args, void* stream);
  /* Since 1.3. The launch occupies one multiprocessor until the courier leaves. */
  int32_t (*run_courier)(void* kernels, const headrace_courier_v1* args, void* stream);
} headrace_kernels_v1;

/* The struct_size of this version, the least that a host accepts. */
#define HEADRACE_KERNELS_V1_SIZE \
  (offsetof(headrace_kernels_v1, run_courier) + sizeof(((headrace_kernels_v1*)0)->run_courier))

/* The one symbol it exports: returns its table, which lives as long as the process. */
typedef const headrace_kernels_v1* (*headrace_kernels_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
