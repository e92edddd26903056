// SPDX-License-Identifier: Apache-2.0
// Functions that are called once when a communicator ends by an abort or by an operation that failed.
#pragma once

#include <comms/torchcomms/TorchCommHooks.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace headrace::torchcomms_backend {

///   threads  any. The functions run without a lock: those of Python take the GIL
class AbortHooks {
 public:
  void add(std::int64_t id, ::torch::comms::AbortHook hook);
  void remove(std::int64_t id);
  /// Calls all, the first time; an exception of one is logged and does not keep the others from being called.
  void run();
  /// The communicator has other ranks now: the next run calls them again.
  void renew();
  /// Forgets all: the communicator ends, and works that are under way call none.
  void clear();

 private:
  // Hooks of Python may neither be copied nor freed without the GIL, so pointers are copied, and a hook is
  // freed by the thread that removes it.
  using Hook = std::shared_ptr<const ::torch::comms::AbortHook>;
  std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
  bool has_run_ = false;
};

}  // namespace headrace::torchcomms_backend
