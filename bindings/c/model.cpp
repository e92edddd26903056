// SPDX-License-Identifier: Apache-2.0
// include/headrace/c/model.h over include/headrace/model.hpp.
#include <headrace/c/model.h>
#include <headrace/model.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct headrace_model {
  headrace::Model model;
  std::vector<std::string> input_specs;
};

struct headrace_outputs {
  std::vector<headrace::Tensor> tensors;
  std::vector<std::string> devices;
};

namespace headrace {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

std::int32_t fail(Code code, std::string_view text) noexcept {
  try {
    last_error() = text;
  } catch (const std::bad_alloc&) {
    last_error().clear();
  }
  return static_cast<std::int32_t>(code);
}

std::int32_t fail(const Error& error) noexcept { return fail(error.code, error.message); }

/// Catches every exception: none may reach C.
template <class Work>
std::int32_t guarded(Work work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail(Code::exhausted, "out of memory");
  } catch (const std::exception& thrown) {
    return fail(Code::internal, thrown.what());
  }
}

/// Whether the caller's struct has at least the size of this version's: no shorter version exists.
template <class Struct>
bool is_whole(const Struct* given) {
  return given != nullptr && given->struct_size >= sizeof(Struct);
}

constexpr const char* short_struct = "a struct is NULL, or its struct_size is not set to its sizeof";

Result<TensorView> view_of(const headrace_tensor& tensor) {
  if (!is_whole(&tensor)) return Error{Code::invalid_argument, short_struct};
  if (tensor.dtype == nullptr) return Error{Code::invalid_argument, "a tensor has no dtype"};
  if (!Shape::fits(tensor.rank)) return Error{Code::invalid_argument, "a tensor has more than 8 dimensions"};
  auto dtype = dtype_from_name(tensor.dtype);
  if (!dtype) return std::move(dtype).error();
  auto device = device_from_text(tensor.device == nullptr ? "cpu" : tensor.device);
  if (!device) return std::move(device).error();
  TensorView view{tensor.data, *dtype, Shape(std::span(tensor.shape, tensor.rank)), {}, *device};
  if (tensor.has_strides != 0) view.strides = Shape(std::span(tensor.strides, tensor.rank));
  return view;
}

ModelOptions options_of(const headrace_model_options& given) {
  ModelOptions options;
  if (given.model_name != nullptr) options.model_name = given.model_name;
  if (given.device != nullptr) options.device = given.device;
  if (given.runners != 0) options.runners = given.runners;
  options.threads = given.threads;
  if (given.options != nullptr)
    for (const char* const* pair = given.options; pair[0] != nullptr && pair[1] != nullptr; pair += 2)
      options.options[pair[0]] = pair[1];
  return options;
}

const char* name_in(const std::vector<TensorSpec>& specs, std::uint64_t index) {
  return index < specs.size() ? specs[index].name.c_str() : nullptr;
}

}  // namespace
}  // namespace headrace

using headrace::Code;
using headrace::fail;
using headrace::guarded;
using headrace::is_whole;
using headrace::short_struct;

const char* headrace_last_error() { return headrace::last_error().c_str(); }

const char* headrace_code_name(std::int32_t code) {
  return headrace::code_name(static_cast<Code>(code)).data();
}

std::int32_t headrace_model_open(const char* path, const headrace_model_options* options,
                                 headrace_model** model) {
  if (path == nullptr || model == nullptr) return fail(Code::invalid_argument, "path or model is NULL");
  if (options != nullptr && !is_whole(options)) return fail(Code::invalid_argument, short_struct);
  return guarded([&] {
    auto opened = headrace::Model::open(
        path, options == nullptr ? headrace::ModelOptions{} : headrace::options_of(*options));
    if (!opened) return fail(opened.error());
    std::vector<std::string> specs;
    for (const headrace::TensorSpec& spec : opened->info().inputs) specs.push_back(spec_text(spec));
    *model = new headrace_model{std::move(*opened), std::move(specs)};
    return 0;
  });
}

void headrace_model_close(headrace_model* model) { delete model; }

std::int32_t headrace_model_inspect(const char* path, const char* model_name, char** json) {
  if (path == nullptr || json == nullptr) return fail(Code::invalid_argument, "path or json is NULL");
  return guarded([&] {
    const auto info = headrace::Model::inspect(path, model_name == nullptr ? "model" : model_name);
    if (!info) return fail(info.error());
    const std::string text = model_info_json(*info);
    *json = new char[text.size() + 1];
    std::memcpy(*json, text.c_str(), text.size() + 1);
    return 0;
  });
}

void headrace_text_free(char* text) { delete[] text; }

