// SPDX-License-Identifier: Apache-2.0
// Reduces elements of several ranks to one: all inputs of a block are read before its result is written once.
#pragma once

#include "base/instructions.hpp"

#include <headrace/comm.hpp>

#include <cstddef>
#include <span>

namespace headrace::collectives {

/// What turns a sum into an average or a sum of products.
struct Scaling {
  double factor = 1;   // of each input
  double divisor = 1;  // of the result
};

class Reduction {
 public:
  Reduction() = default;
  /// The reduction over `ranks` inputs.
  ///   errors  invalid_argument (the operation has no meaning for the type: why)
  [[nodiscard]] static Result<Reduction> find(ReduceOp op, DType dtype, int ranks,
                                              Instructions instructions = best_instructions());

  /// output[i] = inputs[0][i] op inputs[1][i] op ..., in this order, so that every rank gets the same bits.
  ///   shapes  `count` elements each; an input may be the output
  void operator()(std::byte* output, std::span<const std::byte* const> inputs, std::size_t count) const {
    loop_(output, inputs.data(), inputs.size(), count, scaling_);
    if (finish_ != nullptr) finish_(output, count, scaling_);
  }
  [[nodiscard]] std::size_t width() const noexcept { return width_; }

  using Loop = void (*)(std::byte* output, const std::byte* const* inputs, std::size_t input_count,
                        std::size_t count, const Scaling& scaling);
  using Finish = void (*)(std::byte* output, std::size_t count, const Scaling& scaling);

 private:
  Loop loop_ = nullptr;
  Finish finish_ = nullptr;  // of integers, whose scaling distributes over the sum
  Scaling scaling_;
  std::size_t width_ = 1;
};

}  // namespace headrace::collectives
