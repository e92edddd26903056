// SPDX-License-Identifier: Apache-2.0
#include "collectives/table_comm.hpp"

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/names.hpp"
#include "base/start_thread.hpp"
#include "base/waiter.hpp"
#include "collectives/check_options.hpp"
#include "collectives/meeting.hpp"
#include "collectives/missing_ranks.hpp"
#include "collectives/split.hpp"
#include "collectives/table_call.hpp"
#include "collectives/table_window.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

namespace headrace::collectives {

/// What the functions of the host get as their context.
struct TableHost {
  headrace_comm_host_v1 table{};
  std::weak_ptr<TableComm> comm;
  std::string backend;
  Log log{Logger::process_default(), "collectives"};
  std::optional<TableStore> store;
  std::atomic<bool> meets{false};  // inside open and split
};

namespace {

constexpr std::uint32_t message_limit = 4096;
constexpr auto grace = std::chrono::milliseconds(50);  // after an abort, for the backend to end its works
constexpr auto longest_sleep = std::chrono::milliseconds(10);
constexpr auto after_backend =
    std::chrono::milliseconds(500);  // a late wait_signal, if the backend says nothing

std::string_view text_of(const char* text, std::size_t length) {
  if (text == nullptr) return {};
  return {text, std::min<std::size_t>(length, message_limit)};
}

/// No exception crosses the border.
template <class Body>
void told(void* context, const Body& body) noexcept {
  TableHost& host = *static_cast<TableHost*>(context);
  try {
    body(host);
  } catch (const std::exception& thrown) {
    host.log.error("backend {}: a function of the host failed: {}", host.backend, thrown.what());
  }
}

void end(void* context, std::uint64_t work, std::int32_t code, const char* message, std::size_t length,
         std::int32_t source) {
  told(context, [&](TableHost& host) {
    const auto comm = host.comm.lock();
    if (!comm) return;
    Result<void> result;
    if (code != HEADRACE_OK) result = table_error(host.backend, code, text_of(message, length));
    comm->work_ended(work, std::move(result), source);
  });
}

void ended(void* context, std::int32_t code, const char* message, std::size_t length) {
  told(context, [&](TableHost& host) {
    if (const auto comm = host.comm.lock())
      comm->comm_ended(table_error(host.backend, code, text_of(message, length)));
  });
}

int log_enabled(void* context, std::int32_t level) {
  return static_cast<TableHost*>(context)->log.enabled(static_cast<LogLevel>(level)) ? 1 : 0;
}

void log(void* context, std::int32_t level, const char* text, std::size_t length) {
  told(context, [&](TableHost& host) {
    if (!host.log.enabled(static_cast<LogLevel>(level))) return;
    Logger::process_default().write(static_cast<LogLevel>(level), "collectives",
                                    fmt::format("{}: {}", host.backend, text_of(text, length)));
  });
}

/// The code of an error, whose sentence goes to `why`.
std::int32_t answer(const Error& error, headrace_text_v1* why) {
  if (why != nullptr) {
    why->length = std::min(error.message.size(), why->capacity);
    error.message.copy(why->data, why->length);
  }
  return static_cast<std::int32_t>(error.code);
}

/// Runs body(store) if there is one now.
template <class Body>
std::int32_t with_store(void* context, const char* key, headrace_text_v1* why, const Body& body) {
  std::int32_t code = HEADRACE_INTERNAL;
  told(context, [&](TableHost& host) {
    Result<void> done;
    if (key == nullptr)
      done = make_error(Code::invalid_argument, "the key is null");
    else if (!host.meets)
      done = make_error(Code::invalid_argument, "the store is there only while the communicator opens");
    else
      done = body(*host.store);
    code = done ? HEADRACE_OK : answer(done.error(), why);
  });
  return code;
}

std::int32_t set(void* context, const char* key, const void* value, std::size_t length,
                 headrace_text_v1* why) {
  return with_store(context, key, why, [&](TableStore& store) {
    return store.set(key, {static_cast<const char*>(value), length});
  });
}

std::int32_t get(void* context, const char* key, const headrace_sink_v1* value, headrace_text_v1* why) {
  return with_store(context, key, why, [&](TableStore& store) -> Result<void> {
    HEADRACE_TRY(found, store.get(key));
    value->append(value->context, found.data(), found.size());
    return {};
  });
}

std::shared_ptr<TableHost> host_of(const headrace_comm_backend_v1& table) {
  auto host = std::make_shared<TableHost>();
  host->backend = table.name;
  headrace_comm_host_v1& functions = host->table;
  functions.struct_size = sizeof functions;
  functions.abi_minor = HEADRACE_COMM_ABI_MINOR;
  functions.message_limit = message_limit;
  functions.context = host.get();
  functions.end = end;
  functions.ended = ended;
  functions.log_enabled = log_enabled;
  functions.log = log;
  functions.set = set;
  functions.get = get;
  return host;
}

/// A backend that has not ended all its works when it closed may still call: its host stays.
void keep_for_ever(std::shared_ptr<TableHost> host) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<TableHost>>;
  const std::scoped_lock lock(mutex);
  kept.push_back(std::move(host));
}

/// The communicator whose backend this thread is in.
thread_local const TableComm* entered = nullptr;

/// While it lives this thread is in the backend of a communicator.
class Entered {
 public:
  explicit Entered(const TableComm* comm) : outer_(std::exchange(entered, comm)) {}
  ~Entered() { entered = outer_; }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const TableComm* const outer_;
};

}  // namespace

