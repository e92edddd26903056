// SPDX-License-Identifier: Apache-2.0
// Everything that a package says of one of its models, put together from the places where it says it.
#pragma once

#include "runner/machine.hpp"
#include "runner/package.hpp"

#include <headrace/model.hpp>

namespace headrace {

/// Without libtorch, and without loading anything. `refusal` and `warnings` are about `machine`; the GPU is
/// looked at when the model is opened.
///   errors  invalid_argument (no model of that name: which there are), corrupt
[[nodiscard]] Result<ModelInfo> read_model_info(const Package& package, const std::string& model_name,
                                                const Machine& machine);

/// Whether the model takes just as many inputs as are described, or nothing is known of their number.
[[nodiscard]] bool input_count_known(const ModelInfo& info);

}  // namespace headrace
