// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/comm/kept.hpp"

#include "bindings/torch/comm/endings.hpp"

#include <utility>

namespace headrace::torch_group {
namespace {

thread_local bool frees_here = false;

struct Kept {
  explicit Kept(Tensors&& kept) : tensors(std::move(kept)) {}
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    if (!frees_here) at_endings([last = std::make_shared<Tensors>(std::move(tensors))] {});
  }
  Tensors tensors;
};

}  // namespace

std::shared_ptr<Tensors> keep(Tensors&& tensors) {
  auto kept = std::make_shared<Kept>(std::move(tensors));
  Tensors* const inside = &kept->tensors;
  return {std::move(kept), inside};
}

FreesHere::FreesHere() : before_(std::exchange(frees_here, true)) {}
FreesHere::~FreesHere() { frees_here = before_; }

}  // namespace headrace::torch_group
