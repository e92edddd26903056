/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime of models: one C table that the shared object linking a framework fills in.
 *
 * `libheadrace_torch.so` links libtorch and exports `headrace_model_runtime_v1_table`. The host does
 * everything that needs no libtorch: it reads the package, checks inputs, unpacks, and pools runners.
 *
 * Rules for every entry
 *   sizes     every struct begins with struct_size, except tensor, which is frozen. The side that makes a
 *             struct sets struct_size. Fields are only ever appended: read and write a field only if
 *             struct_size covers it
 *   borders   no C++ type, exception or allocator crosses. The side that made memory frees it. A pointer
 *             argument is valid during the call unless its sentence says longer
 *   errors    an entry that returns int32_t returns a code of headrace::Code (0: it worked). On failure it
 *             writes a sentence into `error`, truncated at its capacity: the framework's words, without a
 *             backtrace
 *   threads   entries without a model may be called from any thread, several at once, except that the host
 *             opens one model at a time. The host never runs two entries on one model at once, but it runs
 *             entries on different models at once
 *   unload    the library is never unloaded
 */
#ifndef HEADRACE_PLUGIN_MODEL_RUNTIME_V1_H
#define HEADRACE_PLUGIN_MODEL_RUNTIME_V1_H

#include <headrace/plugin/dtype_v1.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_MODEL_RUNTIME_ABI_MAJOR 1u
#define HEADRACE_MODEL_RUNTIME_ABI_MINOR 0u
#define HEADRACE_MODEL_RUNTIME_SYMBOL "headrace_model_runtime_v1_table"
#define HEADRACE_MODEL_MOST_DIMENSIONS 8

/* As a stream: the framework's current stream on this thread for the device. NULL is the device's default
 * stream. */
#define HEADRACE_MODEL_CURRENT_STREAM ((void*)~(uintptr_t)0)

typedef enum headrace_device_kind_v1 {
  HEADRACE_CPU = 0,
  HEADRACE_CUDA = 1 /* also AMD's GPUs */
} headrace_device_kind_v1;

/* A tensor. Frozen. */
typedef struct headrace_tensor_v1 {
  const void* data;
  void* handle;         /* of outputs and allocations: for `release`; else NULL */
  int32_t dtype;        /* headrace_dtype_v1 */
  int32_t device_kind;  /* headrace_device_kind_v1 */
  int32_t device_index; /* cpu: 0 */
  uint32_t rank;
  int64_t shape[HEADRACE_MODEL_MOST_DIMENSIONS];
  int64_t strides[HEADRACE_MODEL_MOST_DIMENSIONS]; /* in elements, always set */
} headrace_tensor_v1;

/* Where an entry writes text: at most `capacity` bytes, without a terminating zero. The entry sets
 * `length`. */
typedef struct headrace_model_text_v1 {
  size_t struct_size;
  char* data;
  size_t capacity;
  size_t length;
} headrace_model_text_v1;

typedef struct headrace_runtime_info_v1 {
  size_t struct_size;
  const char* built_for;         /* version of the framework that it was compiled against: "2.13.0+cpu" */
  const char* built_accelerator; /* "cpu", "cuda", "rocm" */
  const char* found;             /* version of the framework that is loaded */
  const char* found_accelerator;
  const char* cpu_capability; /* instructions that the framework's own kernels use: "AVX512" */
  int32_t device_count;       /* GPUs that the framework sees */
} headrace_runtime_info_v1;

typedef struct headrace_device_info_v1 {
  size_t struct_size;
  char name[128];
  char compute_capability[32]; /* "90"; AMD: "gfx942" */
  uint64_t memory_bytes;
  uint64_t held_bytes; /* what the framework holds on the GPU now; then the most that it held */
  uint64_t held_peak_bytes;
  uint64_t used_bytes; /* what all processes together use on it; 0: unknown */
} headrace_device_info_v1;

typedef struct headrace_model_open_v1 {
  size_t struct_size;
  const char* path; /* folder of an unpacked package */
  const char* model_name;
  int32_t device_kind;
  int32_t device_index;
  /* The file that the folder was unpacked from, for frameworks that cannot load a folder; NULL: none. */
  const char* archive;
} headrace_model_open_v1;

/* Receives one constant. `name` and `tensor` are valid during the call. */
typedef void (*headrace_constant_v1)(void* context, const char* name, const headrace_tensor_v1* tensor);

