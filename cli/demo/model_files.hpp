// SPDX-License-Identifier: Apache-2.0
// The files of the demo's language model: compiled packages, weights and sizes.
#pragma once

#include <headrace/model.hpp>

#include <array>
#include <map>
#include <span>
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
  std::int64_t experts = 0, top_k = 0;  ///< of each layer, and those of a token; 0: the model has none
};

/// Reads the sizes from the weights file, or from sizes.json in the packages' folder if there is no such
/// file.
///   errors  not_found, corrupt
Result<ModelSizes> read_model_sizes(const ModelFiles& files);

/// The weights of a layer, in the order in which its packages take them.
inline constexpr std::array layer_weights{"attention_norm", "qkv",     "attention_out",
                                          "mlp_norm",       "gate_up", "down"};
/// The same of a layer with experts. The matrices of its experts lie one after another.
inline constexpr std::array expert_layer_weights{"attention_norm", "qkv",     "attention_out", "mlp_norm",
                                                 "router",         "gate_up", "down"};
[[nodiscard]] std::span<const char* const> weights_of_layer(const ModelSizes& sizes);
/// The name of layer i's weight in the file: "layers.3.qkv".
[[nodiscard]] std::string layer_weight_name(std::int64_t layer, const char* weight);

using NamedTensors = std::map<std::string, Tensor>;
/// Reads all weights of a file as float32 tensors in host memory.
///   errors  those of reading the file; not_supported (a type other than F32 and BF16)
Result<NamedTensors> read_weights(const std::string& file);
///   errors  corrupt (there is none of that name)
Result<TensorView> find_weight(const NamedTensors& weights, const std::string& name);

///   errors  as find_weight
Result<Tensor> copy_weight(const NamedTensors& weights, const std::string& name);

/// Opens FOLDER/PIECE.pt2.
Result<Model> open_piece(const std::string& folder, const std::string& piece, const std::string& device);
/// The same for the CPU, of a package that only some exports make.
///   made_by  the options of the export that makes it
///   errors   not_found (there is no such package: the command that makes it)
Result<Model> open_part(const std::string& folder, const std::string& piece, const std::string& made_by);

}  // namespace headrace::cli::demo
