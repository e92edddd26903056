// SPDX-License-Identifier: Apache-2.0
// Checks that inputs are those that a model was compiled for. The compiled code checks nothing: a wrong input
// that passes here is read out of bounds.
#pragma once

#include "base/errors.hpp"

#include <headrace/model.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

/// Made once from the description of a model; then thread-safe.
class InputCheck {
 public:
  InputCheck() = default;
  /// `count_known`: the model has exactly these inputs; else further inputs are accepted.
  InputCheck(std::vector<TensorSpec> specs, Device device, bool count_known);

  /// Checks rank, type, shape, strides and device of every input, and that dimensions of one name have one
  /// length.
  ///   errors  invalid_argument: which input, its value, the expected value
  [[nodiscard]] Result<void> check(std::span<const TensorView> inputs) const;
  /// Checks the values of inputs that are used as indices, in host memory. Before every run of inputs that
  /// have passed `check`: the memory may have new bytes.
  ///   errors  invalid_argument: which input, which element, its value, the range
  [[nodiscard]] Result<void> check_values(std::span<const TensorView> inputs) const;

 private:
  /// The same as bool: the common case makes no text and allocates nothing except `lengths`.
  [[nodiscard]] bool one_fits(const TensorSpec& spec, const TensorView& view) const;
  [[nodiscard]] bool names_agree(std::span<const TensorView> inputs) const;
  Error explain(std::size_t index, const TensorView& view) const;
  Error explain_names(std::span<const TensorView> inputs) const;

  /// A named length of an input, or one that follows from names.
  struct Place {
    std::size_t input, dimension;
    std::size_t name;        ///< index into names_
    std::string expression;  ///< instead of `name`
  };

  std::vector<TensorSpec> specs_;
  std::vector<std::string> names_;
  std::vector<Place> places_, derived_;
  Device device_;
  bool count_known_ = false;
};

/// "float32 [4, 256]", with strides if there are any, and with the device if it is not the CPU.
[[nodiscard]] std::string view_text(const TensorView& view);

}  // namespace headrace
