// SPDX-License-Identifier: Apache-2.0
#include "collectives/fake_comm.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "collectives/check_options.hpp"
#include "collectives/split.hpp"

#include <headrace/version.hpp>

#include <utility>

namespace headrace::collectives {

Result<std::shared_ptr<Comm::Core>> FakeComm::open(const CommOptions& options) {
  return std::shared_ptr<Core>(std::make_shared<FakeComm>(options, all_ranks(options.size)));
}

FakeComm::FakeComm(CommOptions options, std::vector<int> ranks)
    : Core({options.rank, options.size, options.name, std::move(ranks), device_of(options)},
           std::make_shared<Hooks>()),
      options_(std::move(options)) {}

std::string_view FakeComm::backend_version() const { return HEADRACE_VERSION; }

CommOptions FakeComm::options() const {
  const std::scoped_lock lock(mutex_);
  return options_;
}

void FakeComm::set_timeout(Timeout timeout) {
  const std::scoped_lock lock(mutex_);
  options_.timeout = timeout;
}

Result<void> FakeComm::set_hints(const std::map<std::string, std::string>& hints) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, value] : hints) options_.hints[name] = value;
  return {};
}

Result<std::shared_ptr<Comm::Core>> FakeComm::split(std::span<const int> ranks, const std::string& name,
                                                    const SplitOptions& changes) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY(mine, index_in_group(ranks, rank(), size()));
  if (over_.load(std::memory_order_acquire)) return why_over();
  if (ranks.empty()) return std::shared_ptr<Core>();
  HEADRACE_TRY_VOID(check_name(name));
  return std::shared_ptr<Core>(
      std::make_shared<FakeComm>(options_of_split(ranks, mine, name, changes), first_ranks(ranks)));
}

void FakeComm::abort(std::string_view reason) {
  if (forked()) return;
  Error cause{Code::canceled, fmt::format("rank {} aborted {}: {}", rank(), name_text(name()), reason)};
  {
    const std::scoped_lock lock(mutex_);
    if (cause_) return;
    cause_ = cause;
    over_.store(true, std::memory_order_release);
    aborted_.store(true, std::memory_order_release);
  }
  hooks()->aborted(cause);
}

Result<void> FakeComm::finalize() {
  if (forked()) return why_not_in_child();
  if (ended()) return why_over();
  close();
  return {};
}

void FakeComm::close() {
  over_.store(true, std::memory_order_release);
  if (!forked()) registrations().clear();
}

Result<void> FakeComm::check_open() {
  if (over_.load(std::memory_order_acquire)) return why_over();
  return {};
}

Error FakeComm::why_over() const {
  const std::scoped_lock lock(mutex_);
  return cause_ ? *cause_ : why_closed();
}

Result<Work> FakeComm::issue(CommCall& call, std::shared_ptr<const void>) {
  if (over_.load(std::memory_order_acquire)) return refused(call.operation, why_over());
  auto& last = is_message(call.operation) ? message_number_ : number_;
  call.number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  hooks()->scheduled(call);
  const CommCallId id{call.operation, call.number};
  hooks()->started(id);
  if (call.operation == CommOperation::recv) {  // its work tells the source
    auto work = std::make_shared<Work::State>(shared_from_this(), Call{call.operation, call.number}, nullptr);
    work->set_source(call.peer);
    work->end({});
    return Work(std::move(work));
  }
  hooks()->completed(id, Error{Code::ok, {}});
  return Work();
}

}  // namespace headrace::collectives
