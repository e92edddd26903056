/* SPDX-License-Identifier: Apache-2.0 */
/* The C API of models, compiled as C: model_test FOLDER, the folder with the packages of
 * tests/support/export_models.py. */
#include "check.h"

#include <headrace/c/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  CHECK(headrace_model_run(model, &wrong, 1, &outputs, fresh()) == 2);
  CHECK(outputs == NULL);
  CHECK(strstr(text(), "at most 64, and is 65") != NULL);
  CHECK(strcmp(headrace_code_name(2), "invalid_argument") == 0);
  wrong.dtype = "float31";
  CHECK(headrace_model_run(model, &wrong, 1, &outputs, fresh()) == 2);
  CHECK(strstr(text(), "float31") != NULL);
  wrong.struct_size = 4;
  CHECK(headrace_model_run(model, &wrong, 1, &outputs, fresh()) == 2);
  wrong = tensor_of(numbers, "float32", 1, 1);
  CHECK(headrace_model_replace_constant(model, "first.weight", &wrong, fresh()) == 2);
  CHECK(strstr(text(), "float32 [512, 256]") != NULL);
  headrace_model* none = NULL;
  CHECK(headrace_model_open("nothing.pt2", NULL, &none, fresh()) == 3 && none == NULL);
  headrace_model_close(NULL);
  headrace_outputs_free(NULL);
}

static void runs_give_outputs(headrace_model* model) {
  static float numbers[4 * 256];
  headrace_tensor input = tensor_of(numbers, "float32", 4, 256);
  headrace_outputs* outputs = NULL;
  for (int i = 0; i < 3; ++i) CHECK(headrace_model_run(model, &input, 1, &outputs, fresh()) == 0);
  CHECK(headrace_outputs_count(outputs) == 2);
  headrace_tensor output;
  output.struct_size = sizeof output;
  CHECK(headrace_outputs_get(outputs, 0, &output, fresh()) == 0);
  CHECK(strcmp(output.dtype, "float32") == 0 && strcmp(output.device, "cpu") == 0);
  CHECK(output.rank == 2 && output.shape[0] == 4 && output.shape[1] == 10 && output.data != NULL);
  CHECK(headrace_outputs_get(outputs, 2, &output, fresh()) == 2);
  static float copy[4 * 10];
  CHECK(headrace_outputs_copy(model, outputs, 0, copy, sizeof copy, fresh()) == 0);
  CHECK(memcmp(copy, output.data, sizeof copy) == 0);
  CHECK(headrace_outputs_copy(model, outputs, 0, copy, 4, fresh()) == 2);
  CHECK(strstr(text(), "has 160 bytes, the memory has 4") != NULL);
  headrace_run_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  CHECK(headrace_model_run_with(model, &input, 1, &options, &outputs, fresh()) == 0);
  options.has_stream = 1;
  CHECK(headrace_model_run_with(model, &input, 1, &options, &outputs, fresh()) == 2);
  CHECK(strstr(text(), "runs on the CPU, which has no streams") != NULL);
  options.struct_size = 4;
  CHECK(headrace_model_run_with(model, &input, 1, &options, &outputs, fresh()) == 2);
  headrace_outputs_free(outputs);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  char path[4096];
  snprintf(path, sizeof path, "%s/mlp.pt2", argv[1]);

  headrace_bytes* json = NULL;
  CHECK(headrace_model_inspect(path, NULL, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "\"described_by\":\"exported\"") != NULL);
  headrace_bytes_free(json);

  headrace_model_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.runners = 2;
  headrace_model* model = NULL;
  CHECK(headrace_model_open(path, &options, &model, fresh()) == 0);
  CHECK(headrace_model_input_count(model) == 1 && headrace_model_output_count(model) == 2);
  CHECK(strcmp(headrace_model_input_name(model, 0), "x") == 0 && headrace_model_input_name(model, 1) == NULL);
  CHECK(strcmp(headrace_model_output_name(model, 1), "hidden") == 0);
  CHECK(strcmp(headrace_model_input_spec(model, 0), "float32 [batch 1..64, 256]") == 0);
  errors_say_what_is_wrong(model);
  runs_give_outputs(model);

  headrace_bytes* constants = NULL;
  CHECK(headrace_model_constants(model, &constants, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(constants),
               "{\"name\":\"first.weight\",\"dtype\":\"float32\",\"shape\":[512,256]}") != NULL);
  headrace_bytes_free(constants);
  headrace_bytes* checks = NULL;
  CHECK(headrace_check_device("cpu", NULL, &checks, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(checks), "\"name\":\"allocation float32\",\"passed\":true") != NULL);
  headrace_bytes_free(checks);
  CHECK(headrace_check_device("gpu", NULL, &checks, fresh()) == 2);

  headrace_model_timing timing;
  timing.struct_size = sizeof timing;
  CHECK(headrace_model_get_timing(model, &timing, fresh()) == 0);
  CHECK(timing.runs == 4 && timing.run_mean_ns > 0 && timing.load_ns > 0);
  headrace_model_memory memory;
  memory.struct_size = sizeof memory;
  CHECK(headrace_model_get_memory(model, &memory, fresh()) == 0);
  CHECK(memory.device_bytes == 0 && memory.device_used_bytes == 0);
  CHECK(memory.constant_bytes > 0 && memory.process_bytes > memory.constant_bytes);
  (void)fresh();
  headrace_model_close(model);
  puts("the C API does what it says");
  return 0;
}
