/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the pages of a list lie: what agents, backends and kernels pass to one another.
 */
#ifndef HEADRACE_PLUGIN_COLUMNS_V1_H
#define HEADRACE_PLUGIN_COLUMNS_V1_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where pages lie, as arrays. For i < count, with k = indices ? indices[i] : i, page i is in region number
 * region_of ? region_of[k] : 0. It begins at byte
 *   offsets ? offsets[k] : base_offset + k * stride_bytes
 * modulo 2^64 (pages may go backward), and its length in bytes is
 *   lengths ? lengths[k] : page_bytes
 * Frozen. */
typedef struct headrace_columns_v1 {
  const uint32_t* region_of;
  const uint64_t* offsets;
  const uint64_t* lengths;
  const uint32_t* indices;
  uint64_t base_offset;
  uint64_t stride_bytes;
  uint64_t page_bytes;
} headrace_columns_v1;

#ifdef __cplusplus
}
#endif
#endif
