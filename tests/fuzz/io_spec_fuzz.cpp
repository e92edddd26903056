// SPDX-License-Identifier: Apache-2.0
// The three descriptions of a model's inputs: the reader must end on any text, and a description that it
// reads can be printed and used for checks.
#include "runner/exported_program.hpp"
#include "runner/generated_code.hpp"
#include "runner/input_check.hpp"
#include "runner/io_spec.hpp"

#include <string_view>

namespace {

void use(const headrace::IoSpec& spec) {
  const headrace::InputCheck check(spec.inputs, headrace::Device{}, true);
  std::vector<headrace::TensorView> views;
  static const std::byte memory[64]{};
  for (const headrace::TensorSpec& input : spec.inputs) {
    static_cast<void>(headrace::spec_text(input));
    headrace::TensorView view{memory, input.dtype.value_or(headrace::DType::float32), {}, {}, {}};
    std::vector<std::int64_t> lengths;
    for (const headrace::DimensionSpec& dimension : input.shape) lengths.push_back(dimension.least % 64);
    view.shape = headrace::Shape(lengths);
    views.push_back(view);
  }
  static_cast<void>(check.check(views));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto spec = headrace::read_io_spec(text)) use(*spec);
  if (const auto spec = headrace::read_exported_program(text)) use(*spec);
  if (const auto spec = headrace::read_generated_code(text)) use(*spec);
  return 0;
}
