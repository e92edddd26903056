/* SPDX-License-Identifier: Apache-2.0 */
/* The C API of models, compiled as C: model_test FOLDER, the folder with the packages of
 * tests/support/export_models.py. */
#include <headrace/c/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "not so: %s (last error: %s)\n", what, headrace_last_error());
  exit(1);
}
#define CHECK(condition) check(condition, #condition)

static headrace_tensor tensor_of(const void* data, const char* dtype, int64_t first, int64_t second) {
  headrace_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = 2;
  tensor.shape[0] = first;
  tensor.shape[1] = second;
  return tensor;
}

static void errors_say_what_is_wrong(headrace_model* model) {
  static float numbers[65 * 256];
  headrace_outputs* outputs = NULL;
  headrace_tensor wrong = tensor_of(numbers, "float32", 65, 256);
  CHECK(headrace_model_run(model, &wrong, 1, &outputs) == 2);
  CHECK(outputs == NULL);
  CHECK(strstr(headrace_last_error(), "at most 64, and is 65") != NULL);
  CHECK(strcmp(headrace_code_name(2), "invalid_argument") == 0);
  wrong.dtype = "float31";
  CHECK(headrace_model_run(model, &wrong, 1, &outputs) == 2);
  CHECK(strstr(headrace_last_error(), "float31") != NULL);
  wrong.struct_size = 4;
  CHECK(headrace_model_run(model, &wrong, 1, &outputs) == 2);
  wrong = tensor_of(numbers, "float32", 1, 1);
  CHECK(headrace_model_replace_constant(model, "first.weight", &wrong) == 2);
  CHECK(strstr(headrace_last_error(), "float32 [512, 256]") != NULL);
  headrace_model* none = NULL;
  CHECK(headrace_model_open("nothing.pt2", NULL, &none) == 3 && none == NULL);
  headrace_model_close(NULL);
  headrace_outputs_free(NULL);
}

static void runs_give_outputs(headrace_model* model) {
  static float numbers[4 * 256];
  headrace_tensor input = tensor_of(numbers, "float32", 4, 256);
  headrace_outputs* outputs = NULL;
  for (int i = 0; i < 3; ++i) CHECK(headrace_model_run(model, &input, 1, &outputs) == 0);
  CHECK(headrace_outputs_count(outputs) == 2);
  headrace_tensor output;
  output.struct_size = sizeof output;
  CHECK(headrace_outputs_get(outputs, 0, &output) == 0);
  CHECK(strcmp(output.dtype, "float32") == 0 && strcmp(output.device, "cpu") == 0);
  CHECK(output.rank == 2 && output.shape[0] == 4 && output.shape[1] == 10 && output.data != NULL);
  CHECK(headrace_outputs_get(outputs, 2, &output) == 2);
  headrace_run_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  CHECK(headrace_model_run_with(model, &input, 1, &options, &outputs) == 0);
  options.has_stream = 1;
  CHECK(headrace_model_run_with(model, &input, 1, &options, &outputs) == 2);
  CHECK(strstr(headrace_last_error(), "runs on the CPU, which has no streams") != NULL);
  options.struct_size = 4;
  CHECK(headrace_model_run_with(model, &input, 1, &options, &outputs) == 2);
  headrace_outputs_free(outputs);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  char path[4096];
  snprintf(path, sizeof path, "%s/mlp.pt2", argv[1]);

  char* json = NULL;
  CHECK(headrace_model_inspect(path, NULL, &json) == 0);
  CHECK(strstr(json, "\"described_by\":\"exported\"") != NULL);
  headrace_text_free(json);

  headrace_model_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.runners = 2;
  headrace_model* model = NULL;
  CHECK(headrace_model_open(path, &options, &model) == 0);
  CHECK(headrace_model_input_count(model) == 1 && headrace_model_output_count(model) == 2);
  CHECK(strcmp(headrace_model_input_name(model, 0), "x") == 0 && headrace_model_input_name(model, 1) == NULL);
  CHECK(strcmp(headrace_model_output_name(model, 1), "hidden") == 0);
  CHECK(strcmp(headrace_model_input_spec(model, 0), "float32 [batch 1..64, 256]") == 0);
  errors_say_what_is_wrong(model);
  runs_give_outputs(model);

  headrace_model_timing timing;
  timing.struct_size = sizeof timing;
  CHECK(headrace_model_get_timing(model, &timing) == 0);
  CHECK(timing.runs == 4 && timing.run_mean_ns > 0 && timing.load_ns > 0);
  headrace_model_memory memory;
  memory.struct_size = sizeof memory;
  CHECK(headrace_model_get_memory(model, &memory) == 0);
  CHECK(memory.device_bytes == 0 && memory.device_used_bytes == 0);
  CHECK(memory.constant_bytes > 0 && memory.process_bytes > memory.constant_bytes);
  headrace_model_close(model);
  puts("the C API does what it says");
  return 0;
}
