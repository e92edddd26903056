// SPDX-License-Identifier: Apache-2.0
#include "runner/input_check.hpp"

#include "runner/dimension_expression.hpp"
#include "runner/strides.hpp"
#include "runner/value_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr std::int64_t unset = -1;
// If a model has more distinct dynamic dimensions than this, the further ones are not checked.
constexpr std::size_t most_names = 64;

bool is_absent(const TensorView& view) { return view.data == nullptr && view.shape.count() != 0; }

std::string dimension_text(const DimensionSpec& spec) {
  if (!spec.expression.empty()) return spec.expression;
  if (spec.fixed()) return fmt::format("{}", spec.least);
  return fmt::format("{} {}..{}", spec.name, spec.least, spec.most ? fmt::format("{}", *spec.most) : "");
}

/// Whether the strides are those without gaps, or those that the model requires.
bool strides_fit(const TensorSpec& spec, const TensorView& view) {
  if (spec.strides.empty()) return view.is_contiguous();
  const Shape actual = strides_of(view);
  if (actual.rank() != spec.strides.size()) return false;
  for (std::size_t i = 0; i < actual.rank(); ++i)
    if (view.shape[i] > 1 && actual[i] != spec.strides[i]) return false;
  return true;
}

/// Why a length does not fit a dimension; empty if it fits.
std::string complaint(const DimensionSpec& spec, std::int64_t length, std::size_t index) {
  if (!spec.expression.empty()) return {};
  if (spec.fixed() && length != spec.least)
    return fmt::format("dimension {} must be {}, and is {}", index, spec.least, length);
  const std::string name = spec.name.empty() ? "" : fmt::format(" ({})", spec.name);
  if (length < spec.least)
    return fmt::format("dimension {}{} must be at least {}, and is {}", index, name, spec.least, length);
  if (spec.most && length > *spec.most)
    return fmt::format("dimension {}{} must be at most {}, and is {}", index, name, *spec.most, length);
  return {};
}

}  // namespace

std::string view_text(const TensorView& view) {
  std::string text = fmt::format("{} {}", dtype_name(view.dtype), shape_text(view.shape));
  if (!view.strides.empty() && !view.is_contiguous())
    text += fmt::format(" with strides {}", shape_text(view.strides));
  if (view.device.kind != Device::Kind::cpu) text += " on " + device_text(view.device);
  return text;
}

std::string spec_text(const TensorSpec& spec) {
  std::string text(spec.dtype ? dtype_name(*spec.dtype) : "unknown type");
  if (!spec.shape_known) return text + ", unknown shape";
  std::vector<std::string> shape;
  for (const DimensionSpec& dimension : spec.shape) shape.push_back(dimension_text(dimension));
  text += fmt::format(" [{}]", fmt::join(shape, ", "));
  if (!spec.strides.empty()) text += fmt::format(" with strides [{}]", fmt::join(spec.strides, ", "));
  if (spec.values) text += fmt::format(" of {}..{}", spec.values->least, spec.values->most);
  return text;
}

InputCheck::InputCheck(std::vector<TensorSpec> specs, Device device, bool count_known)
    : specs_(std::move(specs)), device_(device), count_known_(count_known) {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    for (std::size_t k = 0; k < specs_[i].shape.size(); ++k) {
      const DimensionSpec& dimension = specs_[i].shape[k];
      if (!dimension.expression.empty()) derived_.push_back({i, k, 0, dimension.expression});
      if (!dimension.expression.empty() || dimension.name.empty() || dimension.fixed()) continue;
      const auto name = std::ranges::find(names_, dimension.name);
      const auto index = static_cast<std::size_t>(name - names_.begin());
      if (name == names_.end() && names_.size() == most_names) continue;
      if (name == names_.end()) names_.push_back(dimension.name);
      places_.push_back({i, k, index, {}});
    }
  }
}

bool InputCheck::one_fits(const TensorSpec& spec, const TensorView& view) const {
  if (is_absent(view)) return spec.optional;
  if (spec.dtype && view.dtype != *spec.dtype) return false;
  if (!view.strides.empty() && view.strides.rank() != view.shape.rank()) return false;
  if (view.device != device_) return false;
  for (const std::int64_t length : view.shape)
    if (length < 0) return false;
  if (!spec.shape_known) return true;
  if (view.shape.rank() != spec.shape.size()) return false;
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    const DimensionSpec& dimension = spec.shape[i];
    if (!dimension.expression.empty()) continue;
    if (view.shape[i] < dimension.least || (dimension.most && view.shape[i] > *dimension.most)) return false;
  }
  return strides_fit(spec, view);
}

