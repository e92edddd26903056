// SPDX-License-Identifier: Apache-2.0
#include "collectives/hooks.hpp"

#include <headrace/comm_hooks.hpp>

namespace headrace::collectives {

std::uint64_t Hooks::add(CommHooks hooks) {
  const std::scoped_lock lock(mutex_);
  auto changed = std::make_shared<List>(*list_);
  changed->push_back({++last_id_, std::make_shared<const CommHooks>(std::move(hooks))});
  list_ = std::move(changed);
  any_.store(true, std::memory_order_relaxed);
  return last_id_;
}

void Hooks::remove(std::uint64_t id) {
  const std::scoped_lock lock(mutex_);
  auto changed = std::make_shared<List>(*list_);
  std::erase_if(*changed, [id](const Added& one) { return one.id == id; });
  any_.store(!changed->empty(), std::memory_order_relaxed);
  list_ = std::move(changed);
}

std::shared_ptr<const Hooks::List> Hooks::list() const {
  const std::scoped_lock lock(mutex_);
  return list_;
}

template <class Function, class... Args>
void Hooks::tell(Function CommHooks::*which, const Args&... args) const {
  if (!any()) return;
  const auto all = list();
  for (const Added& one : *all)
    if (const auto& function = (*one.hooks).*which) function(args...);
}

Result<void> Hooks::before(const CommCall& call) const {
  const auto all = list();
  for (const Added& one : *all) {
    if (!one.hooks->before) continue;
    if (auto allowed = one.hooks->before(call); !allowed) return allowed;
  }
  return {};
}
void Hooks::scheduled(const CommCall& call) const { tell(&CommHooks::scheduled, call); }
void Hooks::started(const CommCallId& call) const { tell(&CommHooks::started, call); }
void Hooks::completed(const CommCallId& call, const Error& error) const {
  tell(&CommHooks::completed, call, error);
}
void Hooks::after(const CommCall& call, const Result<Work>& result) const {
  tell(&CommHooks::after, call, result);
}
void Hooks::aborted(const Error& cause) const { tell(&CommHooks::aborted, cause); }

}  // namespace headrace::collectives

namespace headrace {

CommHook::CommHook(std::weak_ptr<collectives::Hooks> hooks, std::uint64_t id)
    : hooks_(std::move(hooks)), id_(id) {}

void CommHook::remove() {
  if (const auto hooks = hooks_.lock()) hooks->remove(id_);
  hooks_.reset();
}

}  // namespace headrace
