// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/loaded_model.hpp"

#include "bindings/torch/stream_scope.hpp"
#include "bindings/torch/tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>

namespace headrace::torch_runtime {
namespace {

/// To OpenMP each of our threads is new and uses all cores, whatever number torch was given. torch corrects
/// that in its own parallel loops, but not before a matrix product, which asks OpenMP itself.
void enter_thread() {
  thread_local const bool entered = [] {
    at::init_num_threads();
    return true;
  }();
  static_cast<void>(entered);
}

/// The path for the loader. Earlier versions of torch cannot load a folder, and unpack the file themselves
/// into the temporary folder.
const char* package_path(const headrace_model_open_v1& args) {
#ifdef HEADRACE_TORCH_LOADS_FOLDERS
  return args.path;
#else
  TORCH_CHECK(args.archive != nullptr, "torch ", TORCH_VERSION,
              " cannot load a package from a folder: give the .pt2, or install torch 2.13");
  return args.archive;
#endif
}

}  // namespace

LoadedModel::LoadedModel(const headrace_model_open_v1& args)
    : device_(args.device_kind == HEADRACE_CPU
                  ? c10::Device(c10::DeviceType::CPU)
                  : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(args.device_index))) {
  const StreamScope scope(device_, HEADRACE_MODEL_CURRENT_STREAM);
  // Single-threaded runs take no lock inside torch: the host guarantees one caller.
  loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(
      package_path(args), args.model_name, /*run_single_threaded=*/true, /*num_runners=*/1,
      static_cast<c10::DeviceIndex>(device_.is_cpu() ? -1 : device_.index()));
  runner_ = loader_->get_runner();
  call_spec_ = runner_->get_call_spec();
}

void LoadedModel::bind(std::size_t index, const headrace_tensor_v1& tensor) {
  if (index >= inputs_.size()) inputs_.resize(index + 1);
  const bool absent = tensor.data == nullptr &&
                      std::find(tensor.shape, tensor.shape + tensor.rank, 0) == tensor.shape + tensor.rank;
  inputs_[index] = absent ? at::Tensor() : borrow(tensor);
}

bool LoadedModel::run(void* stream, headrace_tensor_v1* outputs, std::uint64_t& count) {
  if (waiting_.empty()) {
    enter_thread();
    // torch gets no stream as an argument: it uses the scope's, and so do the copies below.
    const StreamScope scope(device_, stream);
    waiting_ = runner_->run(inputs_, nullptr);
    for (at::Tensor& result : waiting_) result = owned(std::move(result));
  }
  const std::uint64_t room = count;
  count = waiting_.size();
  if (count > room) return false;
  std::vector<at::Tensor> results;
  results.swap(waiting_);  // emptied also if one cannot be described
  for (std::size_t i = 0; i < count; ++i) describe(results[i], outputs[i]);
  for (std::size_t i = 0; i < count; ++i) outputs[i].handle = results[i].unsafeReleaseTensorImpl();
  return true;
}

void LoadedModel::constants(headrace_constant_v1 tell, void* context) {
  for (const auto& [name, tensor] : runner_->extract_constants_map(/*use_inactive=*/false)) {
    headrace_tensor_v1 described;
    describe(tensor, described);
    tell(context, name.c_str(), &described);
  }
}

void LoadedModel::replace_constants(std::size_t count, const char* const* names,
                                    const headrace_tensor_v1* tensors) {
  const StreamScope scope(device_, HEADRACE_MODEL_CURRENT_STREAM);
  // torch copies the bytes in memory order and ignores strides: so values are first given the layout of the
  // current constants.
  const auto present = runner_->extract_constants_map(/*use_inactive=*/false);
  std::unordered_map<std::string, at::Tensor> values;
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor& now = present.at(names[i]);
    values[names[i]] = at::empty_strided(now.sizes(), now.strides(), now.options()).copy_(borrow(tensors[i]));
  }
  // In place: the host allows no run meanwhile, and weights are not held twice. The next run computes folded
  // constants again.
  loader_->load_constants(values, /*use_inactive=*/false, /*check_full_update=*/false,
                          /*user_managed=*/false);
  scope.synchronize();  // the next run may be on another stream
}

}  // namespace headrace::torch_runtime
