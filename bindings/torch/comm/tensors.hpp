// SPDX-License-Identifier: Apache-2.0
// Tensors as a communicator takes them: on the CPU, dense, without gaps.
#pragma once

#include <headrace/comm_call.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <span>
#include <vector>

namespace headrace::torch_group {

using TensorList = std::vector<at::Tensor>;

/// The tensors of one call, and the memory that the operation uses for them.
class Tensors {
 public:
  // Each adds tensors and returns their elements, or those of a copy without gaps.
  //   errors  c10::Error (not on the CPU, not dense, a type that Headrace has not: what to do instead)
  ConstElements reads(const at::Tensor& tensor);
  std::vector<ConstElements> reads_each(std::span<const at::Tensor> tensors);
  Elements writes(const at::Tensor& tensor);
  /// Where several are the same memory, as in `[tensor] * size`, the last one wins.
  std::vector<Elements> writes_each(std::span<const at::Tensor> tensors);
  /// Of broadcast: an output that this rank only reads, or writes.
  Elements uses(const at::Tensor& tensor, bool written);
  /// An output of any layout that something else writes.
  void returns(const at::Tensor& tensor) { used_.push_back({tensor, {}, true, false}); }

  /// Whether copy_back has something to do.
  [[nodiscard]] bool has_copies() const;
  /// Copies what was written to copies into the tensors themselves.
  void copy_back();
  /// The tensors that were read; if there are none, those that are written.
  [[nodiscard]] TensorList inputs() const;
  /// The outputs, in the order in which they were added.
  [[nodiscard]] TensorList outputs() const;

 private:
  struct Used {
    at::Tensor tensor;
    at::Tensor copy;  ///< undefined: the tensor has no gaps
    bool output = false, written = false;
  };
  static bool needs_copy(const Used& used) { return used.written && used.copy.defined(); }
  /// `apart`: the operation uses a copy.
  Elements add(const at::Tensor& tensor, bool output, bool written, bool apart = false);

  c10::SmallVector<Used, 2> used_;
};

/// Whether all have as many elements.
bool of_one_length(std::span<const at::Tensor> tensors);

}  // namespace headrace::torch_group
