/* SPDX-License-Identifier: Apache-2.0
 *
 * What the headers of the C API share: errors, bytes, names of codes.
 *
 * Rules of every header in this folder:
 *
 * - Handles are opaque. Each is freed once, by the function that its maker names. NULL may be freed.
 * - Errors: a function that can fail returns a code (headrace_code_name), 0 when it worked. Its last argument
 *   is `headrace_error** error`. NULL: the caller wants the code alone, and nothing is allocated. Else *error
 *   becomes NULL, or an error that the caller frees.
 * - Structs begin with struct_size, which the caller sets to sizeof, also in structs that the function fills
 *   in. Fields are only ever appended. A struct without struct_size is frozen. The structs of an array have
 *   one struct_size.
 * - Text is UTF-8 with a zero at its end. Text in an argument is copied. Returned text lives as long as the
 *   handle that it came from, unless a sentence says less.
 * - Time: timeout_ns counts nanoseconds from the call; negative: no limit.
 */
#ifndef HEADRACE_C_TYPES_H
#define HEADRACE_C_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_C_API __attribute__((visibility("default")))

/* The name of a code: "invalid_argument" for 2. include/headrace/result.hpp says what a caller can do at
 * each. Static text. */
HEADRACE_C_API const char* headrace_code_name(int32_t code);

/* A failure.
 *   threads  any, at once */
typedef struct headrace_error headrace_error;
#define HEADRACE_NO_SUCH_PAGE UINT64_MAX
HEADRACE_C_API int32_t headrace_error_code(const headrace_error* error);
/* What failed, with its values, and what to do. */
HEADRACE_C_API const char* headrace_error_message(const headrace_error* error);
/* The index of the page that it is about, or HEADRACE_NO_SUCH_PAGE. */
HEADRACE_C_API uint64_t headrace_error_page(const headrace_error* error);
HEADRACE_C_API void headrace_error_free(headrace_error* error);

/* Bytes that a function returned; behind them is a zero.
 *   threads  any, at once */
typedef struct headrace_bytes headrace_bytes;
HEADRACE_C_API const char* headrace_bytes_data(const headrace_bytes* bytes);
HEADRACE_C_API uint64_t headrace_bytes_size(const headrace_bytes* bytes);
/* Replaces bytes, for a function of the caller that gives some to the library: 0, invalid_argument (NULL) or
 * exhausted. */
HEADRACE_C_API int32_t headrace_bytes_assign(headrace_bytes* bytes, const void* data, uint64_t size);
HEADRACE_C_API void headrace_bytes_free(headrace_bytes* bytes);

#ifdef __cplusplus
}
#endif
#endif
