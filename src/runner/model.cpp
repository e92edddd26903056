// SPDX-License-Identifier: Apache-2.0
// The public face of models: wires the parts to libheadrace_torch.so.
#include <headrace/model.hpp>

#include "runner/machine.hpp"
#include "runner/model_core.hpp"
#include "runner/package_info.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace headrace {
namespace {

/// Loaded once in a process for each path: it is never unloaded, and loading libtorch takes about 100 ms.
Result<ModelRuntime> shared_runtime(const std::string& library) {
  static std::mutex mutex;
  static std::map<std::string, ModelRuntime> loaded;
  const std::scoped_lock lock(mutex);
  if (const auto found = loaded.find(library); found != loaded.end()) return found->second;
  HEADRACE_TRY(runtime, load_model_runtime(library));
  return loaded[library] = runtime;
}

}  // namespace

class Model::Impl {
 public:
  explicit Impl(std::unique_ptr<ModelCore> core) : core_(std::move(core)) {}
  ModelCore* operator->() const { return core_.get(); }

 private:
  std::unique_ptr<ModelCore> core_;
};

Model::Model(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Result<ModelInfo> Model::inspect(const std::string& path, const std::string& model_name) {
  HEADRACE_TRY(package, Package::open(path));
  return read_model_info(package, model_name, this_machine());
}

// By value, as the public interface has it.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Result<Model> Model::open(const std::string& path, ModelOptions options) {
  HEADRACE_TRY(
      core, ModelCore::open(
                path, options, [](const ModelSettings& settings) { return shared_runtime(settings.library); },
                Logger::process_default()));
  return Model(std::make_unique<Impl>(std::move(core)));
}

const ModelInfo& Model::info() const noexcept { return (*impl_)->info(); }

std::optional<std::size_t> Model::input_index(std::string_view name) const noexcept {
  const std::vector<TensorSpec>& inputs = info().inputs;
  const auto found = std::ranges::find(inputs, name, &TensorSpec::name);
  if (found == inputs.end()) return std::nullopt;
  return static_cast<std::size_t>(found - inputs.begin());
}

Result<std::vector<Tensor>> Model::run(std::span<const TensorView> inputs, const RunOptions& options) {
  std::vector<Tensor> outputs;
  HEADRACE_TRY_VOID((*impl_)->run(inputs, outputs, options));
  return outputs;
}

Result<void> Model::run(std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                        const RunOptions& options) {
  return (*impl_)->run(inputs, outputs, options);
}

Result<void> Model::wait(std::optional<void*> stream) const { return (*impl_)->wait(stream); }
Result<void> Model::check(std::span<const TensorView> inputs) const { return (*impl_)->check(inputs); }
Result<std::vector<ConstantInfo>> Model::constants() const { return (*impl_)->constants(); }
Result<void> Model::replace_constants(const std::map<std::string, TensorView>& values) {
  return (*impl_)->replace_constants(values);
}
Result<Tensor> Model::copy_to(const TensorView& tensor, Device device) {
  return (*impl_)->copy_to(tensor, device);
}
ModelTiming Model::timing() const { return (*impl_)->timing(); }
ModelMemory Model::memory() const { return (*impl_)->memory(); }

Result<ModelRuntimeInfo> model_runtime(const std::map<std::string, std::string>& options) {
  HEADRACE_TRY(settings, model_settings(options));
  HEADRACE_TRY(runtime, shared_runtime(settings.library));
  headrace_runtime_info_v1 info{};
  info.struct_size = sizeof info;
  runtime.table->info(&info);
  return ModelRuntimeInfo{runtime.library,        info.built_for,    info.built_accelerator, info.found,
                          info.found_accelerator, info.device_count, info.cpu_capability};
}

Result<std::vector<DeviceCheck>> check_device(Device device,
                                              const std::map<std::string, std::string>& options) {
  HEADRACE_TRY(settings, model_settings(options));
  HEADRACE_TRY(runtime, shared_runtime(settings.library));
  std::vector<DeviceCheck> checks;
  for (std::uint64_t index = 0;; ++index) {
    headrace_check_v1 check{};
    check.struct_size = sizeof check;
    if (runtime.table->check_device(static_cast<std::int32_t>(device.kind), device.index, index, &check) != 0)
      return checks;
    checks.push_back({check.name, check.passed != 0, check.detail, check.milliseconds});
  }
}

}  // namespace headrace
