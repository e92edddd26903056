// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/text_model.hpp"

#include "cli/common/errors.hpp"

#include <algorithm>

namespace headrace::cli::demo {
namespace {

/// Options of a run that does not wait: the next run is in the same stream, so it sees the outputs.
constexpr RunOptions queued{std::nullopt, /*synchronize=*/false};

TensorView numbers(std::span<const std::int64_t> values) {
  return {values.data(), DType::int64, {static_cast<std::int64_t>(values.size())}, {}, {}};
}

}  // namespace

Result<TextModel> TextModel::open(const ModelFiles& files, const std::string& device) {
  HEADRACE_CLI_TRY(embed, open_piece(files.packages, "embed", device));
  HEADRACE_CLI_TRY(layer, open_piece(files.packages, "layer", device));
  HEADRACE_CLI_TRY(head, open_piece(files.packages, "head", device));
  HEADRACE_CLI_TRY(store, open_piece(files.packages, "store", device));
  TextModel model(std::move(embed), std::move(layer), std::move(head), std::move(store));
  HEADRACE_CLI_TRY(sizes, read_model_sizes(files));
  model.sizes_ = sizes;
  const bool random = files.weights.empty();
  Result<void> filled = random ? model.make_weights(files) : model.take_weights(files.weights);
  if (filled) filled = model.find_weights();
  if (!filled) return std::move(filled).error().within(random ? files.packages : files.weights);
  return model;
}

KvShape TextModel::kv_shape(std::int64_t page_tokens, std::int64_t pages) const {
  const DType dtype = layer_.info().inputs.at(1).dtype.value_or(DType::float32);
  return {sizes_.layers, sizes_.kv_heads, sizes_.head_width, page_tokens, pages, dtype};
}

Result<void> TextModel::take_weights(const std::string& path) {
  HEADRACE_CLI_TRY(weights, read_weights(path));
  weights_ = std::move(weights);
  if (device().kind == Device::Kind::cpu) return {};
  for (auto& [name, weight] : weights_) {
    HEADRACE_CLI_TRY(there, placed(weight));
    weight = std::move(there);
  }
  return {};
}

/// Makes layer i from seed i + 1, and embedding and norm from seed 0.
Result<void> TextModel::make_weights(const ModelFiles& files) {
  const std::string device = device_text(this->device());
  HEADRACE_CLI_TRY(random_layer, open_piece(files.packages, "random_layer", device));
  HEADRACE_CLI_TRY(random_ends, open_piece(files.packages, "random_ends", device));
  const auto outputs = [&](Model& piece, std::int64_t seed) -> Result<std::vector<Tensor>> {
    HEADRACE_CLI_TRY(there, placed(numbers(std::span(&seed, 1))));
    return piece.run(std::vector<TensorView>{there});
  };
  HEADRACE_CLI_TRY(ends, outputs(random_ends, 0));
  weights_.emplace("embedding", std::move(ends.at(0)));
  weights_.emplace("norm", std::move(ends.at(1)));
  for (std::int64_t i = 0; i < sizes_.layers; ++i) {
    HEADRACE_CLI_TRY(made, outputs(random_layer, i + 1));
    const auto names = weights_of_layer(sizes_);
    for (std::size_t k = 0; k < names.size(); ++k)
      weights_.emplace(layer_weight_name(i, names[k]), std::move(made.at(k)));
  }
  return {};
}

Result<void> TextModel::find_weights() {
  HEADRACE_CLI_TRY(embedding, find_weight(weights_, "embedding"));
  HEADRACE_CLI_TRY(norm, find_weight(weights_, "norm"));
  embedding_ = embedding;
  norm_ = norm;
  for (std::int64_t i = 0; i < sizes_.layers; ++i) {
    std::vector<TensorView>& inputs = layers_.emplace_back();
    for (const char* name : weights_of_layer(sizes_)) {
      HEADRACE_CLI_TRY(view, find_weight(weights_, layer_weight_name(i, name)));
      inputs.push_back(view);
    }
  }
  return {};
}

/// On the CPU a tensor that refers to `host`; on a GPU a copy of it.
Result<Tensor> TextModel::placed(const TensorView& host) {
  if (device().kind == Device::Kind::cpu) return Tensor(host, nullptr, nullptr);
  return layer_.copy_to(host, device());
}

Result<void> TextModel::take(std::span<const std::int64_t> tokens, KvPool& pool, Sequence& sequence,
                             const std::function<Result<void>(std::int64_t)>& layer_done) {
  const std::size_t before = sequence.length();
  sequence.add_slots(tokens.size(), pool.shape());

  HEADRACE_CLI_TRY(ids, placed(numbers(tokens)));
  HEADRACE_CLI_TRY(earlier, placed(numbers(std::span(sequence.slots).first(before))));
  HEADRACE_CLI_TRY(here, placed(numbers(std::span(sequence.slots).subspan(before))));
  HEADRACE_CLI_CHECK(embed_.run(std::vector<TensorView>{ids, embedding_}, embedded_, queued));

  const RunOptions stored{std::nullopt, /*synchronize=*/layer_done != nullptr};
  std::vector<TensorView> inputs(3 + weights_of_layer(sizes_).size());
  std::vector<Tensor> outputs;
  for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
    inputs[0] = layer == 0 ? embedded_.front().view() : x_.front().view();
    inputs[1] = pool.layer(layer);
    inputs[2] = earlier;
    std::copy(layers_[static_cast<std::size_t>(layer)].begin(),
              layers_[static_cast<std::size_t>(layer)].end(), inputs.begin() + 3);
    HEADRACE_CLI_CHECK(layer_.run(inputs, outputs, queued));
    HEADRACE_CLI_CHECK(
        store_.run(std::vector<TensorView>{inputs[1], here, outputs[1], outputs[2]}, nothing_, stored));
    std::swap(x_, outputs);
    if (layer_done) HEADRACE_CLI_CHECK(layer_done(layer));
  }
  return {};
}

