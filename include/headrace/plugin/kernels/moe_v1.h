/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel family moe: dispatch and combine of a mixture of experts, between ranks whose GPUs map one
 * another's windows. kernels/moe/README.md has what each kernel does, docs/decisions/0017-moe.md the
 * protocol. The rules are those of headrace/plugin/kernels_v1.h.
 *
 * Launches of one rank are in order: on one stream, or on streams that wait for one another. All ranks launch
 * the same operations in the same order. A captured launch may be replayed, with other tokens, experts and
 * counts in the same memory: GPU memory counts the operations.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_MOE_V1_H
#define HEADRACE_PLUGIN_KERNELS_MOE_V1_H

#include <headrace/plugin/dtype_v1.h>
#include <headrace/plugin/kernels_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_MOE_FAMILY "moe"
#define HEADRACE_MOE_FAMILY_VERSION 1u
#define HEADRACE_MOE_MOST_RANKS 64
#define HEADRACE_MOE_MOST_TOP_K 32
#define HEADRACE_MOE_MOST_EXPERTS 4096
#define HEADRACE_MOE_MOST_BLOCKS 128
#define HEADRACE_MOE_MOST_PAYLOADS 8
/* The most that ranks * (experts of the rank that has the most) may be. */
#define HEADRACE_MOE_MOST_PLACES 8192

/* How rows lie, as headrace::MoELayout. */
#define HEADRACE_MOE_BY_EXPERT 0u
#define HEADRACE_MOE_BATCHED 1u
#define HEADRACE_MOE_BY_RANK 2u

/* Halves of an operation. */
#define HEADRACE_MOE_SEND 1u
#define HEADRACE_MOE_RECEIVE 2u

/* How rows of bfloat16 become float8_e4m3fn, as headrace::MoECast. */
#define HEADRACE_MOE_CAST_FLOAT32 1u
#define HEADRACE_MOE_CAST_UE8M0 2u

/* How one of the replicas of an expert is chosen, as headrace::MoEChoice. */
#define HEADRACE_MOE_IN_TURN 0u
#define HEADRACE_MOE_LEAST_LOADED 1u
#define HEADRACE_MOE_BY_SHARE 2u

/* Why a status was written. A rank that does nothing more says so in each launch. */
#define HEADRACE_MOE_TIMED_OUT 1u
#define HEADRACE_MOE_ABORTED 2u      /* this rank does nothing more */
#define HEADRACE_MOE_LEFT_OUT 3u     /* the peer has left this rank out, which does nothing more */
#define HEADRACE_MOE_CORRUPT 4u      /* `seen` came where fewer than `expected` can be */
#define HEADRACE_MOE_EXHAUSTED 5u    /* `seen` rows came, `expected` is the row budget */
#define HEADRACE_MOE_WRONG_EXPERT 6u /* entry `expected` (token * top_k + k) names expert `seen` */
#define HEADRACE_MOE_WRONG_PLACE 7u  /* entry `expected` names expert `seen`, whose places cannot be */
#define HEADRACE_MOE_DISPATCH 0u
#define HEADRACE_MOE_COMBINE 1u
#define HEADRACE_MOE_ROOM 1u
#define HEADRACE_MOE_COUNTS 2u
#define HEADRACE_MOE_ROWS 3u
#define HEADRACE_MOE_SUMS 4u

/* In mapped host memory, 0 at first. A kernel writes it if `reason` is 0; the host sets `reason` to 0 when it
 * has read the rest. Frozen. */
typedef struct headrace_moe_status_v1 {
  uint64_t reason; /* HEADRACE_MOE_*; written last, with release */
  uint32_t waiter; /* ranks */
  uint32_t peer;
  uint32_t operation;
  uint32_t awaited;
  uint64_t number; /* of the operation, from 1 */
  uint64_t expected;
  uint64_t seen;
} headrace_moe_status_v1;

/* What is the same in all launches of a rank. All but `rank`, `output_rows`, `blocks` and what follows them
 * is the same on all ranks. Frozen. */
