// SPDX-License-Identifier: Apache-2.0
#include "collectives/table_store.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"
#include "collectives/meeting.hpp"
#include "collectives/work_state.hpp"

#include <utility>

namespace headrace::collectives {

TableStore::TableStore(std::shared_ptr<CommStore> place, std::string name, int rank, int size, Timeout limit,
                       const std::function<bool()>& interrupted)
    : place_(std::move(place)),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      limit_(limit),
      interrupted_(interrupted) {}

Result<void> TableStore::meet() {
  if (!place_)
    return make_error(
        Code::invalid_argument,
        "the backend needs a place where the ranks meet: give `meeting` (tcp://host:port of rank "
        "0, file:///folder, memory:NAME or etcd://host:port)");
  if (!prefix_.empty()) return {};
  Meeting meeting(*place_, name_, rank_, size_, Interrupt(interrupted_));
  HEADRACE_TRY(prefixes,
               meeting.exchange(fmt::format("{}/{:016x}", name_, random_u64()), deadline_of(limit_)));
  prefix_ = std::move(prefixes.front());
  return {};
}

Result<void> TableStore::set(const std::string& key, const std::string& value) {
  const std::scoped_lock lock(mutex_);
  HEADRACE_TRY_VOID(meet());
  return place_->set(fmt::format("{}/{}", prefix_, key), value);
}

Result<std::string> TableStore::get(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  HEADRACE_TRY_VOID(meet());
  return place_->get(fmt::format("{}/{}", prefix_, key));
}

}  // namespace headrace::collectives
