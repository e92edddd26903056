/* SPDX-License-Identifier: Apache-2.0 */
/* The C API of models whose inputs lie in GPU memory: gpu_model_test FOLDER DEVICE. FOLDER has the packages
 * of tests/support/gpu_models.py, DEVICE is for example "cuda:0". Memory and streams come from the driver:
 * this program does not use torch. */
#include "check.h"

#include <headrace/c/model.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

/* ---------------------------------------------------------------- the driver */

enum { driver_success = 0, driver_not_ready = 600, stream_non_blocking = 1 };

typedef uint64_t address;

static struct {
  int (*init)(unsigned flags);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*retain_context)(void** context, int device);
  int (*use_context)(void* context);
  int (*wait_for_all)(void);
  int (*memory_info)(size_t* free_bytes, size_t* bytes);
  int (*allocate)(address* memory, size_t bytes);
  int (*release)(address memory);
  int (*put)(address to, const void* from, size_t bytes);
  int (*get)(void* to, address from, size_t bytes);
  int (*copy_on)(address to, address from, size_t bytes, void* stream);
  int (*call_on)(void* stream, void (*function)(void*), void* argument);
  int (*make_stream)(void** stream, unsigned flags);
  int (*ask_stream)(void* stream);
  int (*wait_for_stream)(void* stream);
  int (*destroy_stream)(void* stream);
} driver;

static int find(void* library, const char* name, void* pointer_to_function) {
  void* const found = dlsym(library, name);
  memcpy(pointer_to_function, &found, sizeof found);
  return found != NULL;
}

static void* context;

/* Call this before work on the current GPU, because a run may have made another GPU the current one. */
static void use_gpu(void) { CHECK(driver.use_context(context) == driver_success); }

/* False if there is no driver, or no GPU of that number. */
static int open_gpu(int ordinal) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return 0;
  CHECK(find(library, "cuInit", &driver.init) && find(library, "cuDeviceGetCount", &driver.device_count));
  CHECK(find(library, "cuDeviceGet", &driver.device_get));
  CHECK(find(library, "cuDevicePrimaryCtxRetain", &driver.retain_context));
  CHECK(find(library, "cuCtxSetCurrent", &driver.use_context) &&
        find(library, "cuCtxSynchronize", &driver.wait_for_all));
  CHECK(find(library, "cuMemGetInfo_v2", &driver.memory_info));
  CHECK(find(library, "cuMemAlloc_v2", &driver.allocate) && find(library, "cuMemFree_v2", &driver.release));
  CHECK(find(library, "cuMemcpyHtoD_v2", &driver.put) && find(library, "cuMemcpyDtoH_v2", &driver.get));
  CHECK(find(library, "cuMemcpyDtoDAsync_v2", &driver.copy_on));
  CHECK(find(library, "cuLaunchHostFunc", &driver.call_on));
  CHECK(find(library, "cuStreamCreate", &driver.make_stream) &&
        find(library, "cuStreamQuery", &driver.ask_stream));
  CHECK(find(library, "cuStreamSynchronize", &driver.wait_for_stream));
  CHECK(find(library, "cuStreamDestroy_v2", &driver.destroy_stream));
  int count = 0, device = 0;
  if (driver.init(0) != driver_success || driver.device_count(&count) != driver_success || count <= ordinal)
    return 0;
  CHECK(driver.device_get(&device, ordinal) == driver_success);
  CHECK(driver.retain_context(&context, device) == driver_success);
  return 1;
}

/* The bytes have arrived when this returns. The driver's own call may return before, and streams do not wait
 * for it. */
static void put(address to, const float* values, size_t count) {
  use_gpu();
  CHECK(driver.put(to, values, count * sizeof *values) == driver_success);
  CHECK(driver.wait_for_all() == driver_success);
}

static address floats_on_gpu(const float* values, size_t count) {
  address memory = 0;
  use_gpu();
  CHECK(driver.allocate(&memory, count * sizeof *values) == driver_success);
  put(memory, values, count);
  return memory;
}

static float* floats_from_gpu(address memory, size_t count) {
  float* const values = malloc(count * sizeof *values);
  CHECK(values != NULL);
  use_gpu();
  CHECK(driver.get(values, memory, count * sizeof *values) == driver_success);
  return values;
}

/* ---------------------------------------------------------------- tensors and models */

enum { accumulated = 1 << 20, inputs = 256, hidden_units = 512, classes = 10, batch = 3 };

static headrace_tensor tensor_of(address memory, const char* device, uint32_t rank, int64_t first,
                                 int64_t second) {
  headrace_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.data = (const void*)(uintptr_t)memory;
  tensor.dtype = "float32";
  tensor.device = device;
  tensor.rank = rank;
  tensor.shape[0] = first;
  tensor.shape[1] = second;
  return tensor;
}

