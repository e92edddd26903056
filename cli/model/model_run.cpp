// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_run.hpp"

#include "cli/common/errors.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/text.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>

namespace headrace::cli {
namespace {

constexpr std::int64_t most_shown = 16;
constexpr std::int64_t usual_length = 8;  // of a dynamic dimension, if its bounds allow it

/// Splits NAME=VALUE. Without "=" the name is empty.
std::pair<std::string, std::string> split(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {"", text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Result<std::map<std::string, std::int64_t>> read_dimensions(const std::vector<std::string>& texts) {
  std::map<std::string, std::int64_t> lengths;
  for (const std::string& text : texts) {
    const auto [name, value] = split(text);
    std::int64_t length = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
    if (name.empty() || error != std::errc() || end != value.data() + value.size() || length < 0)
      return fail(Code::invalid_argument, "--dim {}: write it as name=length, for example --dim batch=4",
                  text);
    if (!lengths.emplace(name, length).second)
      return fail(Code::invalid_argument, "--dim {} is given twice", name);
  }
  return lengths;
}

std::string names_of(const std::vector<TensorSpec>& specs) {
  std::string names;
  for (const TensorSpec& spec : specs) names.append(names.empty() ? "" : ", ").append(spec.name);
  return names.empty() ? "none" : names;
}

/// Checks that each length of --dim names a dimension of some input and is within the bounds of every input
/// that has it. Done before memory of that length is allocated.
Result<void> check_lengths(const std::map<std::string, std::int64_t>& wanted,
                           const std::vector<TensorSpec>& specs) {
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    for (const DimensionSpec& dimension : spec.shape) {
      if (dimension.name.empty() || !dimension.expression.empty()) continue;
      names.insert(dimension.name);
      const auto found = wanted.find(dimension.name);
      if (found == wanted.end()) continue;
      const auto [name, length] = *found;
      if (length < dimension.least)
        return fail(Code::invalid_argument, "--dim {}={}: in input {} it must be at least {}, and is {}",
                    name, length, spec.name, dimension.least, length);
      if (dimension.most && length > *dimension.most)
        return fail(Code::invalid_argument, "--dim {}={}: in input {} it must be at most {}, and is {}", name,
                    length, spec.name, *dimension.most, length);
    }
  }
  for (const auto& [name, length] : wanted)
    if (!names.contains(name))
      return fail(Code::invalid_argument, "--dim {}={}: no input has a dimension of that name; there are: {}",
                  name, length, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  return {};
}

using Given = std::map<std::string, Tensor>;

Result<void> check_names(const Given& given, const std::vector<TensorSpec>& specs) {
  for (const auto& [name, tensor] : given)
    if (std::ranges::find(specs, name, &TensorSpec::name) == specs.end())
      return fail(Code::invalid_argument,
                  "the model has no input {}: it takes {}; --input NAME=FILE gives the tensor of a file "
                  "another name",
                  name, names_of(specs));
  return {};
}

std::optional<DType> type_in(void* specs, std::string_view name) {
  for (const TensorSpec& spec : *static_cast<const std::vector<TensorSpec>*>(specs))
    if (spec.name == name) return spec.dtype;
  return std::nullopt;
}

/// Reads the input files. NAME=FILE gives the only tensor of a file another name.
Result<Given> read_given(const std::vector<std::string>& files, const std::vector<TensorSpec>& specs) {
  Given given;
  for (const std::string& text : files) {
    auto [name, path] = split(text);
    HEADRACE_CLI_TRY(tensors, read_tensors(path, type_in, const_cast<std::vector<TensorSpec>*>(&specs)));
    if (!name.empty() && tensors.size() != 1)
      return fail(Code::invalid_argument, "--input {}: {} holds {} tensors; with a name it must hold one",
                  text, path, tensors.size());
    // A tensor in an .npy has no name of its own.
    if (name.empty() && path.ends_with(".npy") && specs.size() == 1) name = specs[0].name;
    for (NamedTensor& one : tensors) {
      const std::string key = name.empty() ? one.name : name;
      if (!given.emplace(key, std::move(one.tensor)).second)
        return fail(Code::invalid_argument, "input {} is given twice", key);
    }
  }
  return given;
}

std::int64_t length_for(const DimensionSpec& dimension, const std::map<std::string, std::int64_t>& wanted) {
  if (dimension.fixed()) return dimension.least;
  if (const auto found = wanted.find(dimension.name); found != wanted.end()) return found->second;
  return std::clamp(usual_length, std::max<std::int64_t>(dimension.least, 1),
                    dimension.most.value_or(INT64_MAX));
}

/// Generates an input: normal random numbers for floating types; else zeros and ones, which every type can
/// hold.
Result<Tensor> make_up(const TensorSpec& spec, const std::map<std::string, std::int64_t>& wanted,
                       std::mt19937_64& random) {
  if (!spec.dtype || !spec.shape_known)
    return fail(Code::invalid_argument,
                "input {} cannot be generated: the package does not give its type and shape; `headrace infer "
                "--input` reads it from a file",
                spec.name);
  std::vector<std::int64_t> lengths;
  for (const DimensionSpec& dimension : spec.shape) {
    if (!dimension.expression.empty())
      return fail(Code::invalid_argument,
                  "input {} cannot be generated: its length {} depends on other lengths; `headrace infer "
                  "--input` reads it from a file",
                  spec.name, dimension.expression);
    lengths.push_back(length_for(dimension, wanted));
  }
  HEADRACE_CLI_TRY(tensor, Tensor::zeros(*spec.dtype, Shape(lengths)));
  const bool fractions = static_cast<int>(*spec.dtype) < static_cast<int>(DType::int8) ||
                         static_cast<int>(*spec.dtype) > static_cast<int>(DType::boolean);
  std::normal_distribution<double> normal;
  const bool only_zero = spec.values && spec.values->most < 1;
  for (std::int64_t i = 0; i < tensor.shape().count(); ++i)
    write_element(tensor.data(), *spec.dtype, i,
                  fractions   ? normal(random)
                  : only_zero ? 0
                              : static_cast<double>(random() & 1));
  return tensor;
}

double percentile(const std::vector<std::uint64_t>& sorted, double percent) {
  const auto index = static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size())));
  return static_cast<double>(sorted[std::min(index == 0 ? 0 : index - 1, sorted.size() - 1)]) / 1e3;
}

}  // namespace

