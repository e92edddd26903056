/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of models: open a compiled package, read its description, run it. include/headrace/model.hpp
 * explains each call; this header is its form in C. include/headrace/c/types.h has the rules.
 *
 * Threads: any threads may use a model at once; one thread at a time uses an outputs handle.
 */
#ifndef HEADRACE_C_MODEL_H
#define HEADRACE_C_MODEL_H

#include <headrace/c/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_C_MOST_DIMENSIONS 8

typedef struct headrace_model headrace_model;
typedef struct headrace_outputs headrace_outputs;

typedef struct headrace_model_options {
  size_t struct_size;
  const char* model_name; /* NULL: "model" */
  const char* device;     /* "cpu", "cuda", "cuda:1"; NULL: the device that the package was made for */
  uint64_t runners;       /* runs at the same time; 0: 1 */
  int32_t threads;        /* inside one operation of torch; 0: unchanged */
  int32_t reserved;
  const char* const* options; /* name, value, name, value, ..., NULL; or NULL */
} headrace_model_options;

/* Opens a package, a `.pt2` file or its unpacked folder. `options` may be NULL. Free with
 * headrace_model_close. */
HEADRACE_C_API int32_t headrace_model_open(const char* path, const headrace_model_options* options,
                                           headrace_model** model, headrace_error** error);
HEADRACE_C_API void headrace_model_close(headrace_model* model);

/* The description of a package as the JSON object that `headrace inspect` prints. Needs no torch. Free with
 * headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_model_inspect(const char* path, const char* model_name, headrace_bytes** json,
                                              headrace_error** error);

HEADRACE_C_API uint64_t headrace_model_input_count(const headrace_model* model);
HEADRACE_C_API uint64_t headrace_model_output_count(const headrace_model* model);
/* The name of input or output `index`; NULL if there is no such index. */
HEADRACE_C_API const char* headrace_model_input_name(const headrace_model* model, uint64_t index);
HEADRACE_C_API const char* headrace_model_output_name(const headrace_model* model, uint64_t index);
/* The specification of input `index`: "float32 [batch 1..64, 256]". */
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

/* Runs the model once on `count` inputs in the model's order. `*outputs` is NULL, or the outputs of an
 * earlier run, which are used again. Free with headrace_outputs_free, which is also allowed after the model
 * was closed. */
HEADRACE_C_API int32_t headrace_model_run(headrace_model* model, const headrace_tensor* inputs,
                                          uint64_t count, headrace_outputs** outputs, headrace_error** error);

typedef struct headrace_run_options {
  size_t struct_size;
  /* A stream of the model's GPU (CUstream or cudaStream_t; NULL: the default stream). Read if has_stream is
   * set. */
  void* stream;
  int32_t has_stream;  /* 0: torch's current stream on this thread */
  int32_t do_not_wait; /* 0: outputs are ready when the call returns; else in the order of the stream */
} headrace_run_options;
/* The same with a stream. `options` may be NULL. */
HEADRACE_C_API int32_t headrace_model_run_with(headrace_model* model, const headrace_tensor* inputs,
                                               uint64_t count, const headrace_run_options* options,
                                               headrace_outputs** outputs, headrace_error** error);
HEADRACE_C_API void headrace_outputs_free(headrace_outputs* outputs);
HEADRACE_C_API uint64_t headrace_outputs_count(const headrace_outputs* outputs);
/* Fills in output `index`. Its memory belongs to `outputs`. */
HEADRACE_C_API int32_t headrace_outputs_get(const headrace_outputs* outputs, uint64_t index,
                                            headrace_tensor* tensor, headrace_error** error);

/* Copies output `index` into `memory` of `size` bytes in host memory, row-major without gaps, and waits for
 * it. invalid_argument: `size` differs from the output's size in bytes. */
HEADRACE_C_API int32_t headrace_outputs_copy(headrace_model* model, const headrace_outputs* outputs,
                                             uint64_t index, void* memory, uint64_t size,
                                             headrace_error** error);

/* The weights and buffers of the package as a JSON array of objects: name, dtype, shape. Free with
 * headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_model_constants(const headrace_model* model, headrace_bytes** json,
                                                headrace_error** error);
/* Replaces the value of a constant. */
HEADRACE_C_API int32_t headrace_model_replace_constant(headrace_model* model, const char* name,
                                                       const headrace_tensor* value, headrace_error** error);

typedef struct headrace_model_timing {
  size_t struct_size;
  uint64_t load_ns;
  uint64_t unpack_ns;
  uint64_t runs;
  double run_mean_ns;
  double run_p50_ns; /* from buckets of powers of two: wrong by a factor of two at most */
  double run_p99_ns;
} headrace_model_timing;
HEADRACE_C_API int32_t headrace_model_get_timing(const headrace_model* model, headrace_model_timing* timing,
                                                 headrace_error** error);

typedef struct headrace_model_memory {
  size_t struct_size;
  uint64_t package_bytes;
  uint64_t constant_bytes;
  uint64_t process_bytes;
  uint64_t device_bytes; /* what torch holds on the model's GPU in this process; then the most that it held */
  uint64_t device_peak_bytes;
  uint64_t device_used_bytes; /* what all processes together use on it */
} headrace_model_memory;
HEADRACE_C_API int32_t headrace_model_get_memory(const headrace_model* model, headrace_model_memory* memory,
                                                 headrace_error** error);

/* Tries torch on a device: allocates, draws random numbers, multiplies matrices. *json: an array of objects:
 * name, passed, detail, milliseconds. A device that fails a check is no error of the call. `options`: name,
 * value, ..., NULL; or NULL. Free with headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_check_device(const char* device, const char* const* options,
                                             headrace_bytes** json, headrace_error** error);

#ifdef __cplusplus
}
#endif
#endif
