// SPDX-License-Identifier: Apache-2.0
#include "engine/backends.hpp"

#include "base/errors.hpp"

#include <mutex>
#include <utility>

namespace headrace::engine {

Result<BackendInstance*> Backends::open(const FoundBackend& found, const InstanceArgs& args,
                                        HostEvents& events) {
  if (found.table == nullptr) return Error{Code::not_supported, found.refusal};
  {
    const std::shared_lock lock(mutex_);
    HEADRACE_TRY_VOID(check_new(found.name));
  }
  HEADRACE_TRY(instance, BackendInstance::open(found.table, args, events));
  std::string info;
  if (instance->can(HEADRACE_REMOTE)) {
    HEADRACE_TRY(given, instance->connection_info());
    info = std::move(given);
  }
  const std::unique_lock lock(mutex_);
  HEADRACE_TRY_VOID(check_new(found.name));  // another thread may have opened it meanwhile
  return open_.emplace_back(Open{std::move(instance), std::move(info)}).instance.get();
}

/// `mutex_` is held.
Result<void> Backends::check_new(const std::string& name) const {
  for (const Open& open : open_)
    if (open.instance->name() == name)
      return make_error(Code::invalid_argument, "backend {} is open already: an agent has one of each", name);
  if (open_.size() == max_backends)
    return make_error(Code::exhausted, "an agent opens at most {} backends: name those that it needs",
                      max_backends);
  return {};
}

std::vector<BackendInstance*> Backends::all() const {
  const std::shared_lock lock(mutex_);
  std::vector<BackendInstance*> all;
  all.reserve(open_.size());
  for (const Open& open : open_) all.push_back(open.instance.get());
  return all;
}

std::size_t Backends::index(const BackendInstance& backend) const {
  const std::shared_lock lock(mutex_);
  for (std::size_t i = 0; i < open_.size(); ++i)
    if (open_[i].instance.get() == &backend) return i;
  return max_backends;
}

std::vector<wire::Metadata::Backend> Backends::exported(bool connection_info) const {
  const std::shared_lock lock(mutex_);
  std::vector<wire::Metadata::Backend> rows;
  rows.reserve(open_.size());
  for (const Open& open : open_) {
    const bool with_info = connection_info && open.instance->can(HEADRACE_REMOTE);
    rows.push_back({open.instance->name(), open.instance->table().version,
                    with_info ? std::optional(open.connection_info) : std::nullopt});
  }
  return rows;
}

void Backends::end() {
  for (BackendInstance* const backend : all()) backend->end();
}

void Backends::abandon() {
  for (Open& open : open_) (void)open.instance.release();
}

}  // namespace headrace::engine
