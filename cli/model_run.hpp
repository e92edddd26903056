// SPDX-License-Identifier: Apache-2.0
// What infer, verify and doctor share: finding a model's inputs in files or making them up, running it,
// measuring.
#pragma once

#include <headrace/model.hpp>

#include "cli/command.hpp"
#include "cli/model_tensors.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace headrace::cli {

using ModelJson = nlohmann::ordered_json;

/// What the command line says of a model and its inputs.
struct ModelRequest {
  std::string path;
  ModelOptions options;
  std::vector<std::string> inputs;  ///< FILE, or NAME=FILE
  bool generate = false;
  std::uint64_t seed = 0;
  std::vector<std::string> dimensions;  ///< NAME=LENGTH
};

/// Adds the arguments that all of them take.
void add_model_arguments(const Command& command, ModelRequest& request);

/// The inputs of one run, in the model's order and on its device; they own their memory.
struct ModelInputs {
  std::vector<Tensor> tensors;
  [[nodiscard]] std::vector<TensorView> views() const { return {tensors.begin(), tensors.end()}; }
};

/// Reads them from the files, and makes up those that no file has if that is allowed.
///   errors  invalid_argument (an input that nobody gives, one that the model does not take: which there
///   are), and what
///           reading says
[[nodiscard]] Result<ModelInputs> gather_inputs(Model& model, const ModelRequest& request);

/// Outputs with their names, in host memory.
struct ModelOutputs {
  std::vector<Tensor> tensors;
  std::vector<NamedView> named;
};
[[nodiscard]] Result<ModelOutputs> bring_outputs(Model& model, std::vector<Tensor> outputs);

/// Type, shape and what the elements are like; few elements stand there themselves.
[[nodiscard]] ModelJson output_summary(const NamedView& output, bool whole);

/// {"least": ..., "mean": ..., "p50": ..., "p90": ..., "p99": ..., "most": ...} of nanoseconds, in
/// microseconds.
[[nodiscard]] ModelJson latency_json(std::vector<std::uint64_t> nanoseconds);

void print_json(const ModelJson& value);

}  // namespace headrace::cli
