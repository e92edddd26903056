// SPDX-License-Identifier: Apache-2.0
// An open model: the description of its package, the check of its inputs, its loaded copies, its
// measurements.
#pragma once

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "runner/input_check.hpp"
#include "runner/model_options.hpp"
#include "runner/package.hpp"
#include "runner/runner_pool.hpp"
#include "telemetry/histogram.hpp"
#include "vendor/torch/model_runtime.hpp"

#include <headrace/model.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

/// Thread-safe once open.
class ModelCore {
 public:
  /// Loads a runtime; called only after the package has passed its checks.
  using RuntimeSource = std::function<Result<ModelRuntime>(const ModelSettings& settings)>;

  [[nodiscard]] static Result<std::unique_ptr<ModelCore>> open(const std::string& path,
                                                               const ModelOptions& options,
                                                               const RuntimeSource& runtime, Logger& logger);

  [[nodiscard]] const ModelInfo& info() const noexcept { return info_; }
  [[nodiscard]] Result<void> check(std::span<const TensorView> inputs) const {
    const auto checked = check_.check(inputs);
    return checked ? check_.check_values(inputs) : checked;
  }
  [[nodiscard]] Result<void> run(std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                                 const RunOptions& options);
  [[nodiscard]] Result<void> wait(std::optional<void*> stream) const;
  [[nodiscard]] Result<std::vector<ConstantInfo>> constants();
  [[nodiscard]] Result<void> replace_constants(const std::map<std::string, TensorView>& values);
  [[nodiscard]] Result<Tensor> copy_to(const TensorView& tensor, Device device);
  [[nodiscard]] ModelTiming timing() const;
  [[nodiscard]] ModelMemory memory();

 private:
  ModelCore(ModelInfo info, const ModelRuntime& runtime, bool debug, Logger& logger);
  Result<void> load(const std::string& folder, const std::string& archive, std::size_t runners);
  Result<void> run_debug(Runner& runner, std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                         const RunOptions& options);
  Result<void> bind_and_run(Runner& runner, std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                            const RunOptions& options);
  void say(const char* what, std::span<const TensorSpec> specs, std::span<const TensorView> views);

  ModelInfo info_;
  const headrace_model_runtime_v1* table_;
  InputCheck check_;
  const bool debug_;
  int threads_ = 0;  ///< ModelOptions::threads
  ForkGuard fork_guard_;
  Log log_;
  std::unique_ptr<RunnerPool> pool_;
  Histogram run_ns_;
  ModelTiming load_timing_;
};

}  // namespace headrace
