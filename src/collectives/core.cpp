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

Error Comm::Core::refused(std::string_view operation, Error error) const {
  return std::move(error).within(fmt::format("rank {}, {} of {}", rank(), operation, name_text(name())));
}

Result<Work> Comm::Core::call(CommCall& call, std::shared_ptr<const void> owner) {
  if (forked()) return why_not_in_child();
  if (!hooks_->any()) return issue(call, std::move(owner));
  HEADRACE_TRY_VOID(hooks_->before(call));
  Result<Work> result = issue(call, std::move(owner));
  hooks_->after(call, result);
  return result;
}

Error Comm::Core::not_in_backend(std::string_view what) const {
  return make_error(Code::not_supported, "backend {} has no {}", backend(), what);
}
Result<std::string> Comm::Core::init_handle() { return not_in_backend("init_handle"); }
Result<std::shared_ptr<Comm::Core>> Comm::Core::reconfigure(const std::string& /*uuid*/,
                                                            std::span<const std::string> /*handles*/,
                                                            const SplitOptions& /*changes*/) {
  return not_in_backend("reconfigure");
}
Result<std::shared_ptr<Comm::Core>> Comm::Core::shrink(std::span<const int> /*excluded*/,
                                                       const SplitOptions& /*changes*/) {
  return not_in_backend("shrink");
}

namespace collectives {

Error described(const Comm::Core& core, const Call& call, Error error) {
  return std::move(error).within(fmt::format("rank {}, {} number {} of {}", core.rank(),
                                             comm_operation_name(call.operation), call.number,
                                             name_text(core.name())));
}

}  // namespace collectives
}  // namespace headrace
