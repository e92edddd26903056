// SPDX-License-Identifier: Apache-2.0
#include "collectives/core.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"

#include <utility>

namespace headrace {

Comm::Core::Core(collectives::Identity identity, std::shared_ptr<collectives::Hooks> hooks)
    : identity_(std::move(identity)), hooks_(std::move(hooks)) {}

Error Comm::Core::why_not_in_child() const {
  return make_error(Code::invalid_argument,
                    "the communicator {} was opened before this process was forked: open one of its own in "
                    "the child",
                    name_text(name()));
}

Error Comm::Core::refused(CommOperation operation, Error error) const {
  return std::move(error).within(
      fmt::format("rank {}, {} of {}", rank(), comm_operation_name(operation), name_text(name())));
}

Result<Work> Comm::Core::call(CommCall& call, std::shared_ptr<const void> owner) {
  if (forked()) return why_not_in_child();
  if (!hooks_->any()) return issue(call, std::move(owner));
  HEADRACE_TRY_VOID(hooks_->before(call));
  Result<Work> result = issue(call, std::move(owner));
  hooks_->after(call, result);
  return result;
}

namespace collectives {

Error described(const Comm::Core& core, const Call& call, Error error) {
  return std::move(error).within(fmt::format("rank {}, {} number {} of {}", core.rank(),
                                             comm_operation_name(call.operation), call.number,
                                             name_text(core.name())));
}

}  // namespace collectives
}  // namespace headrace
