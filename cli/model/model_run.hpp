// SPDX-License-Identifier: Apache-2.0
// Shared by infer, verify and doctor: reads or generates a model's inputs, summarizes its outputs and times.
#pragma once

#include <headrace/model.hpp>

#include "cli/common/arguments.hpp"
#include "cli/model/model_tensors.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace headrace::cli {

using ModelJson = nlohmann::ordered_json;

/// The arguments that name a model and its inputs.
struct ModelRequest {
  std::string path;
  ModelOptions options;
  std::vector<std::string> inputs;  ///< FILE, or NAME=FILE
  bool generate = false;
  std::uint64_t seed = 0;
  std::vector<std::string> dimensions;  ///< NAME=LENGTH
};

/// Adds the arguments that infer and verify share.
void add_model_arguments(const Command& command, ModelRequest& request);

/// Checks the names of the inputs in the files, by the package's description: before the model is loaded,
/// which takes long.
///   errors  those of Model::inspect and of reading a file, invalid_argument (an input is not the model's)
[[nodiscard]] Result<void> check_input_names(const ModelRequest& request);

/// The inputs of one run, in the model's order and on its device; they own their memory.
struct ModelInputs {
  std::vector<Tensor> tensors;
  [[nodiscard]] std::vector<TensorView> views() const { return {tensors.begin(), tensors.end()}; }
};

/// Reads the inputs from the files, and generates those that no file has if `request.generate` is set.
///   errors  invalid_argument (an input is missing, or is not one of the model's), those of reading a file
[[nodiscard]] Result<ModelInputs> gather_inputs(Model& model, const ModelRequest& request);

/// Outputs with their names, in host memory.
struct ModelOutputs {
  std::vector<Tensor> tensors;
  std::vector<NamedView> named;
};
[[nodiscard]] Result<ModelOutputs> bring_outputs(Model& model, std::vector<Tensor> outputs);

/// Type, shape, least, most and mean of an output. With `whole`, or up to 16 elements, the elements too.
[[nodiscard]] ModelJson output_summary(const NamedView& output, bool whole);

/// {"least": ..., "mean": ..., "p50": ..., "p90": ..., "p99": ..., "most": ...} in microseconds.
[[nodiscard]] ModelJson latency_json(std::vector<std::uint64_t> nanoseconds);

void print_json(const ModelJson& value);

}  // namespace headrace::cli
