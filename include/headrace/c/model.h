/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of models: open a compiled package, say what it takes, run it. include/headrace/model.hpp says
 * what each call means; here is how it looks from C.
 *
 * Rules
 *   handles  opaque; each is freed once by the function that its maker names. NULL may be freed
 *   errors   a function that can fail returns a code, 0 when it worked; headrace_last_error() then has the
 * sentence. The values are those of headrace::Code structs  begin with struct_size, which the caller sets to
 * sizeof; fields are only ever appended text     UTF-8 with a zero at its end; what is returned lives as long
 * as the handle that it came from threads  a model may be used by any threads at once, an outputs handle by
 * one at a time; errors are a thread's own
 */
#ifndef HEADRACE_C_MODEL_H
#define HEADRACE_C_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_C_API __attribute__((visibility("default")))
#define HEADRACE_C_MOST_DIMENSIONS 8

typedef struct headrace_model headrace_model;
typedef struct headrace_outputs headrace_outputs;

/* What went wrong in the last call of this thread that failed; "" before any. Valid until the next call that
 * fails. */
HEADRACE_C_API const char* headrace_last_error(void);
/* "invalid_argument" of 2. */
HEADRACE_C_API const char* headrace_code_name(int32_t code);

typedef struct headrace_model_options {
  size_t struct_size;
  const char* model_name; /* NULL: "model" */
  const char* device;     /* "cpu", "cuda", "cuda:1"; NULL: what the package was made for */
  uint64_t runners;       /* runs at once; 0: 1 */
  int32_t threads;        /* inside one operation of torch; 0: as it is */
  int32_t reserved;
  const char* const* options; /* name, value, name, value, ..., NULL; or NULL */
} headrace_model_options;

/* Opens a package, `.pt2` or unpacked. `options` may be NULL. Free it with headrace_model_close. */
HEADRACE_C_API int32_t headrace_model_open(const char* path, const headrace_model_options* options,
                                           headrace_model** model);
HEADRACE_C_API void headrace_model_close(headrace_model* model);

/* All that the package says, as the JSON object that `headrace inspect` prints. Needs no torch. Free it with
 * headrace_text_free. */
HEADRACE_C_API int32_t headrace_model_inspect(const char* path, const char* model_name, char** json);
HEADRACE_C_API void headrace_text_free(char* text);

HEADRACE_C_API uint64_t headrace_model_input_count(const headrace_model* model);
HEADRACE_C_API uint64_t headrace_model_output_count(const headrace_model* model);
/* NULL beyond the last. */
HEADRACE_C_API const char* headrace_model_input_name(const headrace_model* model, uint64_t index);
HEADRACE_C_API const char* headrace_model_output_name(const headrace_model* model, uint64_t index);
/* "float32 [batch 1..64, 256]". */
HEADRACE_C_API const char* headrace_model_input_spec(const headrace_model* model, uint64_t index);

typedef struct headrace_tensor {
  size_t struct_size;
  const void* data;
  const char* dtype;  /* "float32"; of outputs static text */
  const char* device; /* "cpu", "cuda:1"; NULL: "cpu" */
  uint32_t rank;
  uint32_t has_strides; /* 0: row-major without gaps */
  int64_t shape[HEADRACE_C_MOST_DIMENSIONS];
  int64_t strides[HEADRACE_C_MOST_DIMENSIONS]; /* in elements */
} headrace_tensor;

/* Runs once on `count` inputs in the model's order. `*outputs` is NULL, or outputs of an earlier run that are
 * used again. Free them with headrace_outputs_free, also after the model was closed. */
HEADRACE_C_API int32_t headrace_model_run(headrace_model* model, const headrace_tensor* inputs,
                                          uint64_t count, headrace_outputs** outputs);

typedef struct headrace_run_options {
  size_t struct_size;
  void* stream; /* of the model's GPU, a CUstream or cudaStream_t; NULL: the default stream. Looked at if
                   has_stream */
  int32_t has_stream;  /* 0: the stream that torch has current on this thread */
  int32_t do_not_wait; /* 0: the outputs are ready when the call returns; else in the order of the stream */
} headrace_run_options;
/* The same on a stream. `options` may be NULL. */
HEADRACE_C_API int32_t headrace_model_run_with(headrace_model* model, const headrace_tensor* inputs,
                                               uint64_t count, const headrace_run_options* options,
                                               headrace_outputs** outputs);
HEADRACE_C_API void headrace_outputs_free(headrace_outputs* outputs);
HEADRACE_C_API uint64_t headrace_outputs_count(const headrace_outputs* outputs);
/* Fills in output `index`; its memory stays the outputs'. */
HEADRACE_C_API int32_t headrace_outputs_get(const headrace_outputs* outputs, uint64_t index,
                                            headrace_tensor* tensor);

/* Puts another value in the place of a constant. */
HEADRACE_C_API int32_t headrace_model_replace_constant(headrace_model* model, const char* name,
                                                       const headrace_tensor* value);

typedef struct headrace_model_timing {
  size_t struct_size;
  uint64_t load_ns;
  uint64_t unpack_ns;
  uint64_t runs;
  double run_mean_ns;
  double run_p50_ns; /* of buckets of powers of two: within a factor of two */
  double run_p99_ns;
} headrace_model_timing;
HEADRACE_C_API int32_t headrace_model_get_timing(const headrace_model* model, headrace_model_timing* timing);

typedef struct headrace_model_memory {
  size_t struct_size;
  uint64_t package_bytes;
  uint64_t constant_bytes;
  uint64_t process_bytes;
  uint64_t device_bytes; /* of the model's GPU: what torch holds in this process, and the most that it held */
  uint64_t device_peak_bytes;
  uint64_t device_used_bytes; /* what all processes use of it together */
} headrace_model_memory;
HEADRACE_C_API int32_t headrace_model_get_memory(const headrace_model* model, headrace_model_memory* memory);

#ifdef __cplusplus
}
#endif
#endif