static headrace_tensor output_of(const headrace_outputs* outputs, uint64_t index, const char* device) {
  headrace_tensor tensor;
  tensor.struct_size = sizeof tensor;
  CHECK(headrace_outputs_get(outputs, index, &tensor, fresh()) == 0);
  CHECK(strcmp(tensor.device, device) == 0 && strcmp(tensor.dtype, "float32") == 0);
  return tensor;
}

static address address_of(const headrace_tensor* tensor) { return (address)(uintptr_t)tensor->data; }

static headrace_model* open_on(const char* folder, const char* name, const char* device) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.pt2", folder, name);
  headrace_model_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.device = device;
  headrace_model* model = NULL;
  CHECK(headrace_model_open(path, &options, &model, fresh()) == 0);
  return model;
}

static headrace_model_memory memory_of(const headrace_model* model) {
  headrace_model_memory memory;
  memory.struct_size = sizeof memory;
  CHECK(headrace_model_get_memory(model, &memory, fresh()) == 0);
  return memory;
}

/* The inputs of the model `accumulate`. Sums of these values are exact. */
static float total_at(size_t i) { return (float)(i % 1000); }
static float x_at(size_t i) { return (float)(i % 513) * 0.5F; }

typedef struct {
  address total, x;
  headrace_tensor tensors[2];
} accumulation;

static accumulation accumulation_on(const char* device) {
  float* const values = malloc(accumulated * sizeof *values);
  CHECK(values != NULL);
  accumulation made;
  for (size_t i = 0; i < accumulated; ++i) values[i] = total_at(i);
  made.total = floats_on_gpu(values, accumulated);
  for (size_t i = 0; i < accumulated; ++i) values[i] = x_at(i);
  made.x = floats_on_gpu(values, accumulated);
  free(values);
  made.tensors[0] = tensor_of(made.total, device, 1, accumulated, 0);
  made.tensors[1] = tensor_of(made.x, device, 1, accumulated, 0);
  return made;
}

static void release(accumulation made) {
  CHECK(driver.release(made.total) == driver_success && driver.release(made.x) == driver_success);
}

/* Whether memory holds factor * (total + times * x). */
static int holds_sum(address memory, float factor, float times) {
  float* const values = floats_from_gpu(memory, accumulated);
  int right = 1;
  for (size_t i = 0; right && i < accumulated; ++i)
    right = values[i] == factor * (total_at(i) + times * x_at(i));
  free(values);
  return right;
}

static int holds_everywhere(address memory, float value) {
  float* const values = floats_from_gpu(memory, accumulated);
  int right = 1;
  for (size_t i = 0; right && i < accumulated; ++i) right = values[i] == value;
  free(values);
  return right;
}

static void fill(address memory, float value) {
  float* const values = malloc(accumulated * sizeof *values);
  CHECK(values != NULL);
  for (size_t i = 0; i < accumulated; ++i) values[i] = value;
  put(memory, values, accumulated);
  free(values);
}

/* ---------------------------------------------------------------- the tests */

static void inputs_and_outputs_stay_on_the_gpu(const char* folder, const char* device) {
  headrace_model* const model = open_on(folder, "accumulate", device);
  CHECK(headrace_model_input_count(model) == 2 && headrace_model_output_count(model) == 1);
  accumulation given = accumulation_on(device);
  headrace_outputs* outputs = NULL;
  for (int run = 1; run <= 3; ++run) {
    CHECK(headrace_model_run(model, given.tensors, 2, &outputs, fresh()) == 0);
    const headrace_tensor twice = output_of(outputs, 0, device);
    CHECK(twice.rank == 1 && twice.shape[0] == accumulated);
    CHECK(holds_sum(address_of(&twice), 2.0F, (float)run));
    CHECK(holds_sum(given.total, 1.0F, (float)run)); /* written in place */
  }
  /* An output may be an input of the next run, and outlives its model. */
  const headrace_tensor twice = output_of(outputs, 0, device);
  const headrace_tensor next[2] = {given.tensors[0], twice};
  headrace_outputs* last = NULL;
  CHECK(headrace_model_run(model, next, 2, &last, fresh()) == 0);
  headrace_model_timing timing;
  timing.struct_size = sizeof timing;
  CHECK(headrace_model_get_timing(model, &timing, fresh()) == 0 && timing.runs == 4);
  headrace_outputs_free(outputs);
  headrace_model_close(model);
  const headrace_tensor end = output_of(last, 0, device);
  CHECK(holds_sum(given.total, 3.0F, 3.0F) && holds_sum(address_of(&end), 6.0F, 3.0F));
  headrace_outputs_free(last);
  release(given);
}

