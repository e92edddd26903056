// SPDX-License-Identifier: Apache-2.0
#include "collectives/core.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"

#include <utility>

namespace headrace {
namespace {

/// What a group reads and writes, for hooks.
class GroupCall {
 public:
  GroupCall(CommOperation operation, std::span<const collectives::KeptCall> calls, bool async) {
    for (const collectives::KeptCall& kept : calls) {
      const CommCall call = kept.call();
      inputs_.insert(inputs_.end(), call.inputs.begin(), call.inputs.end());
      outputs_.insert(outputs_.end(), call.outputs.begin(), call.outputs.end());
    }
    call_.operation = operation;
    call_.inputs = inputs_;
    call_.outputs = outputs_;
    call_.async = async;
  }
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;
  [[nodiscard]] CommCall& call() { return call_; }

 private:
  std::vector<ConstElements> inputs_;
  std::vector<Elements> outputs_;
  CommCall call_;
};

}  // namespace

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

Error Comm::Core::why_closed() const {
  return make_error(Code::invalid_argument, "the communicator {} has been finalized: open another one",
                    name_text(name()));
}

CommOptions Comm::Core::options_of_split(std::span<const int> group, int mine, const std::string& name,
                                         const SplitOptions& changes) const {
  CommOptions options = this->options();
  for (const auto& [hint, value] : changes.hints) options.hints[hint] = value;
  if (changes.timeout) options.timeout = changes.timeout;
  if (changes.meeting_timeout) options.meeting_timeout = changes.meeting_timeout;
  options.rank = mine;
  options.size = static_cast<int>(group.size());
  options.name = name;
  return options;
}

std::vector<int> Comm::Core::first_ranks(std::span<const int> group) const {
  std::vector<int> ranks;
  ranks.reserve(group.size());
  for (const int rank : group) ranks.push_back(this->ranks()[static_cast<std::size_t>(rank)]);
  return ranks;
}

Result<Work> Comm::Core::call(CommCall& call, std::shared_ptr<const void> owner) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY_VOID(check_stream(call.operation, call.stream));
  if (const auto work = coalesces()) return keep(call, std::move(owner), work);
  if (!hooks_->any()) return issue(call, std::move(owner));
  HEADRACE_TRY_VOID(hooks_->before(call));
  Result<Work> result = issue(call, std::move(owner));
  hooks_->after(call, result);
  return result;
}

Result<void> Comm::Core::check_stream(CommOperation operation, const void* stream) const {
  if (stream == nullptr || on_gpu()) return {};
  return refused(operation,
                 make_error(Code::invalid_argument,
                            "a stream is given, and the communicator moves host memory: give none, "
                            "or open it with a GPU as its device"));
}

Result<void> Comm::Core::wait_on(Work::State& work, void* /*stream*/) {
  static_cast<void>(wait(work, Deadline::never()));
  if (work.status() == WorkStatus::completed) return {};
  return work.error();
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
Result<void> Comm::Core::suspend() { return not_in_backend("suspend"); }
Result<void> Comm::Core::resume() { return not_in_backend("resume, because it is never suspended"); }
Result<Window> Comm::Core::new_window() { return not_in_backend("windows"); }

Result<void> Comm::Core::check_not_coalescing() const {
  if (!coalesces()) return {};
  return make_error(Code::invalid_argument,
                    "this thread keeps its calls, and this one cannot be kept: call end_coalescing first");
}

Result<void> Comm::Core::tensor_register(const Elements& tensor, std::shared_ptr<const void> owner) {
  constexpr auto operation = CommOperation::tensor_register;
  auto done = check_not_coalescing();
  if (done) done = check_open();
  if (done) done = registrations_.add(tensor, 0, std::move(owner));
  if (!done) return refused(operation, std::move(done).error());
  return {};
}

Result<void> Comm::Core::tensor_deregister(const Elements& tensor) {
  constexpr auto operation = CommOperation::tensor_deregister;
  auto done = check_not_coalescing();
  if (done) done = check_open();
  if (!done) return refused(operation, std::move(done).error());
  const auto taken = registrations_.take(tensor);  // its owner goes after all locks
  if (!taken) return refused(operation, taken.error());
  return {};
}

Result<Work> Comm::Core::keep(CommCall& call, std::shared_ptr<const void> owner,
                              const std::shared_ptr<Work::State>& work) {
  if (auto right = check(call); !right) return refused(call.operation, std::move(right).error());
  HEADRACE_TRY_VOID(hooks_->before(call));
  coalescer_.keep(collectives::KeptCall(call, std::move(owner)));
  Result<Work> result = Work(work);
  hooks_->after(call, result);
  return result;
}

Result<Work> Comm::Core::keep_batch(std::span<const collectives::KeptCall> messages,
                                    const std::shared_ptr<const void>& owner,
                                    const std::shared_ptr<Work::State>& work) {
  for (const collectives::KeptCall& kept : messages) {
    CommCall call = kept.call();
    HEADRACE_TRY_VOID(keep(call, owner, work));
  }
  return Work(work);
}

Result<Work> Comm::Core::batch(std::span<const collectives::KeptCall> messages, const OpOptions& options) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY_VOID(check_stream(CommOperation::batch, options.stream));
  if (messages.empty()) return Work();
  if (const auto work = coalesces()) return keep_batch(messages, options.owner, work);
  GroupCall group(CommOperation::batch, messages, options.async);
  group.call().timeout = options.timeout;
  group.call().stream = options.stream;
  HEADRACE_TRY_VOID(hooks_->before(group.call()));
  Result<Work> result = issue_group(group.call(), messages, make_group(CommOperation::batch, options.owner));
  hooks_->after(group.call(), result);
  return result;
}

