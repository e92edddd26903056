// SPDX-License-Identifier: Apache-2.0
// The files of the demo's language model: compiled packages, weights and sizes.
#pragma once

#include <headrace/model.hpp>

#include <array>
#include <map>
#include <string>

namespace headrace::cli::demo {

/// The files of a model.
struct ModelFiles {
  std::string packages;  ///< folder of embed.pt2, layer.pt2, head.pt2, store.pt2
  /// A safetensors file, bf16 or f32. Empty: random_layer.pt2 and random_ends.pt2 of the folder make the
  /// weights on the device, the same in every process.
  std::string weights;
};

struct ModelSizes {
  std::int64_t width = 0, layers = 0, kv_heads = 0, head_width = 0, vocabulary = 0, context = 0;
};

/// Reads the sizes from the weights file, or from sizes.json in the packages' folder if there is no such
/// file.
///   errors  not_found, corrupt
Result<ModelSizes> read_model_sizes(const ModelFiles& files);

/// The weights of a layer, in the order in which its packages take them.
inline constexpr std::array layer_weights{"attention_norm", "qkv",     "attention_out",
                                          "mlp_norm",       "gate_up", "down"};
/// The name of layer i's weight in the file: "layers.3.qkv".
[[nodiscard]] std::string layer_weight_name(std::int64_t layer, const char* weight);

using NamedTensors = std::map<std::string, Tensor>;
/// Reads all weights of a file as float32 tensors in host memory.
///   errors  those of reading the file; not_supported (a type other than F32 and BF16)
Result<NamedTensors> read_weights(const std::string& file);
///   errors  corrupt (there is none of that name)
Result<TensorView> find_weight(const NamedTensors& weights, const std::string& name);

/// Opens FOLDER/PIECE.pt2.
Result<Model> open_piece(const std::string& folder, const std::string& piece, const std::string& device);

}  // namespace headrace::cli::demo