TableComm::TableComm(const headrace_comm_backend_v1& table, CommOptions options, std::vector<int> ranks)
    : Core({options.rank, options.size, options.name, std::move(ranks), device_of(options)},
           std::make_shared<Hooks>()),
      table_(table),
      interrupted_(options.interrupted),
      host_(host_of(table)),
      options_(std::move(options)) {}

TableComm::~TableComm() { close(); }

// --- opening

Result<std::shared_ptr<Comm::Core>> TableComm::open(const headrace_comm_backend_v1& table,
                                                    const CommOptions& options) {
  std::shared_ptr<CommStore> place;
  if (options.size > 1 && (options.store || !options.meeting.empty())) {
    // Before the backend asks: rank 0 of tcp:// serves it.
    HEADRACE_TRY(opened, open_meeting_place(options));
    place = std::move(opened);
  }
  auto made = std::make_shared<TableComm>(table, options, all_ranks(options.size));
  made->host_->store.emplace(std::move(place), fmt::format("{}#{}", options.name, table.name), options.rank,
                             options.size, options.meeting_timeout, made->interrupted_);
  HEADRACE_TRY_VOID(made->start([&](const headrace_comm_setup_v1& setup, void** comm, headrace_text_v1* why) {
    return table.open(table.context, &setup, comm, why);
  }));
  if (options.store && !options.store->lasts()) made->host_->store->leave_place();
  return std::shared_ptr<Core>(std::move(made));
}

template <class Open>
Result<void> TableComm::start(const Open& open) {
  host_->comm = std::static_pointer_cast<TableComm>(shared_from_this());
  const TableSettings hints(&options_.hints);
  headrace_comm_setup_v1 setup{};
  setup.struct_size = sizeof setup;
  setup.host = &host_->table;
  setup.rank = rank();
  setup.size = size();
  setup.device = on_gpu() ? device().index : HEADRACE_COMM_CPU;
  setup.name = name().c_str();
  setup.ranks = ranks().data();
  setup.meeting_timeout_ns = table_timeout(options_.meeting_timeout);
  setup.timeout_ns = table_timeout(options_.timeout);
  setup.hints = hints.data();
  setup.hint_count = hints.size();
  TableText why;
  host_->meets = true;
  const std::int32_t code = open(setup, &comm_, why.out());
  host_->meets = false;
  if (code != HEADRACE_OK) {
    comm_ = nullptr;
    return why.error(table_.name, code);
  }
  if (comm_ == nullptr)
    return make_error(Code::backend_failed, "backend {} opened and gave no handle", table_.name);
  HEADRACE_TRY(thread, start_thread("headrace-comm", [self = std::static_pointer_cast<TableComm>(
                                                          shared_from_this())] { self->watch(); }));
  watcher_ = std::move(thread);
  return {};
}

Result<std::shared_ptr<Comm::Core>> TableComm::split(std::span<const int> ranks, const std::string& name,
                                                     const SplitOptions& changes) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY(mine, index_in_group(ranks, rank(), size()));
  if (!ranks.empty()) HEADRACE_TRY_VOID(check_name(name));
  if (table_.split == nullptr)
    return make_error(Code::not_supported, "backend {} cannot split a communicator: open another one",
                      table_.name);
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  HEADRACE_TRY_VOID(check_open());
  HEADRACE_TRY_VOID(awake());
  const Entered inside(this);
  CommCall call;
  call.operation = CommOperation::split;
  const Call running = begin(call, number_);
  std::shared_ptr<TableComm> part;
  Result<void> done;
  if (ranks.empty()) {
    void* none = nullptr;
    TableText why;
    const std::int32_t code = table_.split(comm_, nullptr, 0, nullptr, &none, why.out());
    if (code != HEADRACE_OK) done = why.error(table_.name, code);
  } else {
    auto made = make_part(ranks, mine, name, fmt::format("{}/{}", call.number, name), changes,
                          [&](const headrace_comm_setup_v1& setup, void** comm, headrace_text_v1* why) {
                            return table_.split(comm_, ranks.data(), ranks.size(), &setup, comm, why);
                          });
    made ? void(part = std::move(*made)) : void(done = std::move(made).error());
  }
  Error error{Code::ok, {}};
  if (!done) error = described(*this, running, std::move(done).error());
  hooks()->completed(running.id(), error);
  if (error.code != Code::ok) return error;
  return std::shared_ptr<Core>(std::move(part));
}