std::shared_ptr<Work::State> Comm::Core::make_group(CommOperation operation,
                                                    std::shared_ptr<const void> owner) {
  collectives::Call call;
  call.operation = operation;
  call.number = ++group_number_;
  return std::make_shared<Work::State>(shared_from_this(), call, std::move(owner));
}

Result<Work> Comm::Core::issue_group(CommCall& call, std::span<const collectives::KeptCall> calls,
                                     const std::shared_ptr<Work::State>& work) {
  call.number = work->call().number;
  hooks_->scheduled(call);
  work->begin();
  hooks_->started(work->call().id());
  const auto group = std::make_shared<collectives::Group>(work);
  issue_all(calls, call.async, *group);
  group->seal();
  if (!call.async && !on_gpu()) HEADRACE_TRY_VOID(wait_in_call(work));
  return Work(work);
}

void Comm::Core::issue_all(std::span<const collectives::KeptCall> calls, bool async,
                           collectives::Group& group) {
  for (const collectives::KeptCall& kept : calls) {
    CommCall call = kept.call();
    call.async = async || !on_gpu();  // none waits; on a GPU it says how streams are ordered
    call.group = group.id();
    const auto work = issue(call, kept.owner());
    work ? group.add(*work) : group.refuse(work.error());
  }
}

Result<void> Comm::Core::wait_in_call(const std::shared_ptr<Work::State>& work) {
  static_cast<void>(wait(*work, Deadline::never()));
  if (work->status() == WorkStatus::completed) return {};
  return work->error();
}

Result<void> Comm::Core::start_coalescing() {
  if (forked()) return why_not_in_child();
  if (auto started = coalescer_.start(make_group(CommOperation::coalesced, nullptr)); !started)
    return refused(CommOperation::coalesced, std::move(started).error());
  return {};
}

Result<Work> Comm::Core::end_coalescing(bool async) {
  if (forked()) return why_not_in_child();
  auto kept = coalescer_.take();
  if (!kept) return refused(CommOperation::coalesced, std::move(kept).error());
  GroupCall group(CommOperation::coalesced, kept->calls, async);
  return issue_group(group.call(), kept->calls, kept->work);
}

Result<void> Comm::Core::cancel_coalescing(std::string_view reason) {
  if (forked()) return why_not_in_child();
  auto kept = coalescer_.take();
  if (!kept) return refused(CommOperation::coalesced, std::move(kept).error());
  kept->work->end(make_error(Code::canceled, "its calls are not issued: {}", reason));
  return {};
}

namespace collectives {

Error described(const Comm::Core& core, const Call& call, Error error) {
  std::string name = fmt::format("{} number {}", comm_operation_name(call.operation), call.number);
  if (call.group.number != 0)
    name += fmt::format(" of {} number {}", comm_operation_name(call.group.operation), call.group.number);
  const std::string own = fmt::format("rank {}, {} of {}", core.rank(), name, name_text(core.name()));
  if (error.message.starts_with(own + ": ")) return error;  // the end of the communicator by this call
  if (call.window != 0) error = std::move(error).within(fmt::format("window {}", call.window));
  return std::move(error).within(own);
}

}  // namespace collectives
}  // namespace headrace
