// SPDX-License-Identifier: Apache-2.0
// From a picture to labels: a preprocessor for PPM files, a model, and a postprocessor that names the most
// likely classes.
//
//   image_labels MODEL.pt2 PICTURE.ppm [LABELS.txt]
//
// The model takes one float32 input [1, 3, height, width], with the channels normalised as for ImageNet, and
// returns logits [1, classes]. Convert PNG and JPEG to PPM with `convert picture.png picture.ppm` or a
// similar tool. Without arguments the program shows both steps on a generated picture, and needs no model.
#include <headrace/processor.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace {

using headrace::Code;
using headrace::Error;
using headrace::ModelInfo;
using headrace::Result;
using headrace::Tensor;

struct Picture {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
};

/// A binary PPM ("P6") with 8 bits a channel.
Result<Picture> read_ppm(const std::string& path) {
  constexpr int longest_side = 1 << 14;
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  Picture picture;
  int most = 0;
  if (!(file >> magic >> picture.width >> picture.height >> most) || magic != "P6" || most != 255)
    return Error{Code::corrupt,
                 path +
                     " is no PPM picture, which begins with P6, its width, its height and 255; others "
                     "become one by `convert picture.png picture.ppm` or the like"};
  if (picture.width < 1 || picture.height < 1 || picture.width > longest_side ||
      picture.height > longest_side)
    return Error{Code::corrupt, path + " claims to be " + std::to_string(picture.width) + " x " +
                                    std::to_string(picture.height)};
  file.get();
  picture.rgb.resize(static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.height) * 3);
  if (!file.read(reinterpret_cast<char*>(picture.rgb.data()),
                 static_cast<std::streamsize>(picture.rgb.size())))
    return Error{Code::corrupt, path + " ends before its last pixel"};
  return picture;
}

/// Scales to the model's size and normalises each channel.
class PictureToTensor final : public headrace::Preprocessor<Picture> {
 public:
  Result<std::vector<Tensor>> prepare(const Picture& picture, const ModelInfo& model) override {
    if (model.inputs.size() != 1 || model.inputs[0].shape.size() != 4)
      return Error{Code::invalid_argument,
                   "the model takes no picture: it has to have one input [1, 3, height, width]"};
    const auto height = model.inputs[0].shape[2].least, width = model.inputs[0].shape[3].least;
    auto tensor = Tensor::zeros(headrace::DType::float32, {1, 3, height, width});
    if (!tensor) return std::move(tensor).error();
    const auto elements = tensor->elements<float>();
    for (std::int64_t channel = 0, i = 0; channel < 3; ++channel)
      for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x, ++i)
          elements[static_cast<std::size_t>(i)] = value(picture, channel, y, x, height, width);
    std::vector<Tensor> inputs;
    inputs.push_back(std::move(*tensor));
    return inputs;
  }

 private:
  /// The nearest pixel, normalised by the mean and deviation of its channel.
  static float value(const Picture& picture, std::int64_t channel, std::int64_t y, std::int64_t x,
                     std::int64_t height, std::int64_t width) {
    constexpr std::array mean{0.485F, 0.456F, 0.406F}, deviation{0.229F, 0.224F, 0.225F};
    const auto row = y * picture.height / height, column = x * picture.width / width;
    const auto at = static_cast<std::size_t>((row * picture.width + column) * 3 + channel);
    const auto c = static_cast<std::size_t>(channel);
    return (static_cast<float>(picture.rgb[at]) / 255 - mean[c]) / deviation[c];
  }
};

struct Label {
  std::string name;
  double share = 0;
};

/// The five most likely classes. The shares of all classes add up to 1.
class LogitsToLabels final : public headrace::Postprocessor<std::vector<Label>> {
 public:
  explicit LogitsToLabels(std::vector<std::string> names) : names_(std::move(names)) {}

  Result<std::vector<Label>> read(std::span<const Tensor> outputs, const ModelInfo&) override {
    if (outputs.empty() || outputs[0].dtype() != headrace::DType::float32 || outputs[0].shape().count() == 0)
      return Error{Code::invalid_argument, "the model gives no float32 logits"};
    const auto logits = outputs[0].elements<float>();
    const float largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto shown = std::min<std::size_t>(5, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                      [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    std::vector<Label> labels;
    for (std::size_t i = 0; i < shown; ++i) {
      const std::size_t index = order[i];
      labels.push_back({index < names_.size() ? names_[index] : "class " + std::to_string(index),
                        std::exp(static_cast<double>(logits[index] - largest)) / sum});
    }
    return labels;
  }

 private:
  std::vector<std::string> names_;
};

std::vector<std::string> read_lines(const char* path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

void print(const std::vector<Label>& labels) {
  for (const Label& label : labels) std::printf("%5.1f %%  %s\n", label.share * 100, label.name.c_str());
}

/// Both steps without a model: a red picture, and the mean of each channel as its logit.
int show_steps() {
  const Picture red{2, 2, {255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0}};
  ModelInfo info;
  info.inputs.resize(1);
  for (const std::int64_t length : {1, 3, 4, 4}) info.inputs[0].shape.push_back({length, length, {}, {}});
  PictureToTensor before;
  LogitsToLabels behind({"red", "green", "blue"});
  auto inputs = before.prepare(red, info);
  if (!inputs) return fail(inputs.error());
  auto logits = Tensor::zeros(headrace::DType::float32, {1, 3});
  if (!logits) return fail(logits.error());
  const auto pixels = (*inputs)[0].elements<float>();
  for (std::size_t c = 0; c < 3; ++c)
    logits->elements<float>()[c] = std::accumulate(&pixels[c * 16], &pixels[c * 16] + 16, 0.0F) / 16;
  auto labels = behind.read(std::span(&*logits, 1), info);
  if (!labels) return fail(labels.error());
  print(*labels);
  return (*labels)[0].name == "red" ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return show_steps();
  if (argc < 3) return std::fprintf(stderr, "image_labels MODEL.pt2 PICTURE.ppm [LABELS.txt]\n"), 2;
  auto model = headrace::Model::open(argv[1]);
  if (!model) return fail(model.error());
  const auto picture = read_ppm(argv[2]);
  if (!picture) return fail(picture.error());
  PictureToTensor before;
  LogitsToLabels behind(argc > 3 ? read_lines(argv[3]) : std::vector<std::string>{});
  const auto labels = headrace::process<Picture, std::vector<Label>>(*model, before, behind, *picture);
  if (!labels) return fail(labels.error());
  print(*labels);
  return 0;
}
