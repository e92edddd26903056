/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel family collectives: operations of ranks whose GPUs map one another's memory. Each rank has a
 * box, GPU memory that all ranks write to; one launch on each rank is one operation.
 * kernels/collectives/README.md has the protocols. The rules are those of headrace/plugin/kernels_v1.h.
 *
 * Launches of one rank are in order: on one stream, or on streams that wait for one another. All ranks launch
 * the same operations in the same order. A captured launch may be replayed: GPU memory counts the operations.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_COLLECTIVES_V1_H
#define HEADRACE_PLUGIN_KERNELS_COLLECTIVES_V1_H

#include <headrace/plugin/comm_v1.h>
#include <headrace/plugin/kernels_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_COLLECTIVES_FAMILY "collectives"
#define HEADRACE_COLLECTIVES_FAMILY_VERSION 3u
#define HEADRACE_COLLECTIVES_MOST_RANKS 16
#define HEADRACE_COLLECTIVES_MOST_CHANNELS 30  /* of one rank */
#define HEADRACE_COLLECTIVES_MOST_MESSAGES 128 /* of one launch */

/* The shape of a box, the same on all ranks. 0 stands for the default. A box has less than 4 GiB. Frozen. */
typedef struct headrace_collectives_box_v1 {
  uint32_t ranks;        /* 1 to HEADRACE_COLLECTIVES_MOST_RANKS */
  uint32_t packed_bytes; /* of the longest part that travels as packets, a multiple of 16; default 256 KiB */
  uint32_t chunk_bytes;  /* of the chunks of longer parts, a multiple of 16; default 256 KiB over the ranks */
  uint32_t slots;        /* chunks that a box holds of each rank, two for each block; default 64 */
} headrace_collectives_box_v1;

/* Why a launch has ended early. */
#define HEADRACE_COLLECTIVES_ABORTED 1u
#define HEADRACE_COLLECTIVES_TIMED_OUT 2u
/* Splits of DEVICE_ALL_TO_ALL_V_SINGLE that do not fit: negative or more than is left, and the two that a
 * rank has for itself. `peer` is for which rank, `seen` its value (of the output if they differ). */
#define HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT 3u
#define HEADRACE_COLLECTIVES_WRONG_OUTPUT_SPLIT 4u
#define HEADRACE_COLLECTIVES_OWN_SPLITS_DIFFER 5u
/* Another launch of this rank has begun and has not ended. */
#define HEADRACE_COLLECTIVES_OVERLAPS 6u
/* A message and the memory for it have different lengths. `seen` is that of the peer, in bytes. */
#define HEADRACE_COLLECTIVES_WRONG_LENGTH 7u
/* Bits beside the reason: in a message to the peer, or from it. Then `epoch` and `seen` count messages of
 * that channel. */
#define HEADRACE_COLLECTIVES_IN_SEND 0x100u
#define HEADRACE_COLLECTIVES_IN_RECV 0x200u

/* In mapped host memory, 0 at first. Written once, by the first thread that gives up. Frozen. */
typedef struct headrace_collectives_status_v1 {
  uint64_t reason; /* HEADRACE_COLLECTIVES_*; written last, with release. 0: no launch has ended early */
  uint32_t rank;   /* waited */
  uint32_t peer;   /* for this rank */
  uint64_t epoch;  /* in the operation of this number, from 1 */
  uint64_t seen;   /* the last operation that the peer has begun */
} headrace_collectives_status_v1;

/* Memory of a rank that the GPUs of all ranks map. Frozen. */
typedef struct headrace_collectives_memory_v1 {
  uint64_t address;
  uint64_t bytes;
  uint64_t at[HEADRACE_COLLECTIVES_MOST_RANKS]; /* where each rank's GPU sees it */
} headrace_collectives_memory_v1;

/* One operation on one rank. No rank ends it before all ranks have begun it.
 *   operations  of headrace_comm_operation_v1 all but SEND and RECV. Parts of one gather or scatter are equal
 *   memory      `call` has addresses of GPU memory, of any alignment. An input and an output are the same
 *               memory, or do not overlap
 *   order       sums are made in the order of the ranks: all ranks get the same bits, those of backend `host`
 *               except the bits of a NaN
 *   blocks      all blocks of all ranks on a GPU are on it at once: `most_blocks` says how many may be
 *   ends early  once the word at `abort` is not 0, or call->timeout_ns after its first wait (negative:
 *               never), or if splits in GPU memory do not fit. It reports that in `status` and leaves the
 *               rest of its outputs as they were. Later
 *               launches with this box end at once
 *   errors      the driver's invalid value: an impossible shape, call, type or number of blocks */