template <class Open>
Result<std::shared_ptr<TableComm>> TableComm::make_part(std::span<const int> group, int mine,
                                                        const std::string& name, std::string key,
                                                        const SplitOptions& changes, const Open& open) {
  auto part =
      std::make_shared<TableComm>(table_, options_of_split(group, mine, name, changes), first_ranks(group));
  part->host_->store.emplace(
      host_->store->place(), fmt::format("{}#{}/{}", this->name(), table_.name, std::move(key)), mine,
      static_cast<int>(group.size()), part->options_.meeting_timeout, part->interrupted_);
  HEADRACE_TRY_VOID(part->start(open));
  return part;
}

Result<std::shared_ptr<Comm::Core>> TableComm::shrink(std::span<const int> excluded,
                                                      const SplitOptions& changes) {
  if (forked()) return why_not_in_child();
  if (table_.shrink == nullptr) return not_in_backend("shrink");
  HEADRACE_TRY(left, ranks_left(excluded, rank(), size()));
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  HEADRACE_TRY_VOID(usable());
  const Entered inside(this);
  const auto mine = static_cast<int>(std::ranges::find(left, rank()) - left.begin());
  const std::string stay = fmt::format("it goes on with ranks {} alone", fmt::join(left, ", "));
  auto part = make_part(left, mine, name(), stay, changes,
                        [&](const headrace_comm_setup_v1& setup, void** comm, headrace_text_v1* why) {
                          return table_.shrink(comm_, excluded.data(), excluded.size(), &setup, comm, why);
                        });
  abort(stay);
  if (!part) return std::move(part).error();
  return std::shared_ptr<Core>(std::move(*part));
}

// --- ranks that the caller brings together

Result<std::string> TableComm::init_handle() {
  if (table_.init_handle == nullptr) return Core::init_handle();
  if (forked()) return why_not_in_child();
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  HEADRACE_TRY_VOID(usable());
  if (!handle_.empty()) return handle_;
  const Entered inside(this);
  std::string handle;
  const headrace_sink_v1 sink{sizeof sink, &handle, [](void* context, const void* bytes, std::size_t length) {
                                static_cast<std::string*>(context)->append(static_cast<const char*>(bytes),
                                                                           length);
                              }};
  TableText why;
  const std::int32_t code = table_.init_handle(comm_, &sink, why.out());
  if (code != HEADRACE_OK) return refused("init_handle", why.error(table_.name, code));
  if (handle.empty())
    return refused("init_handle",
                   make_error(Code::backend_failed, "backend {} wrote an empty handle", table_.name));
  handle_ = handle;
  return handle;
}

/// The position of this rank's handle.
Result<int> TableComm::index_of_handle(std::span<const std::string> handles) const {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto same =
        std::find(handles.begin(), handles.begin() + static_cast<std::ptrdiff_t>(i), handles[i]);
    if (same - handles.begin() != static_cast<std::ptrdiff_t>(i))
      return make_error(Code::invalid_argument, "handles {} and {} are of the same rank",
                        same - handles.begin(), i);
  }
  const auto mine = std::ranges::find(handles, handle_);
  if (!handle_.empty() && mine != handles.end()) return static_cast<int>(mine - handles.begin());
  return make_error(Code::invalid_argument,
                    "the handle of this rank is not among the {} handles: give those of all ranks, each new "
                    "from init_handle, in the same order on each",
                    handles.size());
}

Result<std::shared_ptr<Comm::Core>> TableComm::reconfigure(const std::string& uuid,
                                                           std::span<const std::string> handles,
                                                           const SplitOptions& changes) {
  if (table_.reconfigure == nullptr) return Core::reconfigure(uuid, handles, changes);
  if (forked()) return why_not_in_child();
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY_VOID(awake());
  HEADRACE_TRY(mine, index_of_handle(handles));
  const Entered inside(this);
  handle_.clear();
  const std::vector<int> ranks = all_ranks(static_cast<int>(handles.size()));
  auto made = std::make_shared<TableComm>(table_, options_of_split(ranks, mine, name(), changes), ranks);
  made->host_->store.emplace(nullptr, uuid, mine, static_cast<int>(ranks.size()),
                             made->options_.meeting_timeout, made->interrupted_);
  std::vector<headrace_bytes_v1> bytes;
  for (const std::string& handle : handles) bytes.push_back({handle.data(), handle.size()});
  HEADRACE_TRY_VOID(made->start([&](const headrace_comm_setup_v1& setup, void** comm, headrace_text_v1* why) {
    return table_.reconfigure(comm_, uuid.c_str(), bytes.data(), &setup, comm, why);
  }));
  return std::shared_ptr<Core>(std::move(made));
}

