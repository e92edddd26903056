// SPDX-License-Identifier: Apache-2.0
// include/headrace/c/model.h over include/headrace/model.hpp.
#include "handles.hpp"

#include <headrace/c/model.h>
#include <headrace/model.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <span>

struct headrace_model {
  headrace::Model model;
  std::vector<std::string> input_specs;
};

struct headrace_outputs {
  std::vector<headrace::Tensor> tensors;
  std::vector<std::string> devices;
};

namespace headrace::c {
namespace {

Result<TensorView> view_of(const headrace_tensor* given) {
  HEADRACE_C_TRY(whole(given, "tensor"));
  if (given->dtype == nullptr) return wrong("a tensor has no dtype");
  if (!Shape::fits(given->rank)) return wrong("a tensor has more than 8 dimensions");
  auto dtype = dtype_from_name(given->dtype);
  if (!dtype) return std::move(dtype).error();
  auto device = device_from_text(given->device == nullptr ? "cpu" : given->device);
  if (!device) return std::move(device).error();
  TensorView view{given->data, *dtype, Shape(std::span(given->shape, given->rank)), {}, *device};
  if (given->has_strides != 0) view.strides = Shape(std::span(given->strides, given->rank));
  return view;
}

Result<std::vector<TensorView>> views_of(const headrace_tensor* inputs, std::uint64_t count) {
  if (inputs == nullptr && count > 0) return missing("inputs");
  std::vector<TensorView> views;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto view = view_of(element(inputs, i));
    if (!view) return std::move(view).error().within("input " + std::to_string(i));
    views.push_back(*view);
  }
  return views;
}

Result<ModelOptions> model_options_of(const headrace_model_options* given) {
  ModelOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  if (given->model_name != nullptr) options.model_name = given->model_name;
  if (given->device != nullptr) options.device = given->device;
  if (given->runners != 0) options.runners = given->runners;
  options.threads = given->threads;
  auto values = pairs_in(given->options);
  if (!values) return std::move(values).error();
  options.options = std::move(*values);
  return options;
}

const char* name_in(const std::vector<TensorSpec>& specs, std::uint64_t index) {
  return index < specs.size() ? specs[index].name.c_str() : nullptr;
}

Result<const Tensor*> output_of(const headrace_outputs* outputs, std::uint64_t index) {
  const std::uint64_t count = headrace_outputs_count(outputs);
  if (index >= count)
    return wrong("there is no output " + std::to_string(index) + ": there are " + std::to_string(count));
  return &outputs->tensors[index];
}

nlohmann::ordered_json described(const ConstantInfo& constant) {
  return {{"name", constant.name},
          {"dtype", dtype_name(constant.dtype)},
          {"shape", std::vector<std::int64_t>(constant.shape.begin(), constant.shape.end())}};
}

nlohmann::ordered_json described(const DeviceCheck& check) {
  return {{"name", check.name},
          {"passed", check.passed},
          {"detail", check.detail},
          {"milliseconds", check.milliseconds}};
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_model_open(const char* path, const headrace_model_options* options,
                                 headrace_model** model, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(path, "path"));
    HEADRACE_C_TRY(given(model, "model"));
    auto wanted = model_options_of(options);
    if (!wanted) return std::move(wanted).error();
    auto opened = headrace::Model::open(path, std::move(*wanted));
    if (!opened) return std::move(opened).error();
    std::vector<std::string> specs;
    for (const headrace::TensorSpec& spec : opened->info().inputs) specs.push_back(spec_text(spec));
    *model = new headrace_model{std::move(*opened), std::move(specs)};
    return {};
  });
}

void headrace_model_close(headrace_model* model) { delete model; }

std::int32_t headrace_model_inspect(const char* path, const char* model_name, headrace_bytes** json,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(path, "path"));
    HEADRACE_C_TRY(given(json, "json"));
    const auto info = headrace::Model::inspect(path, model_name == nullptr ? "model" : model_name);
    if (!info) return info.error();
    give(json, model_info_json(*info));
    return {};
  });
}

std::uint64_t headrace_model_input_count(const headrace_model* model) {
  return model == nullptr ? 0 : model->model.info().inputs.size();
}
std::uint64_t headrace_model_output_count(const headrace_model* model) {
  return model == nullptr ? 0 : model->model.info().outputs.size();
}
const char* headrace_model_input_name(const headrace_model* model, std::uint64_t index) {
  return model == nullptr ? nullptr : name_in(model->model.info().inputs, index);
}
const char* headrace_model_output_name(const headrace_model* model, std::uint64_t index) {
  return model == nullptr ? nullptr : name_in(model->model.info().outputs, index);
}
const char* headrace_model_input_spec(const headrace_model* model, std::uint64_t index) {
  return model != nullptr && index < model->input_specs.size() ? model->input_specs[index].c_str() : nullptr;
}

std::int32_t headrace_model_run(headrace_model* model, const headrace_tensor* inputs, std::uint64_t count,
                                headrace_outputs** outputs, headrace_error** error) {
  return headrace_model_run_with(model, inputs, count, nullptr, outputs, error);
}