void add_model_arguments(const Command& command, ModelRequest& request) {
  command.add_option("model", request.path, "The .pt2 package, or the folder that it was unpacked to")
      .required()
      .type_name("FILE");
  command.add_option("--name", request.options.model_name, "Model of the package")
      .type_name("NAME")
      .show_default();
  command
      .add_option("-d,--device", request.options.device,
                  "cpu, cuda or cuda:1; default: the device that the package was made for")
      .type_name("DEVICE");
  command
      .add_option("--torch-threads", request.options.threads,
                  "Threads that torch uses inside one operation; 0: torch chooses")
      .check(whole_number(0, 1024))
      .type_name("N")
      .show_default();
  command
      .add_option("-i,--input", request.inputs,
                  "File with inputs by name: .npy, .npz, .safetensors or .json; repeatable")
      .type_name("[NAME=]FILE");
}

Result<void> check_input_names(const ModelRequest& request) {
  if (request.inputs.empty()) return {};
  HEADRACE_CLI_TRY(info, Model::inspect(request.path, request.options.model_name));
  if (info.inputs.empty()) return {};
  HEADRACE_CLI_TRY(given, read_given(request.inputs, info.inputs));
  return check_names(given, info.inputs);
}

Result<ModelInputs> gather_inputs(Model& model, const ModelRequest& request) {
  const std::vector<TensorSpec>& specs = model.info().inputs;
  HEADRACE_CLI_TRY(wanted, read_dimensions(request.dimensions));
  HEADRACE_CLI_CHECK(check_lengths(wanted, specs));
  HEADRACE_CLI_TRY(given, read_given(request.inputs, specs));
  if (!specs.empty()) HEADRACE_CLI_CHECK(check_names(given, specs));
  std::mt19937_64 random(request.seed);
  ModelInputs inputs;
  for (const TensorSpec& spec : specs) {
    const auto found = given.find(spec.name);
    if (found != given.end()) {
      inputs.tensors.push_back(std::move(found->second));
      given.erase(found);
    } else if (spec.optional) {
      inputs.tensors.emplace_back(TensorView{nullptr, spec.dtype.value_or(DType::float32), {1}, {}, {}},
                                  nullptr, nullptr);
    } else if (request.generate) {
      HEADRACE_CLI_TRY(made, make_up(spec, wanted, random));
      inputs.tensors.push_back(std::move(made));
    } else {
      return fail(Code::invalid_argument,
                  "input {} ({}) is missing: name a file that holds it with --input (`headrace infer "
                  "--generate` generates inputs)",
                  spec.name, spec_text(spec));
    }
  }
  if (specs.empty())  // the package does not describe its inputs: take the given ones in the order of their
                      // names
    for (auto& [name, tensor] : given) inputs.tensors.push_back(std::move(tensor));
  if (model.info().device.kind == Device::Kind::cpu) return inputs;
  for (Tensor& tensor : inputs.tensors) {
    if (tensor.data() == nullptr && tensor.shape().count() != 0)
      continue;  // an optional input that is left out
    HEADRACE_CLI_TRY(moved, model.copy_to(tensor, model.info().device));
    tensor = std::move(moved);
  }
  return inputs;
}

