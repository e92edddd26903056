// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/model_files.hpp"

#include "cli/common/errors.hpp"
#include "formats/tensor_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

namespace headrace::cli::demo {
namespace {

/// Converts a tensor of the file to float32.
Result<Tensor> widened(const formats::TensorFile::Tensor& tensor) {
  std::vector<std::int64_t> lengths(tensor.info.shape.begin(), tensor.info.shape.end());
  HEADRACE_CLI_TRY(wide, Tensor::zeros(DType::float32, Shape(std::span<const std::int64_t>(lengths))));
  const std::span<float> to = wide.elements<float>();
  if (tensor.info.type->name == "F32") {
    std::memcpy(to.data(), tensor.bytes.data(), tensor.bytes.size());
  } else if (tensor.info.type->name == "BF16") {
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::uint16_t half = 0;  // the upper half of a float32
      std::memcpy(&half, tensor.bytes.data() + 2 * i, sizeof half);
      to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
    }
  } else {
    return fail(Code::not_supported, "weight {} has type {}: only F32 and BF16 are supported",
                tensor.info.name, tensor.info.type->name);
  }
  return wide;
}

Result<ModelSizes> sizes_of(const nlohmann::json& sizes) try {
  ModelSizes found;
  const std::pair<const char*, std::int64_t*> wanted[] = {
      {"width", &found.width},           {"layers", &found.layers},         {"kv_heads", &found.kv_heads},
      {"head_width", &found.head_width}, {"vocabulary", &found.vocabulary}, {"context", &found.context}};
  for (const auto& [name, value] : wanted) {
    if (!sizes.is_object() || !sizes.contains(name) || !sizes[name].is_number_integer() || sizes[name] < 1)
      return fail(Code::corrupt, "it does not give the model's {}: check that it belongs to the demo's model",
                  name);
    *value = sizes[name].get<std::int64_t>();
  }
  found.experts = sizes.value("experts", std::int64_t{0});
  found.top_k = sizes.value("top_k", std::int64_t{0});
  if (found.experts < 0 || found.top_k < 0 || found.top_k > found.experts ||
      (found.experts > 0 && found.top_k == 0))
    return fail(Code::corrupt, "it says that a token uses {} of {} experts", found.top_k, found.experts);
  return found;
} catch (const nlohmann::json::exception& error) {
  return fail(Code::corrupt, "it gives other sizes than numbers: {}", error.what());
}

/// Reads the header's metadata: {"sizes": "{\"width\": 256, ...}"}.
Result<ModelSizes> sizes_in_header(std::span<const std::byte> header) {
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  const auto json = nlohmann::json::parse(text.substr(std::min<std::size_t>(8, text.size())), nullptr, false);
  const auto said =
      json.is_object() ? json.value("/__metadata__/sizes"_json_pointer, std::string()) : std::string();
  return sizes_of(nlohmann::json::parse(said, nullptr, false));
}

Result<ModelSizes> sizes_in_folder(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, "it cannot be read: {}", system_text());
  return sizes_of(nlohmann::json::parse(file, nullptr, false));
}

}  // namespace

Result<ModelSizes> read_model_sizes(const ModelFiles& files) {
  const bool random = files.weights.empty();
  const std::string path = random ? files.packages + "/sizes.json" : files.weights;
  const auto read = [&]() -> Result<ModelSizes> {
    if (random) return sizes_in_folder(path);
    HEADRACE_CLI_TRY(file, formats::TensorFile::open(path));
    return sizes_in_header(file.header());
  };
  auto sizes = read();
  if (!sizes) return std::move(sizes).error().within(path);
  return sizes;
}

std::span<const char* const> weights_of_layer(const ModelSizes& sizes) {
  if (sizes.experts > 0) return expert_layer_weights;
  return layer_weights;
}

std::string layer_weight_name(std::int64_t layer, const char* weight) {
  return fmt::format("layers.{}.{}", layer, weight);
}

Result<NamedTensors> read_weights(const std::string& path) {
  HEADRACE_CLI_TRY(file, formats::TensorFile::open(path));
  NamedTensors weights;
  for (const formats::TensorFile::Tensor& tensor : file.tensors()) {
    HEADRACE_CLI_TRY(wide, widened(tensor));
    weights.emplace(tensor.info.name, std::move(wide));
  }
  return weights;
}

Result<TensorView> find_weight(const NamedTensors& weights, const std::string& name) {
  const auto found = weights.find(name);
  if (found == weights.end()) return fail(Code::corrupt, "it has no weight \"{}\"", name);
  return found->second.view();
}

Result<Tensor> copy_weight(const NamedTensors& weights, const std::string& name) {
  HEADRACE_CLI_TRY(view, find_weight(weights, name));
  return Tensor::copy_of(view);
}

Result<Model> open_piece(const std::string& folder, const std::string& piece, const std::string& device) {
  ModelOptions options;
  options.device = device;
  options.threads = 1;  // every process adds in the same order, and leaves the other cores free
  return Model::open(fmt::format("{}/{}.pt2", folder, piece), std::move(options));
}

Result<Model> open_part(const std::string& folder, const std::string& piece, const std::string& made_by) {
  std::error_code error;
  if (!std::filesystem::exists(fmt::format("{}/{}.pt2", folder, piece), error))
    return fail(Code::not_found,
                "there is no package {}.pt2 in {}: make it by `python -m headrace.demo_model.export {} "
                "--output {}`",
                piece, folder, made_by, folder);
  return open_piece(folder, piece, "cpu");
}

}  // namespace headrace::cli::demo
