// SPDX-License-Identifier: Apache-2.0
#include "collectives/kept_call.hpp"

#include <utility>

namespace headrace::collectives {

KeptCall::KeptCall(const CommCall& call, std::shared_ptr<const void> owner)
    : call_(call),
      inputs_(call.inputs.begin(), call.inputs.end()),
      outputs_(call.outputs.begin(), call.outputs.end()),
      input_splits_(call.input_splits.begin(), call.input_splits.end()),
      output_splits_(call.output_splits.begin(), call.output_splits.end()),
      owner_(std::move(owner)) {
  if (call.hints != nullptr) hints_ = *call.hints;
}

CommCall KeptCall::call() const {
  CommCall call = call_;
  call.inputs = inputs_;
  call.outputs = outputs_;
  call.input_splits = input_splits_;
  call.output_splits = output_splits_;
  call.hints = &hints_;
  return call;
}

}  // namespace headrace::collectives