typedef struct headrace_check_v1 {
  size_t struct_size;
  char name[48];    /* "matmul bfloat16" */
  char detail[256]; /* what was done and the size of the error, or why it failed */
  int32_t passed;
  int32_t reserved;
  double milliseconds;
} headrace_check_v1;

typedef struct headrace_model_runtime_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_MODEL_RUNTIME_ABI_MAJOR */
  uint32_t abi_minor;

  /* Fills in what the runtime is. The texts live as long as the process. */
  void (*info)(headrace_runtime_info_v1* info);
  /* Fills in what is known of a GPU. */
  int32_t (*device_info)(int32_t device_index, headrace_device_info_v1* info, headrace_model_text_v1* error);
  /* Sets the number of threads inside one operation, for all threads of the process. */
  void (*set_threads)(int32_t count);

  /* Loads a model for one caller at a time. The host has checked that this machine can run its code. */
  int32_t (*open)(const headrace_model_open_v1* args, void** model, headrace_model_text_v1* error);
  /* Frees a model. Outputs that have not been released stay valid. */
  void (*close)(void* model);
  /* Returns the layout of Python's arguments: two JSON texts, for inputs and outputs. */
  int32_t (*call_spec)(void* model, headrace_model_text_v1* in, headrace_model_text_v1* out,
                       headrace_model_text_v1* error);

  /* Sets input `index` for all following runs, until it is set again. The memory must exist during runs
   * only. The host has checked the tensor. NULL data with a shape that has elements: the input is omitted. */
  int32_t (*bind)(void* model, uint64_t index, const headrace_tensor_v1* tensor,
                  headrace_model_text_v1* error);
  /* Runs the model on its inputs, all of which have been bound. On a GPU it returns once the work is queued
   * on `stream` (a cudaStream_t of the model's device; ignored on a CPU). Outputs are row-major without
   * gaps, own their memory, and share memory neither with an input nor with a constant. The host releases
   * each one. `*count` is the capacity of `outputs`, and becomes the number of outputs. exhausted: the
   * capacity is too small, `*count` is what is needed, and the next call returns these outputs instead of a
   * new run. */
  int32_t (*run)(void* model, void* stream, headrace_tensor_v1* outputs, uint64_t* count,
                 headrace_model_text_v1* error);
  /* Frees an output or an allocation, from any thread. */
  void (*release)(void* handle);

  /* Calls `tell` for each constant, with the name that the module gave it. */
  int32_t (*constants)(void* model, headrace_constant_v1 tell, void* context, headrace_model_text_v1* error);
  /* Replaces the values of the named constants by copies of the tensors', and computes again what depends on
   * them. The host has checked names, types and shapes. Tensors may be in host memory even if the model's
   * device is a GPU. */
  int32_t (*replace_constants)(void* model, uint64_t count, const char* const* names,
                               const headrace_tensor_v1* tensors, headrace_model_text_v1* error);

  /* Allocates a tensor with the type, shape and device in `tensor`, and fills in data, strides and handle.
   * The elements are not set. */
  int32_t (*allocate)(headrace_tensor_v1* tensor, headrace_model_text_v1* error);
  /* Copies between tensors of the same type and shape on any devices. The copy follows the work of the
   * current streams, and is complete when the call returns. */
  int32_t (*copy)(const headrace_tensor_v1* to, const headrace_tensor_v1* from,
                  headrace_model_text_v1* error);
  /* Waits until a stream of a device has done its work. Returns at once for the CPU. */
  int32_t (*synchronize)(int32_t device_kind, int32_t device_index, void* stream,
                         headrace_model_text_v1* error);

  /* Runs check number `index` of a device: 0, 1, ... until it returns not_found. If a check fails, it
   * returns ok and says so in `check`. */
  int32_t (*check_device)(int32_t device_kind, int32_t device_index, uint64_t index,
                          headrace_check_v1* check);
} headrace_model_runtime_v1;

/* The struct_size of this version: the smallest that a host accepts. */
#define HEADRACE_MODEL_RUNTIME_V1_SIZE \
  (offsetof(headrace_model_runtime_v1, check_device) + sizeof(((headrace_model_runtime_v1*)0)->check_device))

/* The type of the one exported symbol: returns the table, which lives as long as the process. */
typedef const headrace_model_runtime_v1* (*headrace_model_runtime_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