std::int32_t headrace_model_run_with(headrace_model* model, const headrace_tensor* inputs,
                                     std::uint64_t count, const headrace_run_options* options,
                                     headrace_outputs** outputs, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(model, "model"));
    HEADRACE_C_TRY(given(outputs, "outputs"));
    HEADRACE_C_TRY(whole_or_null(options, "options"));
    headrace::RunOptions run;
    if (options != nullptr && options->has_stream != 0) run.stream = options->stream;
    if (options != nullptr) run.synchronize = options->do_not_wait == 0;
    auto views = views_of(inputs, count);
    if (!views) return std::move(views).error();
    auto into = *outputs == nullptr ? std::make_unique<headrace_outputs>() : nullptr;
    headrace_outputs& kept = into ? *into : **outputs;
    HEADRACE_C_TRY(model->model.run(*views, kept.tensors, run));
    kept.devices.clear();
    for (const headrace::Tensor& tensor : kept.tensors) kept.devices.push_back(device_text(tensor.device()));
    if (into) *outputs = into.release();
    return {};
  });
}

void headrace_outputs_free(headrace_outputs* outputs) { delete outputs; }

std::uint64_t headrace_outputs_count(const headrace_outputs* outputs) {
  return outputs == nullptr ? 0 : outputs->tensors.size();
}

std::int32_t headrace_outputs_get(const headrace_outputs* outputs, std::uint64_t index,
                                  headrace_tensor* tensor, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(whole(tensor, "tensor"));
    auto output = output_of(outputs, index);
    if (!output) return std::move(output).error();
    const headrace::TensorView& view = (*output)->view();
    tensor->data = view.data;
    tensor->dtype = dtype_name(view.dtype).data();
    tensor->device = outputs->devices[index].c_str();
    tensor->rank = static_cast<std::uint32_t>(view.shape.rank());
    tensor->has_strides = 0;
    std::memset(tensor->strides, 0, sizeof tensor->strides);
    std::memset(tensor->shape, 0, sizeof tensor->shape);
    std::copy(view.shape.begin(), view.shape.end(), tensor->shape);
    return {};
  });
}

std::int32_t headrace_outputs_copy(headrace_model* model, const headrace_outputs* outputs,
                                   std::uint64_t index, void* memory, std::uint64_t size,
                                   headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(model, "model"));
    HEADRACE_C_TRY(given(memory, "memory"));
    auto output = output_of(outputs, index);
    if (!output) return std::move(output).error();
    const headrace::TensorView& view = (*output)->view();
    if (view.bytes() != size)
      return wrong("output " + std::to_string(index) + " has " + std::to_string(view.bytes()) +
                   " bytes, the memory has " + std::to_string(size));
    auto copied = model->model.copy_to(view, headrace::Device{});
    if (!copied) return std::move(copied).error();
    std::memcpy(memory, copied->view().data, size);
    return {};
  });
}

std::int32_t headrace_model_constants(const headrace_model* model, headrace_bytes** json,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(model, "model"));
    HEADRACE_C_TRY(given(json, "json"));
    const auto constants = model->model.constants();
    if (!constants) return constants.error();
    auto all = nlohmann::ordered_json::array();
    for (const headrace::ConstantInfo& constant : *constants) all.push_back(described(constant));
    give(json, all.dump());
    return {};
  });
}

std::int32_t headrace_model_replace_constant(headrace_model* model, const char* name,
                                             const headrace_tensor* value, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(model, "model"));
    HEADRACE_C_TRY(given(name, "name"));
    const auto view = view_of(value);
    if (!view) return view.error();
    return model->model.replace_constants({{name, *view}});
  });
}

std::int32_t headrace_model_get_timing(const headrace_model* model, headrace_model_timing* timing,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(model, "model"));
    HEADRACE_C_TRY(whole(timing, "timing"));
    const headrace::ModelTiming measured = model->model.timing();
    timing->load_ns = measured.load_ns;
    timing->unpack_ns = measured.unpack_ns;
    timing->runs = measured.run_ns.count;
    timing->run_mean_ns = measured.run_ns.mean();
    timing->run_p50_ns = measured.run_ns.percentile(50);
    timing->run_p99_ns = measured.run_ns.percentile(99);
    return {};
  });
}

std::int32_t headrace_model_get_memory(const headrace_model* model, headrace_model_memory* memory,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(model, "model"));
    HEADRACE_C_TRY(whole(memory, "memory"));
    const headrace::ModelMemory measured = model->model.memory();
    memory->package_bytes = measured.package_bytes;
    memory->constant_bytes = measured.constant_bytes;
    memory->process_bytes = measured.process_bytes;
    memory->device_bytes = measured.device_bytes;
    memory->device_peak_bytes = measured.device_peak_bytes;
    memory->device_used_bytes = measured.device_used_bytes;
    return {};
  });
}

std::int32_t headrace_check_device(const char* device, const char* const* options, headrace_bytes** json,
                                   headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(device, "device"));
    HEADRACE_C_TRY(given(json, "json"));
    const auto wanted = headrace::device_from_text(device);
    if (!wanted) return wanted.error();
    auto values = pairs_in(options);
    if (!values) return std::move(values).error();
    const auto checks = headrace::check_device(*wanted, *values);
    if (!checks) return checks.error();
    auto all = nlohmann::ordered_json::array();
    for (const headrace::DeviceCheck& check : *checks) all.push_back(described(check));
    give(json, all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  });
}
