// SPDX-License-Identifier: Apache-2.0
#include "collectives/table_window.hpp"

#include "base/errors.hpp"
#include "collectives/missing_ranks.hpp"

#include <algorithm>
#include <utility>

namespace headrace::collectives {
namespace {

headrace_comm_elements_v1 table_elements(const ConstElements& elements) {
  return {const_cast<void*>(elements.data), elements.count, static_cast<std::int32_t>(elements.dtype)};
}

template <class T>
Result<Work> as_work(const Result<T>& result) {
  if (!result) return result.error();
  return Work();
}

}  // namespace

// ------------------------------------------------------------------ registrations

Error TableWindow::refused(std::string_view function, Error error) const {
  return comm_->refused(function, std::move(error).within(fmt::format("window {}", number_)));
}

Result<TableWindow::Current> TableWindow::current() const {
  const std::scoped_lock lock(mutex_);
  if (opened_) return opened_;
  return make_error(Code::invalid_argument,
                    "no memory is registered: call tensor_register or allocate on all ranks first");
}

Result<TableWindow::Current> TableWindow::current_for(int rank) const {
  HEADRACE_TRY(opened, current());
  HEADRACE_TRY_VOID(check_window_rank(rank, comm_->size()));
  return opened;
}

Result<void> TableWindow::open(WindowMemory memory) {
  if (forked()) return comm_->why_not_in_child();
  constexpr auto operation = CommOperation::tensor_register;
  if (current())
    return refused(operation, make_error(Code::invalid_argument,
                                         "memory is registered already: call tensor_deregister first"));
  if (auto wrong = check_memory(memory); !wrong) return refused(operation, std::move(wrong).error());
  const auto ranks = static_cast<std::size_t>(comm_->size());
  auto opened = std::make_shared<Opened>();
  opened->counts.resize(ranks);
  opened->places.resize(ranks);
  headrace_comm_window_v1 window{};
  window.struct_size = sizeof window;
  window.elements = table_elements(memory.elements);
  window.counts = opened->counts.data();
  window.places = opened->places.data();
  HEADRACE_TRY_VOID(comm_->window_open(window, memory.owner));
  opened->number = window.window;
  opened->elements = {window.elements.data, memory.elements.count, memory.elements.dtype};
  opened->owner = std::move(memory.owner);
  opened->device = static_cast<const headrace_device_window_v1*>(window.device_window);
  const std::scoped_lock lock(mutex_);
  opened_ = std::move(opened);
  return {};
}

/// After an error the communicator keeps the owner of the memory.
Result<void> TableWindow::close() {
  if (forked()) return comm_->why_not_in_child();
  auto opened = current();
  if (!opened) return refused(CommOperation::tensor_deregister, std::move(opened).error());
  auto closed = comm_->window_close((*opened)->number);
  if (!closed && !comm_->ended()) return closed;
  const std::scoped_lock lock(mutex_);
  opened_.reset();
  return closed;
}

Result<Elements> TableWindow::tensor() const {
  auto opened = current();
  if (!opened) return refused("tensor", std::move(opened).error());
  return (*opened)->elements;
}

Result<RemoteTensor> TableWindow::map(int rank) {
  auto opened = current_for(rank);
  if (!opened) return refused("map_remote_tensor", std::move(opened).error());
  const Opened& it = **opened;
  if (rank == comm_->rank()) return RemoteTensor{it.elements, it.owner};
  const WindowPart part = it.part(rank);
  if (part.count == 0) return RemoteTensor{{nullptr, 0, part.dtype}, nullptr};
  if (it.place(rank) != 0)
    return RemoteTensor{{reinterpret_cast<void*>(it.place(rank)), part.count, part.dtype}, comm_};
  return refused(
      "map_remote_tensor",
      make_error(Code::not_supported, "backend {} does not map the elements of rank {} here: use put and get",
                 comm_->backend(), rank));
}

Result<const headrace_device_window_v1*> TableWindow::device_window() const {
  auto opened = current();
  if (!opened) return refused("get_device_window", std::move(opened).error());
  if ((*opened)->device != nullptr) return (*opened)->device;
  return refused("get_device_window",
                 make_error(Code::not_supported, "windows of backend {} are not for kernels: use backend p2p",
                            comm_->backend()));
}

Result<WindowAttr> TableWindow::attr(int rank) const {
  auto opened = current_for(rank);
  if (!opened) return refused("get_attr", std::move(opened).error());
  const bool is_mapped = rank == comm_->rank() || (*opened)->place(rank) != 0;
  return WindowAttr{is_mapped ? WindowAccess::unified : WindowAccess::separate, (*opened)->part(rank).count};
}

// ------------------------------------------------------------------ operations

TableWindow::Operation TableWindow::operation(CommOperation operation, int rank,
                                              const WindowOptions& options) {
  Operation made{};
  made.call.operation = operation;
  made.call.peer = rank;
  made.call.async = options.async;
  made.call.timeout = options.timeout;
  made.call.stream = options.stream;
  made.table_call.struct_size = sizeof made.table_call;
  made.table_call.operation = static_cast<std::int32_t>(operation);
  made.table_call.async = options.async ? 1 : 0;
  made.table_call.peer = rank;
  made.table_call.stream = options.stream;
  return made;
}

template <class Check>
Result<Work> TableWindow::start(Operation& operation, std::shared_ptr<const void> owner, const Check& check) {
  if (forked()) return comm_->why_not_in_child();
  const auto allowed = [&]() -> Result<void> {
    HEADRACE_TRY(opened, current_for(operation.call.peer));
    operation.table_call.window = opened->number;
    return check(*opened);
  };
  if (auto wrong = allowed(); !wrong) return refused(operation.call.operation, std::move(wrong).error());
  if (comm_->hooks()->any()) HEADRACE_TRY_VOID(comm_->hooks()->before(operation.call));
  Result<Work> result = issue(operation, std::move(owner));
  if (comm_->hooks()->any()) comm_->hooks()->after(operation.call, result);
  return result;
}

/// On a GPU no put, get and signal waits in the call.
Result<Work> TableWindow::issue(Operation& operation, std::shared_ptr<const void> owner) {
  HEADRACE_TRY(work, comm_->window_issue(number_, operation.call, operation.table_call, std::move(owner)));
  const bool waits = operation.table_call.result != nullptr || !(operation.call.async || comm_->on_gpu());
  if (waits) HEADRACE_TRY_VOID(comm_->wait_for_one_sided(*work));
  Work made(work);
  const std::scoped_lock lock(mutex_);
  std::erase_if(begun_, [](const Work& one) { return one.status() > WorkStatus::in_progress; });
  if (!waits) begun_.push_back(made);
  return made;
}

/// What the backend writes to stays until it has ended the work, also when the caller no longer waits.
template <class Check>
Result<std::uint64_t> TableWindow::now(Operation& operation, const Check& check) {
  const auto result = std::make_shared<std::uint64_t>(0);
  operation.table_call.result = result.get();
  operation.table_call.async = 1;
  HEADRACE_TRY_VOID(start(operation, result, check));
  return *result;
}

Result<Work> TableWindow::put(const ConstElements& from, int rank, std::size_t at,
                              const WindowOptions& options) {
  Operation made = operation(CommOperation::put, rank, options);
  made.call.inputs = {&from, 1};
  made.table_call.elements = table_elements(from);
  made.table_call.offset = at;
  return start(made, options.owner,
               [&](const Opened& opened) { return check_window_range(from, at, opened.part(rank)); });
}

Result<Work> TableWindow::get(const Elements& to, int rank, std::size_t at, const WindowOptions& options) {
  Operation made = operation(CommOperation::get, rank, options);
  made.call.outputs = {&to, 1};
  made.table_call.elements = table_elements(to);
  made.table_call.offset = at;
  return start(made, options.owner,
               [&](const Opened& opened) { return check_window_range(to, at, opened.part(rank)); });
}

Result<Work> TableWindow::signal(int rank, const Signal& signal, const WindowOptions& options) {
  Operation made = operation(CommOperation::signal, rank, options);
  made.table_call.kind = static_cast<std::int32_t>(signal.kind);
  made.table_call.value = signal.value;
  return start(made, options.owner, [&](const Opened&) { return check_window_signal(signal); });
}

Result<std::uint64_t> TableWindow::wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                               Timeout timeout) {
  Operation made = operation(CommOperation::wait_signal, rank, {.timeout = timeout});
  made.table_call.kind =
      condition ? static_cast<std::int32_t>(condition->comparison) : std::int32_t{HEADRACE_COMM_TAKE};
  made.table_call.value = condition ? condition->value : 0;
  return now(made, [&](const Opened&) { return check_window_condition(condition); });
}

Result<std::int64_t> TableWindow::atomic_add(int rank, std::size_t at, std::int64_t value, Timeout timeout) {
  Operation made = operation(CommOperation::atomic_add, rank, {.timeout = timeout});
  made.table_call.offset = at;
  made.table_call.value = static_cast<std::uint64_t>(value);
  HEADRACE_TRY(before, now(made, [&](const Opened& opened) {
                 return check_window_atomic(at, opened.part(rank), opened.place(rank));
               }));
  return static_cast<std::int64_t>(before);
}

Result<void> TableWindow::flush(Timeout timeout) {
  auto opened = current();
  if (!opened) return refused(CommOperation::flush, std::move(opened).error());
  const Timeout limit = timeout ? timeout : comm_->options().timeout;
  const Deadline deadline = deadline_of(limit);
  std::vector<Work> begun;
  {
    const std::scoped_lock lock(mutex_);
    begun = begun_;
  }
  for (const Work& work : begun) {
    static_cast<void>(work.wait(time_left(deadline)));
    if (work.status() > WorkStatus::in_progress) continue;
    return refused(
        CommOperation::flush,
        make_error(Code::timed_out, "operations of this rank are under way after {}", duration_text(limit)));
  }
  return {};
}

}  // namespace headrace::collectives
