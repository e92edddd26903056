// SPDX-License-Identifier: Apache-2.0
// The table of include/headrace/plugin/model_runtime_v1.h, filled in with libtorch.
#include <headrace/plugin/model_runtime_v1.h>

#include "bindings/torch/device_checks.hpp"
#include "bindings/torch/gpu_info.hpp"
#include "bindings/torch/guard.hpp"
#include "bindings/torch/loaded_model.hpp"
#include "bindings/torch/stream_scope.hpp"
#include "bindings/torch/tensors.hpp"
#include "bindings/torch/torch_version.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <memory>

namespace headrace::torch_runtime {
namespace {

LoadedModel& loaded(void* model) { return *static_cast<LoadedModel*>(model); }

c10::Device device_of(std::int32_t kind, std::int32_t index) {
  return kind == HEADRACE_CPU ? c10::Device(c10::DeviceType::CPU)
                              : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

void info(headrace_runtime_info_v1* info) {
  static const std::string capability = at::get_cpu_capability();
  const TorchVersions& versions = torch_versions();
  info->built_for = versions.built_for.c_str();
  info->built_accelerator = versions.built_accelerator.c_str();
  info->found = versions.found.c_str();
  info->found_accelerator = versions.found_accelerator.c_str();
  info->cpu_capability = capability.c_str();
  info->device_count = gpu_count();
}

std::int32_t device_info(std::int32_t index, headrace_device_info_v1* info, headrace_model_text_v1* error) {
  return guarded(error, [&] { return gpu_info(index, *info), Code::ok; });
}

void set_threads(std::int32_t count) { at::set_num_threads(count); }

std::int32_t open(const headrace_model_open_v1* args, void** model, headrace_model_text_v1* error) {
  return guarded(error, [&] { return *model = new LoadedModel(*args), Code::ok; });
}

void close(void* model) { delete &loaded(model); }

std::int32_t call_spec(void* model, headrace_model_text_v1* in, headrace_model_text_v1* out,
                       headrace_model_text_v1* error) {
  return guarded(error, [&] {
    const std::vector<std::string>& texts = loaded(model).call_spec();
    write(in, texts.empty() ? std::string() : texts[0]);
    write(out, texts.size() < 2 ? std::string() : texts[1]);
    return Code::ok;
  });
}

std::int32_t bind(void* model, std::uint64_t index, const headrace_tensor_v1* tensor,
                  headrace_model_text_v1* error) {
  return guarded(error, [&] { return loaded(model).bind(index, *tensor), Code::ok; });
}

std::int32_t run(void* model, void* stream, headrace_tensor_v1* outputs, std::uint64_t* count,
                 headrace_model_text_v1* error) {
  return guarded(error,
                 [&] { return loaded(model).run(stream, outputs, *count) ? Code::ok : Code::exhausted; });
}

std::int32_t constants(void* model, headrace_constant_v1 tell, void* context, headrace_model_text_v1* error) {
  return guarded(error, [&] { return loaded(model).constants(tell, context), Code::ok; });
}

std::int32_t replace_constants(void* model, std::uint64_t count, const char* const* names,
                               const headrace_tensor_v1* tensors, headrace_model_text_v1* error) {
  return guarded(error, [&] { return loaded(model).replace_constants(count, names, tensors), Code::ok; });
}

std::int32_t allocate(headrace_tensor_v1* tensor, headrace_model_text_v1* error) {
  return guarded(error, [&] {
    const c10::Device device = device_of(tensor->device_kind, tensor->device_index);
    const StreamScope scope(device, HEADRACE_MODEL_CURRENT_STREAM);
    give(at::empty(at::IntArrayRef(tensor->shape, tensor->rank),
                   at::TensorOptions().dtype(scalar_type(tensor->dtype)).device(device)),
         *tensor);
    return Code::ok;
  });
}

std::int32_t copy(const headrace_tensor_v1* to, const headrace_tensor_v1* from,
                  headrace_model_text_v1* error) {
  return guarded(error, [&] {
    const headrace_tensor_v1& gpu = from->device_kind == HEADRACE_CPU ? *to : *from;
    const StreamScope scope(device_of(gpu.device_kind, gpu.device_index), HEADRACE_MODEL_CURRENT_STREAM);
    borrow(*to).copy_(borrow(*from));
    scope.synchronize();  // torch itself waits only if one side is the host
    return Code::ok;
  });
}

std::int32_t synchronize(std::int32_t kind, std::int32_t index, void* stream, headrace_model_text_v1* error) {
  return guarded(error, [&] { return StreamScope(device_of(kind, index), stream).synchronize(), Code::ok; });
}

std::int32_t check(std::int32_t kind, std::int32_t index, std::uint64_t number, headrace_check_v1* check) {
  return static_cast<std::int32_t>(check_device(device_of(kind, index), number, *check) ? Code::ok
                                                                                        : Code::not_found);
}

constexpr headrace_model_runtime_v1 table{
    .struct_size = sizeof(headrace_model_runtime_v1),
    .abi_major = HEADRACE_MODEL_RUNTIME_ABI_MAJOR,
    .abi_minor = HEADRACE_MODEL_RUNTIME_ABI_MINOR,
    .info = info,
    .device_info = device_info,
    .set_threads = set_threads,
    .open = open,
    .close = close,
    .call_spec = call_spec,
    .bind = bind,
    .run = run,
    .release = release,
    .constants = constants,
    .replace_constants = replace_constants,
    .allocate = allocate,
    .copy = copy,
    .synchronize = synchronize,
    .check_device = check,
};

}  // namespace
}  // namespace headrace::torch_runtime

extern "C" HEADRACE_API const headrace_model_runtime_v1* headrace_model_runtime_v1_table() {
  return &headrace::torch_runtime::table;
}
