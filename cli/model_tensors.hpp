// SPDX-License-Identifier: Apache-2.0
// Tensors by name, from and to files: .npy, .npz, .safetensors and .json. What a model takes and gives on the
// command line.
#pragma once

#include <headrace/tensor.hpp>

#include "cli/output_file.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// All tensors of a file. The one of an .npy has the file's name without its end.
///
/// JSON: {"x": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]}, "y": [[1.5, 2], [3, 4]]}; lists
/// of numbers are float32, of whole ones int64, of true and false bool. `dtype_of` may know better.
///   errors  not_found, corrupt, not_supported, invalid_argument: with the file's name
using DTypeOf = std::optional<DType> (*)(void* context, std::string_view name);
[[nodiscard]] Result<std::vector<NamedTensor>> read_tensors(const std::string& path,
                                                            DTypeOf dtype_of = nullptr,
                                                            void* context = nullptr);

struct NamedView {
  std::string name;
  TensorView view;  ///< in host memory, row-major
};

/// Writes them all, the file appearing whole or not at all. An .npy takes one.
///   errors  invalid_argument (a name's end that is not known, a type that the format lacks, a name that is
///           taken), exhausted
[[nodiscard]] Result<void> write_tensors(const std::string& path, std::span<const NamedView> tensors,
                                         IfTaken if_taken);

/// {"dtype": "float32", "shape": [2, 2], "data": [...]}.
[[nodiscard]] nlohmann::ordered_json tensor_json(const TensorView& view);

}  // namespace headrace::cli