bool InputCheck::names_agree(std::span<const TensorView> inputs) const {
  if (places_.size() < 2 && derived_.empty()) return true;
  std::array<std::int64_t, most_names> lengths;
  std::fill_n(lengths.begin(), names_.size(), unset);
  for (const Place& place : places_) {
    if (is_absent(inputs[place.input])) continue;
    const std::int64_t length = inputs[place.input].shape[place.dimension];
    std::int64_t& seen = lengths[place.name];
    if (seen != unset && seen != length) return false;
    seen = length;
  }
  for (const Place& place : derived_) {
    if (is_absent(inputs[place.input])) continue;
    const auto expected =
        evaluate_dimension(place.expression, [&](std::string_view name) -> std::optional<std::int64_t> {
          const auto found = static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
          if (found == names_.size() || lengths[found] == unset) return std::nullopt;
          return lengths[found];
        });
    if (expected && *expected != inputs[place.input].shape[place.dimension]) return false;
  }
  return true;
}

Result<void> InputCheck::check(std::span<const TensorView> inputs) const {
  if (inputs.size() < specs_.size() || (count_known_ && inputs.size() > specs_.size())) {
    std::string names;
    for (const TensorSpec& spec : specs_) names.append(names.empty() ? "" : ", ").append(spec.name);
    return make_error(Code::invalid_argument, "{} input{} given, and the model takes {}{}{}", inputs.size(),
                      inputs.size() == 1 ? " is" : "s are", specs_.size(), names.empty() ? "" : ": ", names);
  }
  for (std::size_t i = 0; i < specs_.size(); ++i)
    if (!one_fits(specs_[i], inputs[i])) return explain(i, inputs[i]);
  if (!names_agree(inputs)) return explain_names(inputs);
  return {};
}

Result<void> InputCheck::check_values(std::span<const TensorView> inputs) const {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::optional<ValueRange> range = specs_[i].values;
    if (!range || is_absent(inputs[i]) || inputs[i].device.kind != Device::Kind::cpu) continue;
    if (const auto outside = find_outside(inputs[i], *range))
      return make_error(
          Code::invalid_argument,
          "input {} ({}) has the value {} at element {}, and the model uses its values as indices from "
          "{} to {}: such an index would end this process",
          i, specs_[i].name, outside->value, outside->element, range->least, range->most);
  }
  return {};
}

Error InputCheck::explain(std::size_t index, const TensorView& view) const {
  const TensorSpec& spec = specs_[index];
  const auto because = [&](std::string_view reason) {
    return make_error(Code::invalid_argument, "input {} ({}) is {}, and {} is expected: {}", index, spec.name,
                      view_text(view), spec_text(spec), reason);
  };
  if (is_absent(view))
    return make_error(Code::invalid_argument,
                      "input {} ({}) has no memory, and {} is expected: it cannot be omitted", index,
                      spec.name, spec_text(spec));
  if (spec.dtype && view.dtype != *spec.dtype)
    return because(fmt::format("its type must be {}", dtype_name(*spec.dtype)));
  if (view.device != device_)
    return because(
        fmt::format("it is on {}, and the model runs on {}", device_text(view.device), device_text(device_)));
  if (spec.shape_known && view.shape.rank() != spec.shape.size())
    return because(fmt::format("it must have {} dimension{}, and has {}", spec.shape.size(),
                               spec.shape.size() == 1 ? "" : "s", view.shape.rank()));
  for (std::size_t i = 0; i < std::min(spec.shape.size(), view.shape.rank()); ++i)
    if (const std::string reason = complaint(spec.shape[i], view.shape[i], i); !reason.empty())
      return because(reason);
  if (!view.strides.empty() && view.strides.rank() != view.shape.rank())
    return because("it must have one stride for each dimension, or none");
  if (!spec.strides.empty()) return because("its elements must have these strides");
  return because("its elements must be in row-major order without gaps: make it contiguous");
}

Error InputCheck::explain_names(std::span<const TensorView> inputs) const {
  std::array<const Place*, most_names> first{};
  for (const Place& place : places_) {
    if (is_absent(inputs[place.input])) continue;
    const Place*& seen = first[place.name];
    if (seen == nullptr) seen = &place;
    const std::int64_t before = inputs[seen->input].shape[seen->dimension],
                       now = inputs[place.input].shape[place.dimension];
    if (before == now) continue;
    return make_error(Code::invalid_argument,
                      "input {} ({}) has {} in dimension {}, and input {} ({}) has {} in dimension {}: both "
                      "are {}, which must be the "
                      "same everywhere",
                      place.input, specs_[place.input].name, now, place.dimension, seen->input,
                      specs_[seen->input].name, before, seen->dimension, names_[place.name]);
  }
  for (const Place& place : derived_) {
    if (is_absent(inputs[place.input])) continue;
    const std::int64_t is = inputs[place.input].shape[place.dimension];
    const auto expected =
        evaluate_dimension(place.expression, [&](std::string_view name) -> std::optional<std::int64_t> {
          const auto found = static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
          if (found == names_.size() || first[found] == nullptr) return std::nullopt;
          return inputs[first[found]->input].shape[first[found]->dimension];
        });
    if (expected && *expected != is)
      return make_error(Code::invalid_argument,
                        "input {} ({}) has {} in dimension {}, and {} is expected, which is {} here",
                        place.input, specs_[place.input].name, is, place.dimension, *expected,
                        place.expression);
  }
  return make_error(Code::internal, "the lengths of the inputs changed during the check");
}

}  // namespace headrace
