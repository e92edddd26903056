// SPDX-License-Identifier: Apache-2.0
// Which backend has each work that is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace headrace::choice {

///   threads  any
class Works {
 public:
  void add(std::uint64_t work, std::size_t backend) {
    const std::scoped_lock lock(mutex_);
    backends_[work] = backend;
  }
  void remove(std::uint64_t work) {
    const std::scoped_lock lock(mutex_);
    backends_.erase(work);
  }
  /// nullopt: it has ended.
  [[nodiscard]] std::optional<std::size_t> backend_of(std::uint64_t work) const {
    const std::scoped_lock lock(mutex_);
    const auto at = backends_.find(work);
    return at == backends_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::size_t> backends_;
};

}  // namespace headrace::choice