typedef struct headrace_collective_v1 {
  size_t struct_size;
  headrace_collectives_box_v1 box;
  uint64_t boxes[HEADRACE_COLLECTIVES_MOST_RANKS]; /* of all ranks as this GPU sees them. All 0 at first;
                                                      aligned to 16 */
  uint32_t rank;
  uint32_t sharing; /* ranks of these whose boxes are on this GPU, this one too; the same on all ranks */
  uint32_t blocks;  /* of the launch, the same on all ranks: the budget of multiprocessors. 0: 32, or as many
                       as there can be */
  uint32_t one_shot_bytes; /* of the longest all_reduce that travels as packets in one step, the same on all
                              ranks; longer ones take two. 0: 768 KiB over the other ranks */
  uint64_t abort;          /* a uint64_t in mapped host memory; 0: none */
  uint64_t status;         /* headrace_collectives_status_v1 */
  const headrace_comm_call_v1* call;
  /* Parts in this memory go without a copy, if those of all ranks can. All ranks give some, or no rank does.
   * May be NULL */
  const headrace_collectives_memory_v1* memories;
  uint64_t memory_count;
} headrace_collective_v1;

/* The copies behind one step of an operation that goes by copies. They do not overlap one another. */
typedef struct headrace_collectives_copies_v1 {
  size_t struct_size;
  uint32_t count;
  uint32_t is_last; /* no step follows; there are no copies */
  uint64_t sources[2 * HEADRACE_COLLECTIVES_MOST_RANKS];
  uint64_t targets[2 * HEADRACE_COLLECTIVES_MOST_RANKS];
  uint64_t bytes[2 * HEADRACE_COLLECTIVES_MOST_RANKS];
} headrace_collectives_copies_v1;

/* The way of messages from one rank to another. At either rank it has an end: a box of two ranks, of which 0
 * sends and 1 receives, all 0 at first, aligned to 16. Frozen. */
typedef struct headrace_collectives_channel_v1 {
  uint64_t own_end;
  uint64_t peer_end; /* as this GPU sees it */
  uint32_t peer;     /* the other rank, for the status */
  uint32_t receives; /* not 0: messages come to this rank */
  uint32_t first_message, message_count;
} headrace_collectives_channel_v1;

/* GPU memory of any alignment. Frozen. */
typedef struct headrace_collectives_message_v1 {
  uint64_t address;
  uint64_t bytes;
} headrace_collectives_message_v1;

/* Messages of one rank. Those of a channel go one after the other, and wait for none of another channel. A
 * send ends when the other rank has begun to receive. A launch ends when all of them have gone, early as one
 * of an operation does.
 *   blocks  all blocks of all channels are on the GPU at once, with those of other ranks on it
 *   errors  the driver's invalid value: an impossible shape, box or number */
typedef struct headrace_collectives_messages_v1 {
  size_t struct_size;
  headrace_collectives_box_v1 box; /* of each end, the same on all ranks */
  uint64_t own_box;       /* this rank's box of operations: it knows whether a launch has ended early */
  uint32_t rank;          /* for the status */
  uint32_t blocks;        /* of each channel, the same on all ranks; half of the slots at most */
  uint32_t channel_count; /* 1 to HEADRACE_COLLECTIVES_MOST_CHANNELS */
  uint32_t message_count; /* 1 to HEADRACE_COLLECTIVES_MOST_MESSAGES */
  const headrace_collectives_channel_v1* channels;
  const headrace_collectives_message_v1* messages;
  uint64_t abort;  /* as in an operation */
  uint64_t status; /* headrace_collectives_status_v1 */
  int64_t timeout_ns;
} headrace_collectives_messages_v1;

typedef struct headrace_collectives_v1 {
  headrace_kernel_family_v1 family;
  /* Bytes of a box; 0: the shape is not possible. */
  uint64_t (*box_bytes)(const headrace_collectives_box_v1* box);
  /* The most blocks of a launch where `sharing` ranks share the GPU; 0: they are too many. */
  uint32_t (*most_blocks)(void* kernels, const headrace_collectives_box_v1* box, uint32_t sharing);
  int32_t (*run)(void* kernels, const headrace_collective_v1* args, void* stream);

  /* ---- since version 2 */

  /* Bytes of the longest part of any rank, the same on all ranks, of an operation that can go by copies: its
   * parts are moved and not reduced, and all ranks know their lengths. 0: it cannot. */
  uint64_t (*copied_bytes)(const headrace_collective_v1* args);
  /* The same operation by copies that the caller queues, all ranks or none: launches step `step`, from 0, one
   * block of two warps, and says which copies follow it. After them, on the same stream, comes the next step.
   * Between the first and the last step no other launch of this rank begins. If a step ends early, so do the
   * later ones; the copies are queued all the same, and the outputs are undefined.
   *   errors  as run; invalid value also for a step that there is not */
  int32_t (*copy_step)(void* kernels, const headrace_collective_v1* args, uint32_t step,
                       headrace_collectives_copies_v1* copies, void* stream);

  /* ---- since version 3 */

  /* Queues messages on a stream.
   *   errors  as run */
  int32_t (*exchange_messages)(void* kernels, const headrace_collectives_messages_v1* args, void* stream);
} headrace_collectives_v1;

#ifdef __cplusplus
}
#endif
#endif