Result<ModelOutputs> bring_outputs(Model& model, std::vector<Tensor> outputs) {
  ModelOutputs brought;
  for (Tensor& output : outputs) {
    if (output.device().kind != Device::Kind::cpu) {
      HEADRACE_CLI_TRY(moved, model.copy_to(output, Device{}));
      output = std::move(moved);
    }
    const std::size_t index = brought.tensors.size();
    const std::vector<TensorSpec>& specs = model.info().outputs;
    brought.named.push_back(
        {index < specs.size() ? specs[index].name : fmt::format("output{}", index), output.view()});
    brought.tensors.push_back(std::move(output));
  }
  return brought;
}

ModelJson output_summary(const NamedView& output, bool whole) {
  const TensorView& view = output.view;
  double least = 0, most = 0, sum = 0;
  std::uint64_t finite = 0, not_finite = 0;
  for (std::int64_t i = 0; i < view.shape.count(); ++i) {
    const double value = read_element(view.data, view.dtype, i);
    if (!std::isfinite(value)) {
      ++not_finite;
      continue;
    }
    least = finite == 0 ? value : std::min(least, value);
    most = finite == 0 ? value : std::max(most, value);
    sum += value;
    ++finite;
  }
  ModelJson summary{{"name", output.name}};
  summary.update(tensor_json({view.data, view.dtype, view.shape, {}, {}}));
  if (!whole && view.shape.count() > most_shown) summary.erase("data");
  summary["least"] = least;
  summary["most"] = most;
  summary["mean"] = finite == 0 ? 0 : sum / static_cast<double>(finite);
  summary["not_finite"] = not_finite;
  return summary;
}

ModelJson latency_json(std::vector<std::uint64_t> nanoseconds) {
  if (nanoseconds.empty()) return nullptr;
  std::sort(nanoseconds.begin(), nanoseconds.end());
  const double sum = std::accumulate(nanoseconds.begin(), nanoseconds.end(), 0.0);
  return {{"least", static_cast<double>(nanoseconds.front()) / 1e3},
          {"mean", sum / static_cast<double>(nanoseconds.size()) / 1e3},
          {"p50", percentile(nanoseconds, 50)},
          {"p90", percentile(nanoseconds, 90)},
          {"p99", percentile(nanoseconds, 99)},
          {"most", static_cast<double>(nanoseconds.back()) / 1e3}};
}

void print_json(const ModelJson& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, ModelJson::error_handler_t::replace));
}

}  // namespace headrace::cli