std::uint64_t headrace_model_input_count(const headrace_model* model) {
  return model == nullptr ? 0 : model->model.info().inputs.size();
}
std::uint64_t headrace_model_output_count(const headrace_model* model) {
  return model == nullptr ? 0 : model->model.info().outputs.size();
}
const char* headrace_model_input_name(const headrace_model* model, std::uint64_t index) {
  return model == nullptr ? nullptr : headrace::name_in(model->model.info().inputs, index);
}
const char* headrace_model_output_name(const headrace_model* model, std::uint64_t index) {
  return model == nullptr ? nullptr : headrace::name_in(model->model.info().outputs, index);
}
const char* headrace_model_input_spec(const headrace_model* model, std::uint64_t index) {
  return model != nullptr && index < model->input_specs.size() ? model->input_specs[index].c_str() : nullptr;
}

std::int32_t headrace_model_run(headrace_model* model, const headrace_tensor* inputs, std::uint64_t count,
                                headrace_outputs** outputs) {
  return headrace_model_run_with(model, inputs, count, nullptr, outputs);
}

std::int32_t headrace_model_run_with(headrace_model* model, const headrace_tensor* inputs,
                                     std::uint64_t count, const headrace_run_options* options,
                                     headrace_outputs** outputs) {
  if (model == nullptr || outputs == nullptr || (inputs == nullptr && count > 0))
    return fail(Code::invalid_argument, "model, inputs or outputs is NULL");
  if (options != nullptr && !is_whole(options)) return fail(Code::invalid_argument, short_struct);
  headrace::RunOptions run;
  if (options != nullptr && options->has_stream != 0) run.stream = options->stream;
  if (options != nullptr) run.synchronize = options->do_not_wait == 0;
  return guarded([&] {
    std::vector<headrace::TensorView> views;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto view = headrace::view_of(inputs[i]);
      if (!view) return fail(std::move(view).error().within("input " + std::to_string(i)));
      views.push_back(*view);
    }
    auto into = *outputs == nullptr ? std::make_unique<headrace_outputs>() : nullptr;
    headrace_outputs& kept = into ? *into : **outputs;
    if (auto ran = model->model.run(views, kept.tensors, run); !ran) return fail(ran.error());
    kept.devices.clear();
    for (const headrace::Tensor& tensor : kept.tensors) kept.devices.push_back(device_text(tensor.device()));
    if (into) *outputs = into.release();
    return 0;
  });
}

void headrace_outputs_free(headrace_outputs* outputs) { delete outputs; }

std::uint64_t headrace_outputs_count(const headrace_outputs* outputs) {
  return outputs == nullptr ? 0 : outputs->tensors.size();
}

std::int32_t headrace_outputs_get(const headrace_outputs* outputs, std::uint64_t index,
                                  headrace_tensor* tensor) {
  if (!is_whole(tensor)) return fail(Code::invalid_argument, short_struct);
  if (index >= headrace_outputs_count(outputs))
    return fail(Code::invalid_argument, "there is no output " + std::to_string(index) + ": there are " +
                                            std::to_string(headrace_outputs_count(outputs)));
  const headrace::TensorView& view = outputs->tensors[index].view();
  tensor->data = view.data;
  tensor->dtype = dtype_name(view.dtype).data();
  tensor->device = outputs->devices[index].c_str();
  tensor->rank = static_cast<std::uint32_t>(view.shape.rank());
  tensor->has_strides = 0;
  std::memset(tensor->strides, 0, sizeof tensor->strides);
  std::memset(tensor->shape, 0, sizeof tensor->shape);
  std::copy(view.shape.begin(), view.shape.end(), tensor->shape);
  return 0;
}

std::int32_t headrace_model_replace_constant(headrace_model* model, const char* name,
                                             const headrace_tensor* value) {
  if (model == nullptr || name == nullptr || value == nullptr)
    return fail(Code::invalid_argument, "model, name or value is NULL");
  return guarded([&] {
    const auto view = headrace::view_of(*value);
    if (!view) return fail(view.error());
    const auto replaced = model->model.replace_constants({{name, *view}});
    return replaced ? 0 : fail(replaced.error());
  });
}

std::int32_t headrace_model_get_timing(const headrace_model* model, headrace_model_timing* timing) {
  if (model == nullptr || !is_whole(timing)) return fail(Code::invalid_argument, short_struct);
  const headrace::ModelTiming measured = model->model.timing();
  timing->load_ns = measured.load_ns;
  timing->unpack_ns = measured.unpack_ns;
  timing->runs = measured.run_ns.count;
  timing->run_mean_ns = measured.run_ns.mean();
  timing->run_p50_ns = measured.run_ns.percentile(50);
  timing->run_p99_ns = measured.run_ns.percentile(99);
  return 0;
}

std::int32_t headrace_model_get_memory(const headrace_model* model, headrace_model_memory* memory) {
  if (model == nullptr || !is_whole(memory)) return fail(Code::invalid_argument, short_struct);
  const headrace::ModelMemory measured = model->model.memory();
  memory->package_bytes = measured.package_bytes;
  memory->constant_bytes = measured.constant_bytes;
  memory->process_bytes = measured.process_bytes;
  memory->device_bytes = measured.device_bytes;
  memory->device_peak_bytes = measured.device_peak_bytes;
  memory->device_used_bytes = measured.device_used_bytes;
  return 0;
}