typedef struct headrace_moe_rank_v1 {
  uint32_t ranks; /* 1 to HEADRACE_MOE_MOST_RANKS */
  uint32_t rank;
  uint32_t group_size; /* so many ranks in a row hold the same tokens; it divides `ranks` */
  uint32_t top_k;
  uint32_t max_tokens;
  uint64_t row_bytes;                                 /* a multiple of 16 */
  uint64_t scale_bytes;                               /* a multiple of 4 */
  uint64_t payload_bytes[HEADRACE_MOE_MOST_PAYLOADS]; /* of further columns; 0: no such column */
  uint64_t hidden;         /* elements of a row of results; its bytes are a multiple of 16 */
  int32_t combine_dtype;   /* HEADRACE_FLOAT32, HEADRACE_FLOAT16 or HEADRACE_BFLOAT16 */
  uint32_t float8_combine; /* partial sums travel as float8_e4m3fn in blocks; hidden is a multiple of 16 */
  uint32_t layout;
  uint32_t row_alignment; /* by expert */
  uint32_t zero_padding;
  uint64_t output_rows;                               /* for which there is memory; batched: of each expert */
  uint32_t first_expert[HEADRACE_MOE_MOST_RANKS + 1]; /* of each rank; behind the last one the number of
                                                         experts */
  uint32_t sharing;                                   /* ranks of these that share this GPU, this one too */
  uint32_t blocks; /* of a launch: the budget of multiprocessors. 0: 32, or as many as there can be */
  uint32_t reserved;
  uint64_t windows[HEADRACE_MOE_MOST_RANKS]; /* of all ranks as this GPU sees them; window_bytes, all 0 at
                                                first */
  uint64_t state;     /* of this rank alone, on this GPU: state_bytes, all 0 at first */
  uint64_t active;    /* a uint64_t that the GPU reads in each launch: a bit for each rank that takes part. It
                         changes between launches only. 0: all ranks */
  uint64_t abort;     /* a uint64_t in mapped host memory; 0: none */
  uint64_t status;    /* headrace_moe_status_v1 */
  int64_t timeout_ns; /* of each wait; negative: none */
} headrace_moe_rank_v1;

/* Where the scales of rows lie. Addresses and strides are multiples of unit_bytes. */
typedef struct headrace_moe_scales_v1 {
  uint64_t address;
  int64_t stride;        /* from one row to the next */
  int64_t unit_stride;   /* from one part of a row to the next; unit_bytes: they lie side by side */
  int64_t expert_stride; /* of what comes, batched: from one expert to the next; 0: output_rows * stride */
  uint32_t unit_bytes;   /* of a part: 1, 2, 4 or 8 */
  uint32_t reserved;
} headrace_moe_scales_v1;

/* Rows of a payload, anywhere. */
typedef struct headrace_moe_payload_v1 {
  uint64_t address;
  int64_t stride;
} headrace_moe_payload_v1;

/* The places of each expert that tokens name, as headrace::MoEReplicas: tables in memory of the GPU, which
 * may hold other numbers in each launch. Places are experts of the rank's configuration. */
typedef struct headrace_moe_replicas_v1 {
  uint32_t experts; /* that tokens name, up to those of the configuration; 0: tokens name places */
  uint32_t choice;
  uint64_t first;  /* int32_t [experts + 1] */
  uint64_t places; /* int32_t [first[experts]] */
  uint64_t loads;  /* least loaded: int64_t [ranks]; 0: zeros */
  uint64_t until;  /* by share: int64_t [first[experts]] */
  uint64_t before; /* by share: int64_t [experts]; 0: zeros */
} headrace_moe_replicas_v1;

/* All addresses are of GPU memory. Rows and their strides are at multiples of 16 bytes.
 *   blocks   all blocks of all ranks on a GPU are on it at once: `most_blocks` says how many may be
 *   ends     as docs/decisions/0017-moe.md says under Failure: a rank that does not come is left out, and the
 *            launch does the rest
 *   errors   the driver's invalid value: an impossible shape, or memory that is not given */
