// SPDX-License-Identifier: Apache-2.0
// Whether inputs are what a model was compiled for. The compiled code looks at none of this: what is let
// through here wrongly is read out of bounds.
#pragma once

#include "base/errors.hpp"

#include <headrace/model.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

/// Made once from what is known of a model; then thread-safe.
class InputCheck {
 public:
  InputCheck() = default;
  /// `count_known`: the model takes just these inputs; else inputs beyond them are let through.
  InputCheck(std::vector<TensorSpec> specs, Device device, bool count_known);

  /// Rank, type, shape, strides and device of every input, and that lengths of one name agree.
  ///   errors  invalid_argument: which input, what it is, what was expected
  [[nodiscard]] Result<void> check(std::span<const TensorView> inputs) const;

 private:
  /// The same, as bool: the common case makes no text and allocates nothing beyond `lengths`.
  [[nodiscard]] bool one_fits(const TensorSpec& spec, const TensorView& view) const;
  [[nodiscard]] bool names_agree(std::span<const TensorView> inputs) const;
  Error explain(std::size_t index, const TensorView& view) const;
  Error explain_names(std::span<const TensorView> inputs) const;

  /// A named length somewhere in the inputs, or one that follows from names.
  struct Place {
    std::size_t input, dimension;
    std::size_t name;        ///< index into names_
    std::string expression;  ///< instead of a name
  };

  std::vector<TensorSpec> specs_;
  std::vector<std::string> names_;
  std::vector<Place> places_, derived_;
  Device device_;
  bool count_known_ = false;
};

/// "float32 [4, 256]", with strides where there are any, and the device where it is not the CPU.
[[nodiscard]] std::string view_text(const TensorView& view);

}  // namespace headrace
