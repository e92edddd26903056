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

#ifdef __cplusplus
}
#endif
#endif
