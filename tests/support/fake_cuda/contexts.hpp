// SPDX-License-Identifier: Apache-2.0
// The fake driver's GPUs, their contexts, and the contexts that are current on each thread.
#pragma once

#include "support/fake_cuda.hpp"
#include "support/fake_cuda/objects.hpp"

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::cuda {

class FakeContexts {
 public:
  explicit FakeContexts(std::vector<FakeGpu> machine) : gpus_(std::move(machine)) {
    for (int device = 0; device < gpu_count(); ++device) {
      contexts_.push_back(std::make_unique<ContextObject>());
      contexts_.back()->device = device;
    }
  }

  [[nodiscard]] int gpu_count() const { return static_cast<int>(gpus_.size()); }
  [[nodiscard]] bool is_gpu(Device device) const { return device >= 0 && device < gpu_count(); }
  [[nodiscard]] const FakeGpu& gpu(Device device) const { return gpus_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] ContextObject& primary(Device device) { return *contexts_[static_cast<std::size_t>(device)]; }
  /// How many times the contexts of all GPUs are retained.
  [[nodiscard]] int retained() const {
    int count = 0;
    for (const auto& context : contexts_) count += context->retained;
    return count;
  }

  /// The contexts of this thread, the current one last.
  [[nodiscard]] std::vector<ContextObject*>& stack() { return current_[std::this_thread::get_id()]; }
  /// The current context of this thread; null: none.
  [[nodiscard]] ContextObject* top() { return stack().empty() ? nullptr : stack().back(); }

  [[nodiscard]] bool can_access(int from, int to) const { return !forbidden_.contains({from, to}); }
  void forbid_access(int from, int to) { forbidden_.insert({from, to}); }
  void allow_access(int from, int to) { forbidden_.erase({from, to}); }
  /// False: it was enabled already.
  [[nodiscard]] bool enable_access(int from, int to) { return enabled_.insert({from, to}).second; }

 private:
  const std::vector<FakeGpu> gpus_;
  std::vector<std::unique_ptr<ContextObject>> contexts_;
  std::map<std::thread::id, std::vector<ContextObject*>> current_;
  std::set<std::pair<int, int>> forbidden_, enabled_;  // from, to
};

}  // namespace headrace::cuda