/* Blocks a stream until it is opened, for at most 20 s. */
static atomic_int gate_is_open;
static void wait_at_gate(void* unused) {
  (void)unused;
  const struct timespec millisecond = {0, 1000000};
  for (int waited = 0; waited < 20000 && !atomic_load(&gate_is_open); ++waited)
    thrd_sleep(&millisecond, NULL);
}

static void a_run_on_a_callers_stream_comes_in_its_order(const char* folder, const char* device) {
  headrace_model* const model = open_on(folder, "accumulate", device);
  accumulation given = accumulation_on(device);
  accumulation other = accumulation_on(device); /* only its memory is used, as source and target of copies */
  void* stream = NULL;
  use_gpu();
  CHECK(driver.make_stream(&stream, stream_non_blocking) == driver_success);
  headrace_run_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.stream = stream;
  options.has_stream = 1;
  headrace_outputs *warm = NULL, *outputs = NULL;
  CHECK(headrace_model_run_with(model, given.tensors, 2, &options, &warm, fresh()) ==
        0); /* loads everything that is loaded once */
  const headrace_tensor first = output_of(warm, 0, device);
  CHECK(holds_sum(address_of(&first), 2.0F, 1.0F)); /* the output is complete when the call returns */
  headrace_outputs_free(
      warm); /* the next run reuses this memory, so nothing is allocated while the stream is blocked */

  const size_t bytes = accumulated * sizeof(float);
  fill(given.total, 0.0F);
  fill(given.x, 0.0F);
  fill(other.x, 5.0F);
  CHECK(driver.call_on(stream, wait_at_gate, NULL) == driver_success);
  CHECK(driver.copy_on(given.x, other.x, bytes, stream) == driver_success);
  options.do_not_wait = 1;
  CHECK(headrace_model_run_with(model, given.tensors, 2, &options, &outputs, fresh()) == 0);
  CHECK(driver.ask_stream(stream) == driver_not_ready); /* the run did not wait */
  const headrace_tensor twice = output_of(outputs, 0, device);
  CHECK(driver.copy_on(other.total, address_of(&twice), bytes, stream) == driver_success);
  CHECK(driver.ask_stream(stream) == driver_not_ready);
  atomic_store(&gate_is_open, 1);
  CHECK(driver.wait_for_stream(stream) == driver_success);
  CHECK(holds_everywhere(given.total, 5.0F) && holds_everywhere(other.total, 10.0F));
  headrace_outputs_free(outputs);
  headrace_model_close(model);
  CHECK(driver.destroy_stream(stream) == driver_success);
  release(given);
  release(other);
}

static void constants_are_replaced_from_gpu_memory(const char* folder, const char* device) {
  static float zeros[hidden_units * inputs];
  static float hidden_bias[hidden_units], bias[classes], numbers[batch * inputs];
  for (int i = 0; i < hidden_units; ++i) hidden_bias[i] = (float)(i - 100);
  for (int i = 0; i < classes; ++i) bias[i] = (float)i + 0.5F;
  for (int i = 0; i < batch * inputs; ++i) numbers[i] = (float)(i % 17) - 8.0F;
  headrace_model* const model = open_on(folder, "mlp", device);
  CHECK(strcmp(headrace_model_input_spec(model, 0), "float32 [batch 1..64, 256]") == 0);
  const struct {
    const char* name;
    const float* values;
    uint32_t rank;
    int64_t first, second;
  } constants[] = {{"first.weight", zeros, 2, hidden_units, inputs},
                   {"first.bias", hidden_bias, 1, hidden_units, 0},
                   {"second.weight", zeros, 2, classes, hidden_units},
                   {"second.bias", bias, 1, classes, 0}};
  address held[4];
  for (int i = 0; i < 4; ++i) {
    const size_t count =
        (size_t)constants[i].first * (constants[i].rank == 2 ? (size_t)constants[i].second : 1);
    held[i] = floats_on_gpu(constants[i].values, count);
    const headrace_tensor value =
        tensor_of(held[i], device, constants[i].rank, constants[i].first, constants[i].second);
    CHECK(headrace_model_replace_constant(model, constants[i].name, &value, fresh()) == 0);
  }
  const address x = floats_on_gpu(numbers, (size_t)batch * inputs);
  const headrace_tensor input = tensor_of(x, device, 2, batch, inputs);
  headrace_outputs* outputs = NULL;
  CHECK(headrace_model_run(model, &input, 1, &outputs, fresh()) == 0 && headrace_outputs_count(outputs) == 3);
  const headrace_tensor logits = output_of(outputs, 0, device), hidden = output_of(outputs, 1, device),
                        same = output_of(outputs, 2, device);
  CHECK(logits.shape[0] == batch && logits.shape[1] == classes && hidden.shape[1] == hidden_units);
  float* found = floats_from_gpu(address_of(&logits), (size_t)batch * classes);
  for (int i = 0; i < batch * classes; ++i) CHECK(found[i] == bias[i % classes]);
  free(found);
  found = floats_from_gpu(address_of(&hidden), (size_t)batch * hidden_units);
  for (int i = 0; i < batch * hidden_units; ++i) {
    const float before = hidden_bias[i % hidden_units];
    CHECK(found[i] == (before > 0 ? before : 0));
  }
  free(found);
  CHECK(address_of(&same) != x); /* an input that is an output is copied */
  found = floats_from_gpu(address_of(&same), (size_t)batch * inputs);
  CHECK(memcmp(found, numbers, sizeof numbers) == 0);
  free(found);
  headrace_outputs_free(outputs);
  headrace_model_close(model);
  for (int i = 0; i < 4; ++i) CHECK(driver.release(held[i]) == driver_success);
  CHECK(driver.release(x) == driver_success);
}