// --- memory that calls use again and again

Result<void> TableComm::tensor_register(const Elements& tensor, std::shared_ptr<const void> owner) {
  if (table_.tensor_register == nullptr) return Core::tensor_register(tensor, std::move(owner));
  const auto check = [&]() -> Result<void> {
    HEADRACE_TRY_VOID(awake());
    return registrations().check_new(tensor);
  };
  return run_quietly(CommOperation::tensor_register, check, [&](Timeout timeout) -> Result<void> {
    const headrace_comm_elements_v1 elements{tensor.data, tensor.count,
                                             static_cast<std::int32_t>(tensor.dtype)};
    std::uint64_t number = 0;
    TableText why;
    const std::int32_t code =
        table_.tensor_register(comm_, &elements, table_timeout(timeout), &number, why.out());
    if (code != HEADRACE_OK) return why.error(table_.name, code);
    if (number == 0)
      return make_error(Code::backend_failed, "backend {} registered memory and gave no number", table_.name);
    return registrations().add(tensor, number, std::move(owner));
  });
}

Result<void> TableComm::tensor_deregister(const Elements& tensor) {
  if (table_.tensor_deregister == nullptr) return Core::tensor_deregister(tensor);
  Registrations::Entry gone;  // its owner goes after the locks
  const auto check = [&]() -> Result<void> {
    HEADRACE_TRY_VOID(awake());
    HEADRACE_TRY_VOID(registrations().find(tensor));
    return {};
  };
  return run_quietly(CommOperation::tensor_deregister, check, [&](Timeout timeout) -> Result<void> {
    HEADRACE_TRY(number, registrations().find(tensor));
    TableText why;
    const std::int32_t code = table_.tensor_deregister(comm_, number, table_timeout(timeout), why.out());
    if (code != HEADRACE_OK) return why.error(table_.name, code);
    HEADRACE_TRY(taken, registrations().take(tensor));
    gone = std::move(taken);
    return {};
  });
}

// --- a communicator that sleeps

Result<void> TableComm::suspend() {
  if (table_.suspend == nullptr) return Core::suspend();
  const auto check = [&]() -> Result<void> {
    if (suspended_) return make_error(Code::invalid_argument, "the communicator is suspended already");
    return no_message();
  };
  return run_quietly(CommOperation::suspend, check, [&](Timeout timeout) -> Result<void> {
    {
      const std::scoped_lock messages(message_order_);  // none begins afterwards
      HEADRACE_TRY_VOID(no_message());
      suspended_ = true;
    }
    TableText why;
    const std::int32_t code = table_.suspend(comm_, table_timeout(timeout), why.out());
    if (code == HEADRACE_OK) return {};
    suspended_ = false;
    return why.error(table_.name, code);
  });
}

Result<void> TableComm::resume() {
  if (table_.resume == nullptr) return Core::resume();
  const auto check = [&]() -> Result<void> {
    if (!suspended_) return make_error(Code::invalid_argument, "the communicator is not suspended");
    return {};
  };
  return run_quietly(CommOperation::resume, check, [&](Timeout timeout) -> Result<void> {
    TableText why;
    const std::int32_t code = table_.resume(comm_, table_timeout(timeout), why.out());
    if (code != HEADRACE_OK) return why.error(table_.name, code);
    suspended_ = false;
    return {};
  });
}

Result<void> TableComm::no_message() const {
  const auto message = any_call(true);
  if (!message) return {};
  return make_error(Code::invalid_argument, "{} number {} of this rank is under way: wait for it first",
                    comm_operation_name(message->call().operation), message->call().number);
}

Result<void> TableComm::awake() const {
  if (!suspended_) return {};
  return make_error(Code::invalid_argument,
                    "the communicator {} is suspended: call resume on all ranks first", name_text(name()));
}

// --- windows

Result<Window> TableComm::new_window() {
  if (table_.window_open == nullptr) return Core::new_window();
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  HEADRACE_TRY_VOID(usable());
  return Window(
      std::make_unique<TableWindow>(std::static_pointer_cast<TableComm>(shared_from_this()), ++windows_));
}

Result<void> TableComm::window_open(headrace_comm_window_v1& window, std::shared_ptr<const void> owner) {
  const auto check = [] { return Result<void>(); };
  return run_quietly(CommOperation::tensor_register, check, [&](Timeout timeout) -> Result<void> {
    TableText why;
    const std::int32_t code = table_.window_open(comm_, &window, table_timeout(timeout), why.out());
    if (code != HEADRACE_OK) return why.error(table_.name, code);
    if (window.window == 0)
      return make_error(Code::backend_failed, "backend {} made a window and gave no number", table_.name);
    const std::scoped_lock lock(mutex_);
    window_owners_[window.window] = std::move(owner);
    return {};
  });
}

