// SPDX-License-Identifier: Apache-2.0
// The hooks of a communicator. Without any, an operation pays for one look at a flag.
#pragma once

#include <headrace/comm.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::collectives {

class Hooks {
 public:
  std::uint64_t add(CommHooks hooks);
  void remove(std::uint64_t id);
  [[nodiscard]] bool any() const { return any_.load(std::memory_order_relaxed); }

  // These call the hooks of their names, in the order in which they were added.
  [[nodiscard]] Result<void> before(const CommCall& call) const;
  void scheduled(const CommCall& call) const;
  void started(const CommCallId& call) const;
  void completed(const CommCallId& call, const Error& error) const;
  void after(const CommCall& call, const Result<Work>& result) const;
  void aborted(const Error& cause) const;

 private:
  struct Added {
    std::uint64_t id;
    std::shared_ptr<const CommHooks> hooks;
  };
  using List = std::vector<Added>;
  template <class Function, class... Args>
  void tell(Function CommHooks::*which, const Args&... args) const;
  [[nodiscard]] std::shared_ptr<const List> list() const;

  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const List> list_ = std::make_shared<const List>();  // a change makes another one
  std::uint64_t last_id_ = 0;
};

}  // namespace headrace::collectives
