/* SPDX-License-Identifier: Apache-2.0
 *
 * What a fabric shares with kernels: headrace/device/fabric.cuh has what they do with it.
 */
#ifndef HEADRACE_DEVICE_FABRIC_V1_H
#define HEADRACE_DEVICE_FABRIC_V1_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In the word of a flag: the expectation was removed, or the fabric closed. Below it: the full rounds. */
#define HEADRACE_FABRIC_ENDED (UINT64_C(1) << 62)

/* A command of a queue: 16 bytes. Frozen. */
typedef struct headrace_fabric_command_v1 {
  uint64_t units; /* the first one, and how many << 32 */
  uint64_t write; /* the turn of its slot in the ring, from 1 on, and the number of the write << 32; it is
                     stored last */
} headrace_fabric_command_v1;

/* What the host tells kernels. Frozen. */
typedef struct headrace_fabric_told_v1 {
  uint64_t ended;  /* commands: this many have ended, the first ones */
  uint64_t failed; /* of them, with an error */
  uint64_t closed; /* not 0: no command is carried any more */
} headrace_fabric_told_v1;

enum { HEADRACE_FABRIC_FULL = 1, HEADRACE_FABRIC_NOT_ENDED = 2 };

/* What the first kernel that was late leaves: why (0: none was), the command, and `ended` as it saw it.
 * Frozen. */
typedef struct headrace_fabric_status_v1 {
  uint64_t reason;
  uint64_t command;
  uint64_t ended;
} headrace_fabric_status_v1;

/* A queue as kernels get it: FabricCommandQueue::address, in memory of the GPU. Frozen. */
typedef struct headrace_fabric_queue_v1 {
  uint64_t commands;  /* headrace_fabric_command_v1[capacity] in host memory */
  uint64_t told;      /* headrace_fabric_told_v1, likewise */
  uint64_t status;    /* headrace_fabric_status_v1, likewise */
  int64_t timeout_ns; /* of a kernel that waits; negative: none */
  uint32_t capacity;  /* commands that have not ended */
  uint32_t reserved;  /* 0 */
  /* Kernels change what follows. */
  uint64_t posted;     /* commands */
  uint64_t seen_ended; /* `ended` as kernels saw it: a look at `told` costs a read over PCIe */
  uint64_t was_late;   /* not 0: the status is taken */
} headrace_fabric_queue_v1;

#ifdef __cplusplus
}
#endif
#endif