typedef struct headrace_moe_dispatch_v1 {
  size_t struct_size;
  const headrace_moe_rank_v1* rank;
  uint32_t halves;        /* HEADRACE_MOE_SEND, HEADRACE_MOE_RECEIVE, or both */
  uint32_t experts_bytes; /* of a number of an expert: 4 or 8 */
  uint32_t cast; /* HEADRACE_MOE_CAST_*: rows have row_bytes numbers of bfloat16, and no scales; 0: none */
  uint32_t reserved;
  uint64_t routing;   /* routing_bytes, all 0 at first: what the dispatch learns */
  uint64_t tokens;    /* 0 to max_tokens */
  uint64_t tokens_at; /* an int32_t that the GPU reads: fewer tokens than that. 0: none */
  uint64_t rows;
  uint64_t row_stride;
  headrace_moe_scales_v1 scales;
  headrace_moe_payload_v1 payloads[HEADRACE_MOE_MOST_PAYLOADS];
  uint64_t experts; /* [tokens, top_k]: -1: none. 0: those of the routing's last dispatch */
  uint64_t weights; /* float [tokens, top_k]; 0: 1 each, without experts as before */
  headrace_moe_replicas_v1 replicas;
  /* Where it puts what comes; what is 0 is not written, but rows, scales and payloads must be
   * there. */
  uint64_t out_rows;
  headrace_moe_scales_v1 out_scales;
  uint64_t out_payloads[HEADRACE_MOE_MOST_PAYLOADS]; /* rows side by side */
  uint64_t out_counts;                               /* int32_t for each expert of this rank */
  uint64_t out_first_rows; /* int64_t for each expert of this rank, and the end; by rank: for each source */
  uint64_t out_experts;    /* by rank: int32_t [output_rows, top_k] */
  uint64_t out_weights;    /* by rank: float [output_rows, top_k] */
} headrace_moe_dispatch_v1;

/* Where results of the rows that came from a rank go in its window, in their order. */
typedef struct headrace_moe_window_rows_v1 {
  uint64_t rows; /* [count, hidden] of combine_dtype; 0: the rank is left out */
  int64_t count;
} headrace_moe_window_rows_v1;

/* For the next combine, by rank without float8_combine: waits until the ranks have taken what lies there. */
typedef struct headrace_moe_combine_memory_v1 {
  size_t struct_size;
  const headrace_moe_rank_v1* rank;
  uint64_t routing;  /* of a dispatch that has been received */
  uint64_t of_ranks; /* headrace_moe_window_rows_v1 [ranks], which the GPU writes */
} headrace_moe_combine_memory_v1;

typedef struct headrace_moe_combine_v1 {
  size_t struct_size;
  const headrace_moe_rank_v1* rank;
  uint32_t halves;
  uint32_t weighted; /* 0: the results are weighted already */
  uint64_t routing;  /* of a dispatch that has been received */
  uint64_t results;  /* of combine_dtype, in the order of the dispatch */
  uint64_t result_stride;
  uint64_t sums; /* [tokens, hidden] of combine_dtype */
  uint64_t sum_stride;
  uint64_t biases[2];  /* [tokens, hidden], side by side; 0: none */
  uint32_t accumulate; /* what `sums` holds is added last */
  uint32_t in_window;  /* the results are where combine_memory has said, and `results` is not read */
} headrace_moe_combine_v1;

typedef struct headrace_moe_v1 {
  headrace_kernel_family_v1 family;
  /* Bytes of a window, of the state and of a routing. 0: the shape is not possible. */
  uint64_t (*window_bytes)(const headrace_moe_rank_v1* rank);
  uint64_t (*state_bytes)(const headrace_moe_rank_v1* rank);
  uint64_t (*routing_bytes)(const headrace_moe_rank_v1* rank);
  /* The most blocks of a launch where `sharing` ranks share the GPU. */
  uint32_t (*most_blocks)(void* kernels, uint32_t sharing);
  int32_t (*dispatch)(void* kernels, const headrace_moe_dispatch_v1* args, void* stream);
  int32_t (*combine)(void* kernels, const headrace_moe_combine_v1* args, void* stream);
  int32_t (*combine_memory)(void* kernels, const headrace_moe_combine_memory_v1* args, void* stream);
} headrace_moe_v1;

#ifdef __cplusplus
}
#endif
#endif