static void memory_of_another_device_is_named(const char* folder, const char* device) {
  static float numbers[batch * inputs];
  char words[128];
  headrace_model* const model = open_on(folder, "mlp", device);
  headrace_outputs* outputs = NULL;
  const headrace_tensor on_host = tensor_of((address)(uintptr_t)numbers, NULL, 2, batch, inputs);
  CHECK(strcmp(headrace_code_name(headrace_model_run(model, &on_host, 1, &outputs, fresh())),
               "invalid_argument") == 0);
  snprintf(words, sizeof words, "it is on cpu, and the model runs on %s", device);
  CHECK(strstr(text(), words) != NULL && outputs == NULL);
  headrace_model_close(model);

  char path[4096];
  snprintf(path, sizeof path, "%s/mlp.pt2", folder);
  headrace_model_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.device = "cuda:99";
  headrace_model* none = NULL;
  CHECK(strcmp(headrace_code_name(headrace_model_open(path, &options, &none, fresh())), "not_supported") ==
            0 &&
        none == NULL);
  CHECK(strstr(text(), "there is no cuda:99") != NULL);
}

static void memory_of_the_gpu_is_told(const char* folder, const char* device) {
  const size_t output_bytes = accumulated * sizeof(float), block = (size_t)256 << 20,
               slack = (size_t)64 << 20;
  headrace_model* const model = open_on(folder, "accumulate", device);
  accumulation given = accumulation_on(device);
  const headrace_model_memory before = memory_of(model);
  headrace_outputs* outputs = NULL;
  CHECK(headrace_model_run(model, given.tensors, 2, &outputs, fresh()) == 0);
  const headrace_model_memory during = memory_of(model);
  CHECK(during.device_bytes >= before.device_bytes + output_bytes);
  headrace_outputs_free(outputs);
  const headrace_model_memory after = memory_of(model);
  CHECK(after.device_bytes == before.device_bytes && after.device_peak_bytes >= during.device_bytes);

  /* Memory that torch did not allocate counts in the used bytes of the GPU only. */
  address ours = 0;
  use_gpu();
  CHECK(driver.allocate(&ours, block) == driver_success);
  const headrace_model_memory with_ours = memory_of(model);
  CHECK(with_ours.device_bytes == after.device_bytes);
  CHECK(with_ours.device_used_bytes + slack >= after.device_used_bytes + block);
  size_t free_bytes = 0, bytes = 0;
  use_gpu();
  CHECK(driver.memory_info(&free_bytes, &bytes) == driver_success);
  const uint64_t used = bytes - free_bytes;
  CHECK(with_ours.device_used_bytes <= used + slack && used <= with_ours.device_used_bytes + slack);
  CHECK(driver.release(ours) == driver_success);
  headrace_model_close(model);
  release(given);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  const char* const number = strchr(argv[2], ':');
  if (!open_gpu(number == NULL ? 0 : atoi(number + 1))) {
    puts("this machine has no such GPU");
    return 77;
  }
  inputs_and_outputs_stay_on_the_gpu(argv[1], argv[2]);
  constants_are_replaced_from_gpu_memory(argv[1], argv[2]);
  memory_of_another_device_is_named(argv[1], argv[2]);
  memory_of_the_gpu_is_told(argv[1], argv[2]);
  a_run_on_a_callers_stream_comes_in_its_order(argv[1], argv[2]);
  puts("models in GPU memory do what the C API says");
  return 0;
}
