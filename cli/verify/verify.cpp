// SPDX-License-Identifier: Apache-2.0
// `headrace verify`: runs a model and compares its outputs with those of a file.
#include "cli/command.hpp"
#include "cli/common/errors.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/text.hpp"
#include "cli/model/model_run.hpp"
#include "cli/model/model_text.hpp"
#include "formats/names.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <memory>

namespace headrace::cli {
namespace {

struct VerifyArguments : ModelRequest {
  std::string expected;
  double relative = 1e-4, absolute = 1e-5;
  bool json = false;
};

struct Comparison {
  double largest_difference = 0;
  std::int64_t elements = 0, different = 0, first_different = -1;
};

/// Compares as numpy.isclose: the difference may be absolute + relative * |expected|; elements that are not
/// finite must be equal.
Comparison compare(const TensorView& is, const TensorView& expected, const VerifyArguments& wanted) {
  Comparison comparison;
  comparison.elements = is.shape.count();
  for (std::int64_t i = 0; i < comparison.elements; ++i) {
    const double a = read_element(is.data, is.dtype, i), b = read_element(expected.data, expected.dtype, i);
    const bool same = a == b || (std::isnan(a) && std::isnan(b));
    const double off = same ? 0 : std::abs(a - b);
    if (std::isfinite(off)) comparison.largest_difference = std::max(comparison.largest_difference, off);
    if (same || (std::isfinite(off) && off <= wanted.absolute + wanted.relative * std::abs(b))) continue;
    if (comparison.different++ == 0) comparison.first_different = i;
  }
  return comparison;
}

/// Compares one output and writes the result to `json`. False if the output is not as expected.
bool verify_output(const NamedView& output, const std::vector<NamedTensor>& expected,
                   const VerifyArguments& wanted, ModelJson& json) {
  json = {{"name", output.name}, {"passed", false}};
  const auto found = std::find_if(expected.begin(), expected.end(),
                                  [&](const NamedTensor& one) { return one.name == output.name; });
  if (found == expected.end()) {
    std::string names;
    for (const NamedTensor& one : expected) names.append(names.empty() ? "" : ", ").append(one.name);
    json["reason"] = fmt::format("{} has no tensor of that name: it has {}", wanted.expected, names);
    return false;
  }
  const Tensor& reference = found->tensor;
  if (reference.shape() != output.view.shape) {
    json["reason"] = fmt::format("its shape is {}; expected: {}", shape_text(output.view.shape),
                                 shape_text(reference.shape()));
    return false;
  }
  const Comparison comparison = compare(output.view, reference, wanted);
  json["elements"] = comparison.elements;
  json["different"] = comparison.different;
  json["largest_difference"] = comparison.largest_difference;
  json["passed"] = comparison.different == 0;
  if (comparison.different > 0)
    json["reason"] =
        fmt::format("element {} is {}; expected: {}", comparison.first_different,
                    read_element(output.view.data, output.view.dtype, comparison.first_different),
                    read_element(reference.data(), reference.dtype(), comparison.first_different));
  return comparison.different == 0;
}

/// The names of the file's tensors that are no output.
std::vector<std::string> not_compared(const std::vector<NamedTensor>& expected, const ModelOutputs& outputs) {
  std::vector<std::string> names;
  for (const NamedTensor& one : expected)
    if (std::ranges::find(outputs.named, one.name, &NamedView::name) == outputs.named.end())
      names.push_back(one.name);
  return names;
}

Result<void> verify(VerifyArguments wanted, const Invocation& invocation) {
  wanted.options.options = invocation.options;
  HEADRACE_CLI_TRY(expected, read_tensors(wanted.expected));
  HEADRACE_CLI_CHECK(check_input_names(wanted));
  HEADRACE_CLI_TRY(model, Model::open(wanted.path, wanted.options));
  HEADRACE_CLI_TRY(inputs, gather_inputs(model, wanted));
  HEADRACE_CLI_TRY(made, model.run(inputs.views()));
  HEADRACE_CLI_TRY(outputs, bring_outputs(model, std::move(made)));
  // A single tensor is compared with a single output under any name.
  if (expected.size() == 1 && outputs.named.size() == 1) expected[0].name = outputs.named[0].name;

  ModelJson report{{"model", wanted.path},
                   {"expected", wanted.expected},
                   {"passed", true},
                   {"relative", wanted.relative},
                   {"absolute", wanted.absolute}};
  report["outputs"] = ModelJson::array();
  std::size_t failed = 0;
  for (const NamedView& output : outputs.named) {
    ModelJson json;
    if (!verify_output(output, expected, wanted, json)) ++failed;
    report["outputs"].push_back(std::move(json));
  }
  report["passed"] = failed == 0;
  const std::vector<std::string> others = not_compared(expected, outputs);
  report["not_compared"] = others;
  if (wanted.json)
    print_json(report);
  else
    fmt::print("{}", formats::printable(verify_text(report)));
  if (!others.empty())
    complain(fmt::format("not compared, because the model has no output of that name: {} of {}",
                         fmt::join(others, ", "), wanted.expected));
  if (failed == 0) return {};
  return fail(Code::corrupt, "{} of {} outputs of {} {} not as expected", failed, outputs.named.size(),
              wanted.path, failed == 1 ? "is" : "are");
}

}  // namespace

void add_verify(const Command& app, Invocation& invocation) {
  auto wanted = std::make_shared<VerifyArguments>();
  const Command command =
      app.add_subcommand("verify", "Run a compiled model and compare its outputs with a file");
  add_model_arguments(command, *wanted);
  command
      .add_option("-e,--expect", wanted->expected,
                  "File with the expected outputs by name: .npy, .npz, .safetensors or .json")
      .required()
      .type_name("FILE");
  command.add_option("--rtol", wanted->relative, "Relative tolerance: a share of the expected value")
      .type_name("NUMBER")
      .check(real_number(0, 1e9))
      .show_default();
  command.add_option("--atol", wanted->absolute, "Absolute tolerance, added to the relative one")
      .type_name("NUMBER")
      .check(real_number(0, 1e9))
      .show_default();
  command.add_flag("--json", wanted->json, "Print JSON");
  command.footer(
      "The last line has the largest difference. The exit code is 0 if every output is as expected.\n"
      "--json prints one object: model, expected, passed, relative, absolute, outputs (each: name, passed, "
      "elements,\n"
      "different, largest_difference, reason), not_compared.\n"
      "Examples:\n"
      "  headrace verify model.pt2 --input inputs.safetensors --expect outputs.safetensors\n"
      "  headrace verify model.pt2 --input x.npy --expect y.npy --rtol 1e-3"

  );
  command.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return verify(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
