// SPDX-License-Identifier: Apache-2.0
// The complete description of a model, collected from all places in its package.
#pragma once

#include "runner/machine.hpp"
#include "runner/package.hpp"

#include <headrace/model.hpp>

namespace headrace {

/// Reads it without libtorch and without loading code. `refusal` and `warnings` are about `machine`; the GPU
/// is checked when the model is opened.
///   errors  invalid_argument (no model of that name: which there are), corrupt
[[nodiscard]] Result<ModelInfo> read_model_info(const Package& package, const std::string& model_name,
                                                const Machine& machine);

/// Whether the model has exactly the described inputs; false if their number is unknown.
[[nodiscard]] bool input_count_known(const ModelInfo& info);

}  // namespace headrace
