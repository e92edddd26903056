// SPDX-License-Identifier: Apache-2.0
// Steps around a model: a preprocessor makes inputs of pictures or text, a postprocessor makes labels of
// outputs, and `process` runs all three.
#pragma once

#include <headrace/model.hpp>
#include <headrace/result.hpp>
#include <headrace/tensor.hpp>

#include <span>
#include <utility>
#include <vector>

namespace headrace {

/// Makes the inputs of one run from a value of the caller.
template <class From>
class Preprocessor {
 public:
  virtual ~Preprocessor() = default;
  /// The model's inputs in the model's order, in host memory. May be called from several threads at once.
  [[nodiscard]] virtual Result<std::vector<Tensor>> prepare(const From& from, const ModelInfo& model) = 0;
};

/// Makes the caller's result from the outputs of one run.
template <class To>
class Postprocessor {
 public:
  virtual ~Postprocessor() = default;
  /// `outputs` are in host memory, and valid during the call: copy what is kept. May be called from several
  /// threads at once.
  [[nodiscard]] virtual Result<To> read(std::span<const Tensor> outputs, const ModelInfo& model) = 0;
};

/// Prepares, runs, reads. Inputs are copied to the model's device, outputs to host memory.
///   owns     nothing: model, preprocessor and postprocessor must stay alive during the call
///   threads  any, as Model::run
///   errors   those of the three steps
template <class From, class To>
[[nodiscard]] Result<To> process(Model& model, Preprocessor<From>& before, Postprocessor<To>& behind,
                                 const From& from) {
  auto inputs = before.prepare(from, model.info());
  if (!inputs) return std::move(inputs).error();
  const bool on_gpu = model.info().device.kind != Device::Kind::cpu;
  std::vector<TensorView> views;
  for (Tensor& input : *inputs) {
    if (on_gpu) {
      auto moved = model.copy_to(input, model.info().device);
      if (!moved) return std::move(moved).error();
      input = std::move(*moved);
    }
    views.push_back(input.view());
  }
  auto outputs = model.run(views);
  if (!outputs) return std::move(outputs).error();
  for (Tensor& output : *outputs) {
    if (!on_gpu) break;
    auto moved = model.copy_to(output, Device{});
    if (!moved) return std::move(moved).error();
    output = std::move(*moved);
  }
  return behind.read(*outputs, model.info());
}

}  // namespace headrace
