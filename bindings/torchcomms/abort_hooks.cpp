// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/abort_hooks.hpp"

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

namespace headrace::torchcomms_backend {

void AbortHooks::add(std::int64_t id, ::torch::comms::AbortHook hook) {
  auto kept = std::make_shared<const ::torch::comms::AbortHook>(std::move(hook));
  const std::scoped_lock lock(mutex_);
  hooks_.insert_or_assign(id, std::move(kept));
}

void AbortHooks::remove(std::int64_t id) {
  Hook removed;
  const std::scoped_lock lock(mutex_);
  if (const auto found = hooks_.find(id); found != hooks_.end()) removed = std::move(found->second);
  hooks_.erase(id);
}

void AbortHooks::run() {
  std::map<std::int64_t, Hook> hooks;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(has_run_, true)) return;
    hooks = hooks_;
  }
  for (const auto& [id, hook] : hooks) {
    try {
      (*hook)();
    } catch (const std::exception& error) {
      TORCH_WARN("an abort hook raised: ", error.what());
    }
  }
  const std::scoped_lock lock(mutex_);
  for (auto& [id, hook] :
       hooks)  // one that was removed meanwhile stays for good: this thread may not free it
    if (!hooks_.contains(id)) static_cast<void>(new Hook(std::move(hook)));
}

void AbortHooks::clear() {
  std::map<std::int64_t, Hook> cleared;
  const std::scoped_lock lock(mutex_);
  cleared.swap(hooks_);
}

void AbortHooks::renew() {
  const std::scoped_lock lock(mutex_);
  has_run_ = false;
}

}  // namespace headrace::torchcomms_backend
