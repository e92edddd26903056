// SPDX-License-Identifier: Apache-2.0
// Tensors that an operation keeps until it has ended.
#pragma once

#include "bindings/torch/comm/tensors.hpp"

#include <memory>

namespace headrace::torch_group {

/// Keeps tensors that are freed on a thread of torch's users, or on the thread for endings: some need the GIL
/// to go, and the thread that ends an operation may hold locks of the communicator.
std::shared_ptr<Tensors> keep(Tensors&& tensors);

/// While it lives this thread frees such tensors itself: it holds no lock of a communicator.
class FreesHere {
 public:
  FreesHere();
  ~FreesHere();
  FreesHere(const FreesHere&) = delete;
  FreesHere& operator=(const FreesHere&) = delete;

 private:
  bool before_;
};

}  // namespace headrace::torch_group