Result<void> TableComm::window_close(std::uint64_t window) {
  std::shared_ptr<const void> owner;  // goes after the locks
  const auto check = [] { return Result<void>(); };
  return run_quietly(CommOperation::tensor_deregister, check, [&](Timeout timeout) -> Result<void> {
    TableText why;
    const std::int32_t code = table_.window_close(comm_, window, table_timeout(timeout), why.out());
    if (code != HEADRACE_OK) return why.error(table_.name, code);
    const std::scoped_lock lock(mutex_);
    owner = std::exchange(window_owners_[window], nullptr);
    window_owners_.erase(window);
    return {};
  });
}

Result<std::shared_ptr<Work::State>> TableComm::window_issue(std::uint64_t window, CommCall& call,
                                                             headrace_comm_window_call_v1 table_call,
                                                             std::shared_ptr<const void> owner) {
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  const auto issue = [&](const Call& running, std::uint64_t id, headrace_text_v1* why) {
    table_call.timeout_ns = table_timeout(running.timeout);
    return table_.window_issue(comm_, &table_call, id, why);
  };
  return begin_work(call, std::move(owner), issue, window);
}

Result<void> TableComm::wait_for_one_sided(Work::State& work) {
  Interrupt interrupted(interrupted_);
  while (!wait(work, interrupted.next_look()))
    if (interrupted.asked()) return described(*this, work.call(), Interrupt::error());
  if (work.status() == WorkStatus::completed) return {};
  return work.error();
}

template <class Check, class Body>
Result<void> TableComm::run_quietly(CommOperation operation, const Check& check, const Body& body) {
  Result<void> allowed = outside();
  if (allowed) allowed = check_not_coalescing();
  if (!allowed) return refused(operation, std::move(allowed).error());
  const Timeout timeout = options().timeout;
  const Deadline deadline = deadline_of(timeout);
  HEADRACE_TRY(order, quiet_order(operation, timeout, deadline, check));
  const Entered inside(this);
  CommCall call;
  call.operation = operation;
  const Call running = begin(call, number_);
  const Result<void> done = body(time_left(deadline));
  Error error{Code::ok, {}};
  if (!done) error = ended() ? why_ended() : described(*this, running, done.error());
  hooks()->completed(running.id(), error);
  if (error.code != Code::ok) return error;
  return {};
}

template <class Check>
Result<std::unique_lock<std::mutex>> TableComm::quiet_order(CommOperation operation, Timeout timeout,
                                                            Deadline deadline, const Check& check) {
  while (true) {
    std::unique_lock order(order_);
    HEADRACE_TRY_VOID(check_open());
    if (auto right = check(); !right) return refused(operation, std::move(right).error());
    const auto work = any_collective();
    if (!work) return order;
    order.unlock();  // a hook that runs meanwhile may let go of the communicator
    if (auto waited = wait_for_call(*work, timeout, deadline); !waited) {
      end_all(refused(operation, std::move(waited).error()));
      return why_ended();
    }
  }
}

Result<void> TableComm::wait_for_call(Work::State& work, Timeout timeout, Deadline deadline) {
  Interrupt interrupted(interrupted_);
  while (!wait(work, Deadline::earliest(deadline, interrupted.next_look()))) {
    if (interrupted.asked()) return Interrupt::error();
    if (deadline.expired())
      return make_error(Code::timed_out, "{} number {} of this rank is under way after {}",
                        comm_operation_name(work.call().operation), work.call().number,
                        duration_text(timeout));
  }
  return {};
}

std::shared_ptr<Work::State> TableComm::any_call(bool message) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [id, begun] : works_)
    if (begun.work && is_message(begun.work->call().operation) == message &&
        !is_one_sided(begun.work->call().operation))
      return begun.work;
  return nullptr;
}

Result<void> TableComm::check_open() {
  HEADRACE_TRY_VOID(usable());
  if (ended()) return why_ended();
  return {};
}

// --- values

CommOptions TableComm::options() const {
  const std::scoped_lock lock(mutex_);
  return options_;
}

void TableComm::set_timeout(Timeout timeout) {
  if (table_.set_timeout != nullptr && outside()) {
    const std::scoped_lock order(order_);
    const Entered inside(this);
    if (usable()) table_.set_timeout(comm_, table_timeout(timeout));
  }
  const std::scoped_lock lock(mutex_);
  options_.timeout = timeout;
}

Result<void> TableComm::set_hints(const std::map<std::string, std::string>& hints) {
  if (table_.set_hints == nullptr)
    return make_error(Code::not_supported, "backend {} takes hints only when a communicator opens",
                      table_.name);
  HEADRACE_TRY_VOID(outside());
  const std::scoped_lock order(order_);
  HEADRACE_TRY_VOID(usable());
  const Entered inside(this);
  const TableSettings settings(&hints);
  TableText why;
  const std::int32_t code = table_.set_hints(comm_, settings.data(), settings.size(), why.out());
  if (code != HEADRACE_OK) return why.error(table_.name, code);
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, value] : hints) options_.hints[name] = value;
  return {};
}

