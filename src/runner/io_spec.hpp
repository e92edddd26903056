// SPDX-License-Identifier: Apache-2.0
// The description of inputs and outputs that Headrace's export writes into a package: extra/headrace.json.
//
//   {"headrace_io": 1, "headrace": "0.1.0", "torch": "2.13.0+cpu", "device": "cpu",
//    "inputs":  [{"name": "x", "dtype": "float32", "shape": [{"name": "batch", "min": 1, "max": 64}, 256],
//                 "strides": null, "optional": false, "values": {"min": 0, "max": 255}}],
//    "outputs": [{"name": "logits", "dtype": "float32",
//                 "shape": [{"name": "batch", "min": 1, "max": 64}, 10]}],
//    "mutated": []}
//
// A dimension is a length, a named range (max null: no bound), or {"expr": "2*batch"} if it follows from
// others. "values" is there if the model uses the values as indices, and their range is known.
#pragma once

#include "base/errors.hpp"

#include <headrace/model.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// The description of a model's inputs and outputs, from any source.
struct IoSpec {
  SpecSource source = SpecSource::nothing;
  std::vector<TensorSpec> inputs, outputs;
  std::string torch_version, headrace_version;
};

/// Parses the description. Ignores unknown keys; known keys must be right.
///   errors  corrupt (what is wrong, and where), not_supported (a later form)
[[nodiscard]] Result<IoSpec> read_io_spec(std::string_view json);

}  // namespace headrace
