// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/text_model.hpp"

#include "cli/errors.hpp"
#include "cli/tensor_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace headrace::cli::demo {
namespace {

constexpr std::array layer_weights{"attention_norm", "qkv", "attention_out", "mlp_norm", "gate_up", "down"};

Result<Model> open_piece(const std::string& folder, const char* piece) {
  ModelOptions options;
  options.device = "cpu";
  options.threads = 1;  // sums in one order in every process, and no cores taken from the others
  return Model::open(fmt::format("{}/{}.pt2", folder, piece), std::move(options));
}

/// In float32, whatever the file has.
Result<Tensor> widened(const TensorFile::Tensor& tensor) {
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
    return fail(Code::not_supported, "weight {} is {}: F32 and BF16 are read", tensor.info.name,
                tensor.info.type->name);
  }
  return wide;
}

/// Of the header's metadata: {"sizes": "{\"width\": 256, ...}"}.
Result<ModelSizes> read_sizes(std::span<const std::byte> header) {
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  const auto json = nlohmann::json::parse(text.substr(std::min<std::size_t>(8, text.size())), nullptr, false);
  const auto said =
      json.is_object() ? json.value("/__metadata__/sizes"_json_pointer, std::string()) : std::string();
  const auto sizes = nlohmann::json::parse(said, nullptr, false);
  ModelSizes found;
  const std::pair<const char*, std::int64_t*> wanted[] = {
      {"width", &found.width},           {"layers", &found.layers},         {"kv_heads", &found.kv_heads},
      {"head_width", &found.head_width}, {"vocabulary", &found.vocabulary}, {"context", &found.context}};
  for (const auto& [name, value] : wanted) {
    if (!sizes.is_object() || !sizes.contains(name) || !sizes[name].is_number_integer() || sizes[name] < 1)
      return fail(Code::corrupt,
                  "its metadata does not say the model's {}: is it the weights file of the demo's model?",
                  name);
    *value = sizes[name].get<std::int64_t>();
  }
  return found;
}

}  // namespace

Result<ModelSizes> read_model_sizes(const std::string& path) {
  HEADRACE_CLI_TRY(file, TensorFile::open(path));
  auto sizes = read_sizes(file.header());
  if (!sizes) return std::move(sizes).error().within(path);
  return sizes;
}

Result<TextModel> TextModel::open(const std::string& packages, const std::string& weights_file) {
  HEADRACE_CLI_TRY(embed, open_piece(packages, "embed"));
  HEADRACE_CLI_TRY(layer, open_piece(packages, "layer"));
  HEADRACE_CLI_TRY(head, open_piece(packages, "head"));
  TextModel model(std::move(embed), std::move(layer), std::move(head));
  if (auto loaded = model.load_weights(weights_file); !loaded)
    return std::move(loaded).error().within(weights_file);
  return model;
}

Result<void> TextModel::load_weights(const std::string& path) {
  HEADRACE_CLI_TRY(file, TensorFile::open(path));
  HEADRACE_CLI_TRY(sizes, read_sizes(file.header()));
  sizes_ = sizes;
  for (const TensorFile::Tensor& tensor : file.tensors()) {
    HEADRACE_CLI_TRY(wide, widened(tensor));
    weights_.emplace(tensor.info.name, std::move(wide));
  }
  HEADRACE_CLI_TRY(embedding, weight("embedding"));
  HEADRACE_CLI_TRY(norm, weight("norm"));
  embedding_ = embedding;
  norm_ = norm;
  for (std::int64_t i = 0; i < sizes_.layers; ++i) {
    std::vector<TensorView>& inputs = layers_.emplace_back();
    for (const char* name : layer_weights) {
      HEADRACE_CLI_TRY(view, weight(fmt::format("layers.{}.{}", i, name)));
      inputs.push_back(view);
    }
  }
  return {};
}

Result<TensorView> TextModel::weight(const std::string& name) const {
  const auto found = weights_.find(name);
  if (found == weights_.end()) return fail(Code::corrupt, "it has no weight \"{}\"", name);
  return found->second.view();
}