Result<void> TableComm::usable() const {
  const std::scoped_lock lock(mutex_);
  if (closing_) return why_closed();
  return {};
}

/// Inside the backend a call would wait for itself.
Result<void> TableComm::outside() const {
  if (entered != this) return {};
  return make_error(
      Code::invalid_argument,
      "backend {} calls the communicator that it serves, or a hook does so inside it: this waits "
      "for itself; use another communicator",
      table_.name);
}

// --- calls

Call TableComm::begin(CommCall& call, std::uint64_t& last) {
  call.number = ++last;
  Call running;
  running.operation = call.operation;
  running.number = call.number;
  running.group = call.group;
  running.timeout = call.timeout ? call.timeout : options().timeout;
  running.deadline = deadline_of(running.timeout);
  running.table_work = ++last_work_;
  hooks()->scheduled(call);
  hooks()->started(running.id());
  return running;
}

Result<Work> TableComm::issue(CommCall& call, std::shared_ptr<const void> owner) {
  if (auto free = outside(); !free) return refused(call.operation, std::move(free).error());
  std::unique_lock order(is_message(call.operation) ? message_order_ : order_);
  HEADRACE_TRY(work, begin_call(call, std::move(owner)));
  order.unlock();
  if (!call.async && !on_gpu()) HEADRACE_TRY_VOID(wait_in_call(work));
  return Work(std::move(work));
}

void TableComm::issue_all(std::span<const KeptCall> calls, bool async, Group& group) {
  if (table_.group_start == nullptr) return Core::issue_all(calls, async, group);
  if (auto free = outside(); !free) return group.refuse(free.error());
  const std::scoped_lock order(order_, message_order_);
  const Entered inside(this);
  Result<void> open = usable();
  if (open && ended()) open = why_ended();
  if (!open) return group.refuse(open.error());
  std::vector<std::shared_ptr<Work::State>> begun;
  table_.group_start(comm_);
  for (const KeptCall& kept : calls) {
    CommCall call = kept.call();
    call.async = async || !on_gpu();
    call.group = group.id();
    auto work = begin_call(call, kept.owner());
    work ? begun.push_back(*work) : group.refuse(work.error());
  }
  TableText why;
  const std::int32_t code = table_.group_end(comm_, why.out());
  for (const auto& work : begun) {
    group.add(Work(work));
    if (code != HEADRACE_OK) work_ended(work->call().table_work, why.error(table_.name, code), -1);
  }
}

Result<std::shared_ptr<Work::State>> TableComm::begin_call(CommCall& call,
                                                           std::shared_ptr<const void> owner) {
  return begin_work(call, std::move(owner),
                    [&](const Call& running, std::uint64_t id, headrace_text_v1* why) {
                      const TableCall table_call(call, running.timeout);
                      return table_.issue(comm_, table_call.get(), id, why);
                    });
}

std::uint64_t& TableComm::last_number(CommOperation operation) {
  if (is_message(operation)) return message_number_;
  return is_one_sided(operation) ? one_sided_number_ : number_;
}

template <class Issue>
Result<std::shared_ptr<Work::State>> TableComm::begin_work(CommCall& call, std::shared_ptr<const void> owner,
                                                           const Issue& issue, std::uint64_t window) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY_VOID(awake());
  std::uint64_t& last = last_number(call.operation);
  Call running = begin(call, last);
  running.window = window;
  auto work = std::make_shared<Work::State>(shared_from_this(), running, nullptr);
  work->begin();
  const std::uint64_t id = running.table_work;
  if (ended() || !add(id, work, std::move(owner))) {
    --last;
    work->end(ended() ? why_ended() : why_closed());
    return work->error();
  }
  const Entered inside(this);
  TableText why;
  const std::int32_t answer = issue(running, id, why.out());
  if (answer > 0) --last;  // the next call may be this one, corrected: the other ranks know it by the number
  if (answer == HEADRACE_COMM_DONE) {
    work_ended(id, {}, call.peer);
  } else if (answer != HEADRACE_COMM_BEGUN) {
    Error refused = ended() ? why_ended() : why.error(table_.name, answer);
    if (const auto mine = take(id)) end_taken(id, *mine, refused);
    return described(*this, running, std::move(refused));
  }
  return work;
}

Result<void> TableComm::wait_in_call(const std::shared_ptr<Work::State>& work) {
  Interrupt interrupted(interrupted_);
  while (!wait(*work, interrupted.next_look()))
    if (interrupted.asked()) end_all(described(*this, work->call(), Interrupt::error()));
  if (work->status() == WorkStatus::completed) return {};
  return work->error();
}

