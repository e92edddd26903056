// SPDX-License-Identifier: Apache-2.0
// What stands before a model and behind it: pictures or text into its inputs, its outputs into labels. One
// small interface each, and a pipeline that holds the three together.
#pragma once

#include <headrace/model.hpp>
#include <headrace/result.hpp>
#include <headrace/tensor.hpp>

#include <span>
#include <utility>
#include <vector>

namespace headrace {

/// Makes the inputs of one run out of whatever the caller has.
template <class From>
class Preprocessor {
 public:
  virtual ~Preprocessor() = default;
  /// The model's inputs in its order, in host memory. May be called from several threads at once.
  [[nodiscard]] virtual Result<std::vector<Tensor>> prepare(const From& from, const ModelInfo& model) = 0;
};

/// Makes what the caller wants out of the outputs of one run.
template <class To>
class Postprocessor {
 public:
  virtual ~Postprocessor() = default;
  /// `outputs` are in host memory and may be kept only by copying. May be called from several threads at
  /// once.
  [[nodiscard]] virtual Result<To> read(std::span<const Tensor> outputs, const ModelInfo& model) = 0;
};

/// Prepares, runs, reads. Inputs go to the model's device and outputs come back to host memory. The three
/// must outlive it.
///   threads  any, as the model's run
///   errors   what the three answer
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
