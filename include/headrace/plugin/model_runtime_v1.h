/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs a model for Headrace: one C table that the shared object linking a framework fills in.
 *
 * `libheadrace_torch.so` links libtorch and exports `headrace_model_runtime_v1_table`. Everything that can be
 * known without libtorch (reading the package, checking inputs, unpacking, pooling) is done on the host's
 * side of this table.
 *
 * Rules that hold for every entry
 *   sizes     every struct begins with struct_size, except tensor, which is frozen. Whoever makes the struct
 * sets it, and fields are only ever appended; read and write a field only if struct_size covers it borders no
 * C++ type, no exception and no allocator crosses; memory is freed by the side that made it; a pointer
 *             argument is valid for the call alone unless its sentence says longer
 *   errors    an entry that returns int32_t answers a code of headrace::Code (0: it worked) and on failure
 * writes a sentence into `error`, cut off at its capacity: the framework's words, without a backtrace threads
 * entries without a model may be called from any thread, several at once, except that the host opens one
 *             model at a time. The host never runs two entries on one model at once, but any of different
 * models unload    it is never unloaded
 */
#ifndef HEADRACE_PLUGIN_MODEL_RUNTIME_V1_H
#define HEADRACE_PLUGIN_MODEL_RUNTIME_V1_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_MODEL_RUNTIME_ABI_MAJOR 1u
#define HEADRACE_MODEL_RUNTIME_ABI_MINOR 0u
#define HEADRACE_MODEL_RUNTIME_SYMBOL "headrace_model_runtime_v1_table"
#define HEADRACE_MODEL_MOST_DIMENSIONS 8

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
  HEADRACE_BOOLEAN = 12,
  HEADRACE_COMPLEX64 = 13,
  HEADRACE_COMPLEX128 = 14,
  HEADRACE_FLOAT8_E4M3FN = 15,
  HEADRACE_FLOAT8_E5M2 = 16
} headrace_dtype_v1;

/* As a stream: the one that the framework has current on this thread for the device. NULL is the device's
 * default stream. */
#define HEADRACE_MODEL_CURRENT_STREAM ((void*)~(uintptr_t)0)

typedef enum headrace_device_kind_v1 {
  HEADRACE_CPU = 0,
  HEADRACE_CUDA = 1 /* also AMD's GPUs */
} headrace_device_kind_v1;

/* A tensor. Frozen. */
typedef struct headrace_tensor_v1 {
  const void* data;
  void* handle;         /* outputs and allocations: for `release`; else NULL */
  int32_t dtype;        /* headrace_dtype_v1 */
  int32_t device_kind;  /* headrace_device_kind_v1 */
  int32_t device_index; /* cpu: 0 */
  uint32_t rank;
  int64_t shape[HEADRACE_MODEL_MOST_DIMENSIONS];
  int64_t strides[HEADRACE_MODEL_MOST_DIMENSIONS]; /* in elements, always set */
} headrace_tensor_v1;

/* Where an entry writes text: at most `capacity` bytes, no terminating zero, and sets `length`. */
typedef struct headrace_model_text_v1 {
  size_t struct_size;
  char* data;
  size_t capacity;
  size_t length;
} headrace_model_text_v1;

typedef struct headrace_runtime_info_v1 {
  size_t struct_size;
  const char* built_for;         /* the framework's version that it was compiled against: "2.13.0+cpu" */
  const char* built_accelerator; /* "cpu", "cuda", "rocm" */
  const char* found;             /* the framework's version that is loaded */
  const char* found_accelerator;
  const char* cpu_capability; /* the instructions that its own kernels use: "AVX512" */
  int32_t device_count;       /* GPUs that it sees */
} headrace_runtime_info_v1;

typedef struct headrace_device_info_v1 {
  size_t struct_size;
  char name[128];
  char compute_capability[32]; /* "90"; AMD: "gfx942" */
  uint64_t memory_bytes;
  uint64_t held_bytes; /* that the framework holds on it now, and at most so far */
  uint64_t held_peak_bytes;
  uint64_t used_bytes; /* that all processes together use of it; 0: not known */
} headrace_device_info_v1;

typedef struct headrace_model_open_v1 {
  size_t struct_size;
  const char* path; /* an unpacked package's folder */
  const char* model_name;
  int32_t device_kind;
  int32_t device_index;
  const char* archive; /* the file that it was unpacked from, for frameworks that cannot load from a folder;
                          NULL: none */
} headrace_model_open_v1;

