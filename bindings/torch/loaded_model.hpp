// SPDX-License-Identifier: Apache-2.0
// One loaded package, for one caller at a time.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace headrace::torch_runtime {

/// Throws torch's exceptions.
class LoadedModel {
 public:
  explicit LoadedModel(const headrace_model_open_v1& args);

  [[nodiscard]] const std::vector<std::string>& call_spec() const { return call_spec_; }
  void bind(std::size_t index, const headrace_tensor_v1& tensor);
  /// Fills in the outputs; false: there are more than `count`, which becomes their number.
  ///   stream  of the model's GPU; HEADRACE_MODEL_CURRENT_STREAM: this thread's
  [[nodiscard]] bool run(void* stream, headrace_tensor_v1* outputs, std::uint64_t& count);
  void constants(headrace_constant_v1 tell, void* context);
  void replace_constants(std::size_t count, const char* const* names, const headrace_tensor_v1* tensors);

 private:
  const c10::Device device_;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
  torch::inductor::AOTIModelContainerRunner* runner_ = nullptr;
  std::vector<std::string> call_spec_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> waiting_;  ///< outputs of a run for which the caller had no room
};

}  // namespace headrace::torch_runtime
