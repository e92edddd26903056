/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel family courier: a kernel that stays on a GPU and moves small jobs without a launch for each. The
 * rules are those of headrace/plugin/kernels_v1.h.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_COURIER_V1_H
#define HEADRACE_PLUGIN_KERNELS_COURIER_V1_H

#include <headrace/plugin/kernels_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_COURIER_FAMILY "courier"
#define HEADRACE_COURIER_FAMILY_VERSION 1u
#define HEADRACE_COURIER_SLOTS 64
#define HEADRACE_COURIER_WORDS 32
#define HEADRACE_COURIER_HEAD_WORDS 4
#define HEADRACE_COURIER_RUNS_MOST 10

/* A job for the courier: the runs of one small request. Jobs are numbered from 1; job n is in slot
 * n % HEADRACE_COURIER_SLOTS of a ring in mapped host memory. Word 0 is the number of runs; 0: leave. Run i
 * is word 1 + 3 * i, its source, word 2 + 3 * i, its target, and word 3 + 3 * i, its bytes. Each word
 * carries the job's number in its 16 highest bits, so addresses have 48 bits. A job is complete once its
 * first HEADRACE_COURIER_HEAD_WORDS words carry its number, in any order of arrival. The writer writes these
 * words and all words of the runs, word 0 last and with release: later words are read after word 0 has been
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

/* One launch of the courier. */
typedef struct headrace_courier_launch_v1 {
  size_t struct_size;
  uint64_t jobs;    /* address of a headrace_courier_job_v1[HEADRACE_COURIER_SLOTS] */
  uint64_t told;    /* address of a headrace_courier_told_v1 */
  uint64_t first;   /* its first job: the one after told.finished, since the launch before has left */
  uint64_t launch;  /* number that it stores to told.left when it leaves; not stored before */
  uint64_t idle_ns; /* it leaves if no job comes for this time, */
  uint64_t stay_ns; /* or before the next job once it has stayed this time; it always looks for a first one */
} headrace_courier_launch_v1;

typedef struct headrace_courier_v1 {
  headrace_kernel_family_v1 family;
  /* The launch occupies one multiprocessor until the courier leaves. */
  int32_t (*run)(void* kernels, const headrace_courier_launch_v1* args, void* stream);
} headrace_courier_v1;

#ifdef __cplusplus
}
#endif
#endif