/* Told of one constant; `name` and `tensor` are valid during the call alone. */
typedef void (*headrace_constant_v1)(void* context, const char* name, const headrace_tensor_v1* tensor);

typedef struct headrace_check_v1 {
  size_t struct_size;
  char name[48];    /* "matmul bfloat16" */
  char detail[256]; /* what was done and how far it was off, or why it failed */
  int32_t passed;
  int32_t reserved;
  double milliseconds;
} headrace_check_v1;

typedef struct headrace_model_runtime_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_MODEL_RUNTIME_ABI_MAJOR */
  uint32_t abi_minor;

  /* Fills in what it is; the texts live as long as the process. */
  void (*info)(headrace_runtime_info_v1* info);
  /* Fills in what is known of a GPU. */
  int32_t (*device_info)(int32_t device_index, headrace_device_info_v1* info, headrace_model_text_v1* error);
  /* The number of threads inside one operation from now on, in all threads of the process. */
  void (*set_threads)(int32_t count);

  /* Loads a model for one caller at a time. The host has checked that this machine can run its code. */
  int32_t (*open)(const headrace_model_open_v1* args, void** model, headrace_model_text_v1* error);
  /* Frees it. Outputs that have not been released stay valid. */
  void (*close)(void* model);
  /* Puts out how the arguments were laid out in Python: the two JSON texts, for inputs and outputs. */
  int32_t (*call_spec)(void* model, headrace_model_text_v1* in, headrace_model_text_v1* out,
                       headrace_model_text_v1* error);

  /* Sets input `index` for all runs that follow, until it is set again. The memory has to be there during
   * runs alone. The host has checked it; NULL data with a shape that has elements: the input is left out. */
  int32_t (*bind)(void* model, uint64_t index, const headrace_tensor_v1* tensor,
                  headrace_model_text_v1* error);
  /* Runs on the bound inputs, all of which have been set. On a GPU it returns once the work is queued on
   * `stream` (a cudaStream_t of the model's device; on a CPU it is not looked at). Outputs are row-major
   * without gaps, own their memory, and alias neither an input nor a constant; each is owed one `release`.
   * `*count` is the room in `outputs` and becomes their number; exhausted: more room is needed, `*count` says
   * how much, and the next call hands these outputs out instead of running again. */
  int32_t (*run)(void* model, void* stream, headrace_tensor_v1* outputs, uint64_t* count,
                 headrace_model_text_v1* error);
  /* Frees an output or an allocation, from any thread. */
  void (*release)(void* handle);

  /* Tells all constants by the names that the module gave them. */
  int32_t (*constants)(void* model, headrace_constant_v1 tell, void* context, headrace_model_text_v1* error);
  /* Replaces the values of the named constants by copies of the tensors', and sees to it that what was
   * computed of them is computed again. The host has checked names, types and shapes. Tensors may lie in host
   * memory whatever the model's device. */
  int32_t (*replace_constants)(void* model, uint64_t count, const char* const* names,
                               const headrace_tensor_v1* tensors, headrace_model_text_v1* error);

  /* Allocates a tensor of that type, shape and device without setting its elements, and fills in data,
   * strides, handle. */
  int32_t (*allocate)(headrace_tensor_v1* tensor, headrace_model_text_v1* error);
  /* Copies between tensors of the same type and shape, whatever their devices, after what the current streams
   * hold; done when it returns. */
  int32_t (*copy)(const headrace_tensor_v1* to, const headrace_tensor_v1* from,
                  headrace_model_text_v1* error);
  /* Waits for what a stream of a device holds. Returns at once for the CPU. */
  int32_t (*synchronize)(int32_t device_kind, int32_t device_index, void* stream,
                         headrace_model_text_v1* error);

  /* Does check number `index` of a device: 0, 1, ... until it answers not_found. A check that fails answers
   * ok and says so in `check`. */
  int32_t (*check_device)(int32_t device_kind, int32_t device_index, uint64_t index,
                          headrace_check_v1* check);
} headrace_model_runtime_v1;

/* The struct_size of this version, the least that a host accepts. */
#define HEADRACE_MODEL_RUNTIME_V1_SIZE \
  (offsetof(headrace_model_runtime_v1, check_device) + sizeof(((headrace_model_runtime_v1*)0)->check_device))

/* The one symbol it exports: returns its table, which lives as long as the process. */
typedef const headrace_model_runtime_v1* (*headrace_model_runtime_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
