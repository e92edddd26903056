// SPDX-License-Identifier: Apache-2.0
// Reads and writes files of named tensors: .npy, .npz, .safetensors and .json. The command line names a
// model's inputs and outputs by such files.
#pragma once

#include <headrace/tensor.hpp>

#include "cli/common/output_file.hpp"

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

/// Reads all tensors of a file. The tensor of an .npy gets the file's name without ".npy".
///
/// JSON: {"x": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]}, "y": [[1.5, 2], [3, 4]]}. Without
/// a dtype a list of numbers is float32, of whole numbers int64, of true and false bool, unless `dtype_of`
/// gives another type for the name.
///   errors  not_found, corrupt, not_supported, invalid_argument: with the file's name
using DTypeOf = std::optional<DType> (*)(void* context, std::string_view name);
[[nodiscard]] Result<std::vector<NamedTensor>> read_tensors(const std::string& path,
                                                            DTypeOf dtype_of = nullptr,
                                                            void* context = nullptr);

struct NamedView {
  std::string name;
  TensorView view;  ///< in host memory, row-major
};

/// Writes all tensors; the file appears whole or not at all. An .npy takes one tensor.
///   errors  invalid_argument (unknown end of the file's name, a type that the format lacks, the file
///   exists),
///           exhausted
[[nodiscard]] Result<void> write_tensors(const std::string& path, std::span<const NamedView> tensors,
                                         IfTaken if_taken);

/// {"dtype": "float32", "shape": [2, 2], "data": [...]}.
[[nodiscard]] nlohmann::ordered_json tensor_json(const TensorView& view);

}  // namespace headrace::cli
