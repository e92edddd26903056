// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/abort_hooks.hpp"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

namespace headrace::torchcomms_backend {

void AbortHooks::add(std::int64_t id, ::torch::comms::AbortHook hook) {
  const std::scoped_lock lock(mutex_);
  hooks_.insert_or_assign(id, std::move(hook));
}

void AbortHooks::remove(std::int64_t id) {
  const std::scoped_lock lock(mutex_);
  hooks_.erase(id);
}

void AbortHooks::run() {
  std::map<std::int64_t, ::torch::comms::AbortHook> hooks;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(has_run_, true)) return;
    hooks = hooks_;
  }
  for (const auto& [id, hook] : hooks) {
    try {
      hook();
    } catch (const std::exception& error) {
      TORCH_WARN("an abort hook raised: ", error.what());
    }
  }
}

void AbortHooks::renew() {
  const std::scoped_lock lock(mutex_);
  has_run_ = false;
}

}  // namespace headrace::torchcomms_backend
