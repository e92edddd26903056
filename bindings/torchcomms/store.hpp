// SPDX-License-Identifier: Apache-2.0
// A store of torch as the place where the ranks of a communicator meet.
#pragma once

#include <headrace/comm.hpp>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace headrace::torchcomms_backend {

class TorchStore final : public CommStore {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  Result<void> set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key) override;
  /// Lets the store of torch go. Nothing is called afterwards.
  void close() { store_.reset(); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace headrace::torchcomms_backend