Result<void> TextModel::take(std::span<const std::int64_t> tokens, KvPool& pool, Sequence& sequence,
                             const std::function<Result<void>(std::int64_t)>& layer_done) {
  const std::size_t before = sequence.length();
  const auto page = static_cast<std::size_t>(pool.shape().page_tokens);
  for (std::size_t i = before; i < before + tokens.size(); ++i)
    sequence.slots.push_back(static_cast<std::int64_t>(sequence.pages[i / page] * page + i % page));

  TensorView ids;
  ids.data = tokens.data();
  ids.dtype = DType::int64;
  ids.shape = {static_cast<std::int64_t>(tokens.size())};
  HEADRACE_CLI_CHECK(embed_.run(std::vector{ids, embedding_}, embedded_));
  TensorView slots;
  slots.data = sequence.slots.data();
  slots.dtype = DType::int64;
  slots.shape = {static_cast<std::int64_t>(before)};
  const auto here = std::span(sequence.slots).subspan(before);

  std::vector<TensorView> inputs(3 + layer_weights.size());
  std::vector<Tensor> outputs;
  for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
    inputs[0] = layer == 0 ? embedded_.front().view() : x_.front().view();
    inputs[1] = pool.layer(layer);
    inputs[2] = slots;
    std::copy(layers_[static_cast<std::size_t>(layer)].begin(),
              layers_[static_cast<std::size_t>(layer)].end(), inputs.begin() + 3);
    HEADRACE_CLI_CHECK(layer_.run(inputs, outputs));
    pool.store(layer, here, outputs[1].elements<float>(), outputs[2].elements<float>());
    std::swap(x_, outputs);
    if (layer_done) HEADRACE_CLI_CHECK(layer_done(layer));
  }
  return {};
}

Result<std::span<const float>> TextModel::logits() {
  TensorView last = x_.front().view();
  const std::int64_t rows = last.shape[0];
  last.data = static_cast<const float*>(last.data) + (rows - 1) * sizes_.width;
  last.shape = {1, sizes_.width};
  last.strides = {};
  HEADRACE_CLI_CHECK(head_.run(std::vector{last, norm_, embedding_}, logits_));
  return std::as_const(logits_.front()).elements<float>();
}

Result<void> run_prompt(
    TextModel& model, std::span<const std::int64_t> prompt, std::size_t chunk_tokens, KvPool& pool,
    Sequence& sequence,
    const std::function<Result<void>(std::size_t, std::size_t, std::int64_t)>& layer_done) {
  for (std::size_t begin = 0; begin < prompt.size(); begin += chunk_tokens) {
    const std::size_t end = std::min(prompt.size(), begin + chunk_tokens);
    std::function<Result<void>(std::int64_t)> after;
    if (layer_done) after = [&](std::int64_t layer) { return layer_done(begin, end, layer); };
    HEADRACE_CLI_CHECK(model.take(prompt.subspan(begin, end - begin), pool, sequence, after));
  }
  return {};
}

Result<std::vector<std::int64_t>> generate_alone(TextModel& model, std::span<const std::int64_t> prompt,
                                                 std::size_t count, const Sampling& sampling,
                                                 std::size_t chunk_tokens, std::int64_t page_tokens) {
  const auto page = static_cast<std::size_t>(page_tokens);
  const std::size_t pages = (prompt.size() + count + page - 1) / page;
  KvPool pool = KvPool::alone(model.kv_shape(page_tokens, static_cast<std::int64_t>(pages)));
  Sequence sequence;
  sequence.pages = *pool.take(pages);
  HEADRACE_CLI_CHECK(run_prompt(model, prompt, chunk_tokens, pool, sequence));
  std::vector<std::int64_t> text;
  while (true) {
    HEADRACE_CLI_TRY(logits, model.logits());
    text.push_back(choose_token(logits, sampling, sequence.length()));
    if (text.size() == count) return text;
    HEADRACE_CLI_CHECK(model.take(std::span(text).last(1), pool, sequence));
  }
}

}  // namespace headrace::cli::demo