bool TableComm::add(std::uint64_t id, std::shared_ptr<Work::State> work, std::shared_ptr<const void> owner) {
  const std::scoped_lock lock(mutex_);
  if (closing_) return false;
  Deadline deadline = work->call().deadline;
  // The backend says what was seen.
  if (work->call().operation == CommOperation::wait_signal && !deadline.is_never())
    deadline = Deadline::after(std::chrono::nanoseconds(deadline.remaining_ns()) + after_backend);
  if (cause_) deadline = Deadline::earliest(deadline, Deadline::after(grace));
  works_.emplace(id, Begun{std::move(work), std::move(owner), deadline});
  if (deadline < next_look_ || (table_.progress != nullptr && next_look_.is_never())) changed_.notify_all();
  return true;
}

std::shared_ptr<Work::State> TableComm::take(std::uint64_t id) {
  std::shared_ptr<const void> owner;  // released after the lock
  const std::scoped_lock lock(mutex_);
  const auto at = works_.find(id);
  if (at == works_.end() || at->second.ending) return nullptr;
  auto work = std::move(at->second.work);
  owner = std::move(at->second.owner);
  at->second.ending = work != nullptr;
  if (!work) works_.erase(at);  // it was late, and the backend has let go of its memory
  if (closing_) changed_.notify_all();
  return work;
}

void TableComm::end_taken(std::uint64_t id, Work::State& work, Result<void> result) {
  work.end(std::move(result));
  const std::scoped_lock lock(mutex_);
  works_.erase(id);
  if (closing_) changed_.notify_all();
}

void TableComm::work_ended(std::uint64_t id, Result<void> result, int source) {
  const Entered inside(this);  // the backend waits for what hooks do here
  const auto work = take(id);
  if (!work) return;  // it was late, it ends twice, or it never was
  if (!result && ended()) {
    result = why_ended();
  } else if (!result && !is_one_sided(work->call().operation)) {
    fail(work->call(), result.error());
  } else if (work->call().operation == CommOperation::recv && source >= 0 && source < size()) {
    work->set_source(source);
  }
  end_taken(id, *work, std::move(result));
}

// --- waiting

bool TableComm::drive() {
  if (table_.progress == nullptr || !any_works()) return false;
  if (!outside()) return false;
  const std::unique_lock lock(progress_, std::try_to_lock);
  const Entered inside(this);
  return lock.owns_lock() && !closed_ && table_.progress(comm_) != 0;
}

void TableComm::poll() {
  if (!forked()) drive();
}

bool TableComm::wait(Work::State& work, Deadline deadline) {
  Waiter waiter(Waiter::few_spins);
  while (!work.ended()) {
    if (deadline.expired()) return false;
    if (table_.progress == nullptr) {
      work.sleep(Deadline::earliest(deadline, Deadline::after(longest_sleep)));
      end_late();
    } else if (drive()) {
      waiter.moved();
    } else {
      static_cast<void>(waiter.pause([this]() -> Result<void> {
        end_late();
        return {};
      }));
    }
  }
  return true;
}

Result<void> TableComm::wait_on(Work::State& work, void* stream) {
  if (table_.wait_on == nullptr) return Core::wait_on(work, stream);
  const std::scoped_lock lock(progress_);
  if (closed_) return {};
  TableText why;
  const std::int32_t code = table_.wait_on(comm_, work.call().table_work, stream, why.out());
  if (code != HEADRACE_OK) return described(*this, work.call(), why.error(table_.name, code));
  return {};
}

bool TableComm::any_works() const {
  const std::scoped_lock lock(mutex_);
  return !works_.empty();
}

void TableComm::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (cause_ && !backend_knows_) {
      backend_knows_ = true;
      const std::string reason = cause_->message;
      lock.unlock();
      {
        const Entered inside(this);
        table_.abort(comm_, reason.data(), reason.size());
      }
      lock.lock();
    }
    const bool waited_for =
        std::any_of(works_.begin(), works_.end(), [](const auto& one) { return one.second.work != nullptr; });
    if (stop_ && !waited_for) break;
    next_look_ = Deadline::never();
    for (const auto& [id, begun] : works_)
      if (begun.work) next_look_ = Deadline::earliest(next_look_, begun.deadline);
    if (table_.progress != nullptr && !works_.empty())
      next_look_ = Deadline::earliest(next_look_, Deadline::after(std::chrono::milliseconds(1)));
    changed_.wait_until(lock, next_look_.time_point());
    lock.unlock();
    drive();
    end_late();
    lock.lock();
  }
  const bool closes = left_to_watcher_;
  lock.unlock();
  if (closes) end_backend();
}

