/* SPDX-License-Identifier: Apache-2.0
 *
 * The types of elements: what models and collectives pass across a C border.
 */
#ifndef HEADRACE_PLUGIN_DTYPE_V1_H
#define HEADRACE_PLUGIN_DTYPE_V1_H

#ifdef __cplusplus
extern "C" {
#endif

/* The values of headrace::DType. They never change. */
typedef enum headrace_dtype_v1 {
  HEADRACE_FLOAT32 = 0,
  HEADRACE_FLOAT64 = 1,
  HEADRACE_FLOAT16 = 2,
  HEADRACE_BFLOAT16 = 3,
  HEADRACE_INT8 = 4,
  HEADRACE_INT16 = 5,
  HEADRACE_INT32 = 6,
  HEADRACE_INT64 = 7,
  HEADRACE_UINT8 = 8,
  HEADRACE_UINT16 = 9,
  HEADRACE_UINT32 = 10,
  HEADRACE_UINT64 = 11,
  HEADRACE_BOOLEAN = 12, /* one byte each */
  HEADRACE_COMPLEX64 = 13,
  HEADRACE_COMPLEX128 = 14,
  HEADRACE_FLOAT8_E4M3FN = 15,
  HEADRACE_FLOAT8_E5M2 = 16
} headrace_dtype_v1;

#ifdef __cplusplus
}
#endif
#endif