Result<std::span<const float>> TextModel::logits() {
  TensorView last = x_.front().view();
  const std::int64_t rows = last.shape[0];
  last.data = static_cast<const std::byte*>(last.data) +
              static_cast<std::size_t>((rows - 1) * sizes_.width) * element_bytes(last.dtype);
  last.shape = {1, sizes_.width};
  last.strides = {};
  HEADRACE_CLI_CHECK(head_.run(std::vector<TensorView>{last, norm_, embedding_}, logits_, queued));
  Tensor& made = logits_.front();
  if (made.device().kind != Device::Kind::cpu) {
    HEADRACE_CLI_TRY(host, head_.copy_to(made, Device{}));
    made = std::move(host);
  }
  host_logits_.resize(static_cast<std::size_t>(made.shape().count()));
  for (std::size_t i = 0; i < host_logits_.size(); ++i)
    host_logits_[i] =
        static_cast<float>(read_element(made.data(), made.dtype(), static_cast<std::int64_t>(i)));
  return std::span<const float>(host_logits_);
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

Result<BegunText> begin_alone(TextModel& model, std::span<const std::int64_t> prompt, std::size_t count,
                              const Sampling& sampling, std::size_t chunk_tokens, std::int64_t page_tokens) {
  const auto page = static_cast<std::size_t>(page_tokens);
  const std::size_t pages = (prompt.size() + count + page - 1) / page;
  HEADRACE_CLI_TRY(
      pool, KvPool::alone(model.kv_shape(page_tokens, static_cast<std::int64_t>(pages)), model.device()));
  Sequence sequence;
  sequence.pages = *pool.take(pages);
  HEADRACE_CLI_CHECK(run_prompt(model, prompt, chunk_tokens, pool, sequence));
  HEADRACE_CLI_TRY(logits, model.logits());
  const std::int64_t first = choose_token(logits, sampling, sequence.length());
  return BegunText{std::move(pool), std::move(sequence), first};
}

Result<std::vector<std::int64_t>> generate_alone(TextModel& model, std::span<const std::int64_t> prompt,
                                                 std::size_t count, const Sampling& sampling,
                                                 std::size_t chunk_tokens, std::int64_t page_tokens) {
  HEADRACE_CLI_TRY(begun, begin_alone(model, prompt, count, sampling, chunk_tokens, page_tokens));
  std::vector<std::int64_t> text{begun.first};
  while (text.size() < count) {
    HEADRACE_CLI_CHECK(model.take(std::span(text).last(1), begun.pool, begun.sequence));
    HEADRACE_CLI_TRY(logits, model.logits());
    text.push_back(choose_token(logits, sampling, begun.sequence.length()));
  }
  return text;
}

}  // namespace headrace::cli::demo