void TableComm::end_late() {
  std::vector<std::pair<std::uint64_t, std::shared_ptr<Work::State>>> late;
  {
    const std::scoped_lock lock(mutex_);
    for (auto& [id, begun] : works_)
      if (begun.work && begun.deadline.expired()) late.emplace_back(id, std::exchange(begun.work, nullptr));
    if (late.empty()) return;
    changed_.notify_all();
  }
  for (const auto& [id, work] : late) {
    const bool ends_alone = is_one_sided(work->call().operation);
    Error error = why_ended();
    std::string waits;
    if (error.code == Code::ok && !ends_alone) {
      waits = what_it_waits_for(id);
      error = why_ended();  // another rank may have been late first, and have told why
    }
    if (error.code == Code::ok) {
      error = make_error(Code::timed_out, "backend {} has not ended it within {}{}", table_.name,
                         duration_text(work->call().timeout), waits);
      if (!ends_alone) fail(work->call(), error);
    }
    work->end(std::move(error));
  }
}

std::string TableComm::what_it_waits_for(std::uint64_t id) {
  if (table_.waits_for == nullptr) return {};
  TableText why;
  const std::scoped_lock lock(progress_);
  if (closed_) return {};
  table_.waits_for(comm_, id, why.out());
  return why.view().empty() ? std::string() : fmt::format(": {}", why.view());
}

// --- the end

Error TableComm::why_ended() const {
  const std::scoped_lock lock(mutex_);
  return cause_ ? *cause_ : Error{Code::ok, {}};
}

void TableComm::end_all(const Error& cause) {
  {
    const std::scoped_lock lock(mutex_);
    if (cause_) return;
    cause_ = cause;
    ended_.store(true, std::memory_order_release);
    const Deadline last = Deadline::after(grace);
    for (auto& [id, begun] : works_) begun.deadline = Deadline::earliest(begun.deadline, last);
    changed_.notify_all();
  }
  hooks()->aborted(cause);
}

void TableComm::fail(const Call& call, Error error) {
  if (ended()) return;
  const Error full = described(*this, call, std::move(error));
  tell_of_streams(full);
  end_all(full);
  if (!options().abort_on_error) return;
  host_->log.error("the process ends, as it shall when an operation fails: {}", full.message);
  std::abort();
}

void TableComm::comm_ended(const Error& cause) {
  if (!ended() && any_works()) tell_of_streams(cause);
  end_all(cause);
}

/// The caller has gone on long since, and may read an undefined result before a call of its tells the error.
void TableComm::tell_of_streams(const Error& cause) const {
  if (on_gpu()) host_->log.error("{}: its outputs are undefined, and streams go on with them", cause.message);
}

void TableComm::abort(std::string_view reason) {
  if (forked()) return;
  end_all(Error{Code::canceled, fmt::format("rank {} aborted {}: {}", rank(), name_text(name()), reason)});
}

Result<void> TableComm::finalize() {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY_VOID(outside());
  {
    const std::scoped_lock lock(mutex_);
    if (closing_) return {};
    closing_ = true;
  }
  { const std::scoped_lock order(order_, message_order_); }  // calls that the backend is in
  Interrupt interrupted(interrupted_);
  while (any_works() && !ended()) {
    drive();
    if (interrupted.asked()) abort("its caller interrupted finalize");
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest_sleep, [this] { return works_.empty(); });
  }
  Result<void> result;
  if (ended()) result = why_ended();
  close();
  return result;
}

void TableComm::close() {
  if (forked()) return;
  drive();  // what has ended on a GPU is not under way
  if (leave()) end_backend();
}

void TableComm::end_backend() {
  {
    const std::scoped_lock calls(order_, message_order_, progress_);  // no thread is inside the backend
    closed_ = true;
    table_.close(comm_);
  }
  registrations().clear();
  std::map<std::uint64_t, Begun> left;  // their owners go after the lock
  std::map<std::uint64_t, std::shared_ptr<const void>> owners;
  {
    const std::scoped_lock lock(mutex_);
    owners.swap(window_owners_);
    left = std::exchange(works_, {});
    std::erase_if(left, [](const auto& one) { return one.second.ending; });
  }
  if (left.empty()) return;
  host_->log.warn("backend {} closed {} without ending {} of its works", table_.name, name_text(name()),
                  left.size());
  keep_for_ever(host_);
}

/// A hook may drop the last handle where nothing can be waited for: inside the backend, or on the
/// thread that watches. Then this thread closes the backend when it ends.
bool TableComm::leave() {
  std::thread watcher;
  bool joins = false;
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    if (comm_ == nullptr || stop_) return false;
    watcher = std::move(watcher_);
    joins = watcher.get_id() != std::this_thread::get_id() && outside();
    left_to_watcher_ = !joins;  // before `stop_`, at which the thread ends
    stop_ = true;
    if (!works_.empty()) {
      lock.unlock();
      abort("it left while operations were under way");
      lock.lock();
    }
    changed_.notify_all();
  }
  if (!watcher.joinable()) return true;  // it did not start
  joins ? watcher.join() : watcher.detach();
  return joins;
}

}  // namespace headrace::collectives
