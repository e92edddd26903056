// SPDX-License-Identifier: Apache-2.0
#include "nccl/communicator.hpp"

#include "base/hash.hpp"
#include "base/log.hpp"

#include <headrace/tensor.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::nccl {
namespace {

using namespace std::chrono_literals;
using comm_border::deadline_of;

constexpr const char* id_key = "unique_id";
constexpr int keeps_its_rank = -1;          // of comm_grow
constexpr auto longest_leave = 2s;          // until a rank that closes aborts instead
constexpr auto between_error_looks = 10ms;  // at errors that the library finds by itself

const std::atomic<bool> never_stops{false};

Result<UniqueId> id_in(const std::string& bytes) {
  UniqueId id{};
  if (bytes.size() != sizeof id)
    return make_error(Code::corrupt, "rank 0 gave an id of {} bytes, and {} are expected", bytes.size(),
                      sizeof id);
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

/// Calls a function at a deadline, unless it goes before that.
class Alarm {
 public:
  Alarm(const Deadline& deadline, std::function<void()> ring) {
    if (deadline.is_never()) return;
    waiting_ = std::jthread([this, deadline, ring = std::move(ring)](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, stop, deadline.time_point(), [] { return false; });
      if (stop.stop_requested()) return;
      has_rung_ = true;
      ring();
    });
  }
  [[nodiscard]] bool has_rung() const { return has_rung_; }

 private:
  std::atomic<bool> has_rung_{false};
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread waiting_;
};

/// Where the library may still write it stays.
void keep_for_ever(std::unique_ptr<Comm> made) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<Comm>>;
  const std::scoped_lock lock(mutex);
  kept.push_back(std::move(made));
}

Error late_part() { return make_error(Code::timed_out, "another rank has not come in time"); }

std::uint64_t identity_of(const UniqueId& id) { return hash64(std::as_bytes(std::span(id.bytes))); }

Result<bool> boolean_in(const std::string& name, const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return make_error(Code::invalid_argument, "hint {} is \"{}\": give true or false", name, text);
}

}  // namespace

// --- opening

Result<Communicator::Wishes> Communicator::wishes_of(const Library& library, const Setup& setup) {
  std::map<std::string, std::string> hints;
  for (std::uint64_t i = 0; i < setup.hint_count; ++i) hints[setup.hints[i].name] = setup.hints[i].value;
  bool high = false;
  if (const auto at = hints.find("is_high_priority_stream"); at != hints.end()) {
    HEADRACE_TRY(wish, boolean_in(at->first, at->second));
    high = wish;
    hints.erase(at);
  }
  HEADRACE_TRY(config, CommConfig::make(library, std::move(hints)));
  return Wishes{std::move(config), high ? gpu::Priority::high : gpu::Priority::normal};
}

Communicator::Communicator(const Parts& parts, const Setup& setup, std::shared_ptr<const gpu::Device> device,
                           gpu::Stream stream, gpu::DeviceMemory scratch)
    : parts_(parts),
      table_(parts_.library.table),
      host_(setup.host),
      rank_(setup.rank),
      size_(setup.size),
      meeting_timeout_ns_(setup.meeting_timeout_ns),
      device_(std::move(device)),
      stream_(std::move(stream)),
      scratch_(std::move(scratch)),
      works_(device_, gpu::StreamWorks::Order::of_streams),
      windows_({parts_.library, host_, rank_, size_, device_,
                [this](std::string_view what, const Deadline& deadline, const auto& begin) {
                  return call_for_windows(what, deadline, begin);
                },
                [this] { host_.ended(late_part()); }}) {}

Result<std::unique_ptr<Communicator>> Communicator::make(const Parts& parts, const Setup& setup,
                                                         gpu::Priority priority) {
  HEADRACE_TRY(device, gpu::Device::open(parts.driver, setup.device));
  HEADRACE_TRY(stream, gpu::Stream::make(device, priority));
  HEADRACE_TRY(scratch, gpu::DeviceMemory::allocate(device, 1));
  return std::unique_ptr<Communicator>(
      new Communicator(parts, setup, std::move(device), std::move(stream), std::move(scratch)));
}

Result<UniqueId> Communicator::meet(const Deadline& deadline) const {
  UniqueId id{};
  if (rank_ == 0) {
    if (const Outcome outcome = table_.get_unique_id(&id); outcome != Outcome::success)
      return failed(outcome, "make the id of the communicator");
    if (size_ == 1) return id;
    HEADRACE_TRY_VOID(host_.set(id_key, {reinterpret_cast<const char*>(&id), sizeof id}));
    return id;
  }
  HEADRACE_TRY(bytes, host_.wait_for(id_key, deadline, "rank 0 has not given the id of the communicator"));
  return id_in(bytes);
}

template <class Begin>
Result<void> Communicator::connect(const Setup& setup, Config config, const Deadline& deadline,
                                   const Begin& begin) {
  const std::scoped_lock calls(calls_);
  const gpu::ContextGuard current(*device_);
  blocking_ = config.blocking == 1;
  auto made = std::make_unique<Comm>(nullptr);
  Outcome outcome = begin(made.get(), &config);
  const std::atomic_ref<Comm> there(*made);
  while (outcome == Outcome::in_progress && there.load() == nullptr && !deadline.expired())
    std::this_thread::sleep_for(20us);
  comm_ = there.load();
  if (comm_ != nullptr) outcome = settle(comm_, outcome, deadline);
  if (outcome == Outcome::success) return check_ranks(setup);
  if (outcome == Outcome::in_progress) keep_for_ever(std::move(made));
  stopping_ = true;
  return outcome == Outcome::in_progress ? late_part() : failed(outcome, "connect the ranks");
}

Result<std::unique_ptr<Communicator>> Communicator::open(const Parts& parts, const Setup& setup) {
  HEADRACE_TRY(wishes, wishes_of(parts.library, setup));
  HEADRACE_TRY(made, make(parts, setup, wishes.priority));
  const Deadline deadline = deadline_of(setup.meeting_timeout_ns);
  HEADRACE_TRY(id, made->meet(deadline));
  made->identity_ = identity_of(id);
  const auto begin = [&](Comm* comm, Config* config) {
    return parts.library.table.comm_init_rank_config(comm, setup.size, id, setup.rank, config);
  };
  HEADRACE_TRY_VOID(made->connect(setup, wishes.config.get(), deadline, begin));
  return made;
}

Result<void> Communicator::check_ranks(const Setup& setup) const {
  int size = 0, rank = -1;
  for (const Outcome outcome : {table_.comm_count(comm_, &size), table_.comm_user_rank(comm_, &rank)})
    if (outcome != Outcome::success) return failed(outcome, "ask for rank and size");
  if (size == setup.size && rank == setup.rank) return {};
  return make_error(
      Code::invalid_argument,
      "NCCL made rank {} of {}, and rank {} of {} was asked for: another rank gave another group", rank, size,
      setup.rank, setup.size);
}

Outcome Communicator::settle(Comm comm, Outcome outcome, const Deadline& deadline,
                             const std::atomic<bool>& stop) const {
  while (outcome == Outcome::in_progress && !stop && !deadline.expired()) {
    const Outcome asked = table_.comm_get_async_error(comm, &outcome);
    if (asked != Outcome::success) return asked;
    if (outcome == Outcome::in_progress) std::this_thread::sleep_for(20us);
  }
  return outcome;
}

Error Communicator::failed(Outcome outcome, std::string_view what) const {
  if (outcome != Outcome::in_progress) return library_error(parts_.library, comm_, outcome, what);
  if (stopping_) return make_error(Code::canceled, "{}: the communicator has ended", what);
  return make_error(Code::timed_out, "{}: another rank has not come in time", what);
}

// --- calls

Result<bool> Communicator::issue(const Call& call, std::uint64_t work) {
  std::unique_lock<std::mutex> calls;
  if (!group_) calls = std::unique_lock(calls_);
  HEADRACE_TRY(reduction, check_call(parts_.library, call));
  HEADRACE_TRY(config, config_of(parts_.library, call));
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  const gpu::ContextGuard current(*device_);
  HEADRACE_TRY(taken, take(call, work));
  if (reduction.multiplies) {
    HEADRACE_TRY(op, make_op(reduction, call.factor));
    reduction.op = op;
    taken.own_op = op;
  }
  taken.config = std::move(config);
  const Place place{.library = parts_.library,
                    .comm = comm_,
                    .stream = taken.stream,
                    .rank = rank_,
                    .size = size_,
                    .scratch = reinterpret_cast<void*>(scratch_.address()),
                    .config = taken.config ? &taken.config->config : nullptr};
  Outcome outcome = run_call(place, call, reduction);
  if (group_) {
    if (is_fine(group_->failure)) group_->failure = outcome;
    group_->taken.push_back(taken);
    return false;
  }
  outcome = settle(comm_, outcome, Deadline::never());
  if (taken.own_op) table_.red_op_destroy(*taken.own_op, comm_);
  if (outcome == Outcome::success) return watch(taken);
  Error error = failed(outcome, "queue it");
  if (error.code == Code::invalid_argument) return error;  // the library has looked at it and done nothing
  host_.end(work, std::move(error));
  return false;
}

Result<Communicator::Taken> Communicator::take(const Call& call, std::uint64_t work) {
  const auto caller = static_cast<cuda::Stream>(call.stream);
  cuda::CaptureStatus capture{};
  if (caller != nullptr)
    HEADRACE_CUDA_TRY(parts_.driver, parts_.driver.stream_is_capturing(caller, &capture),
                      "look at the stream of a call");
  Taken taken{work,         call.operation == HEADRACE_COMM_RECV ? call.peer : -1,
              caller,       capture != cuda::CaptureStatus::none,
              std::nullopt, nullptr};
  // In a capture nothing tells when a replay ends, and no stream joins later: the call is part of its stream.
  if (call.async == 0 || taken.captured) return taken;
  HEADRACE_TRY_VOID(works_.follow(stream_.handle(), caller));
  taken.stream = stream_.handle();
  return taken;
}

Result<ReduceOp> Communicator::make_op(const Reduction& reduction, double factor) {
  auto scalar = scalar_of(reduction.type, factor);
  ReduceOp op{};
  const Outcome outcome = table_.red_op_create_pre_mul_sum(&op, scalar.data(), reduction.type,
                                                           ScalarResidence::host_immediate, comm_);
  if (outcome != Outcome::success) return failed(outcome, "make the reduction premul_sum");
  return op;
}

bool Communicator::watch(const Taken& taken) {
  if (taken.captured) return true;
  if (auto added = works_.add(taken.work, taken.source, taken.stream); !added) host_.end(taken.work, added);
  return false;
}

void Communicator::group_start() {
  std::unique_lock calls(calls_);
  const Outcome started = table_.group_start();
  group_.emplace(Group{std::move(calls), {}, started});
}

Result<void> Communicator::group_end() {
  Group group = std::move(*group_);
  group_.reset();
  const gpu::ContextGuard current(*device_);
  Outcome outcome = table_.group_end();
  if (!is_fine(group.failure)) outcome = group.failure;
  if (comm_ == nullptr) return make_error(Code::canceled, "the communicator has ended");
  outcome = settle(comm_, outcome, Deadline::never());
  for (const Taken& taken : group.taken)
    if (taken.own_op) table_.red_op_destroy(*taken.own_op, comm_);
  if (outcome != Outcome::success) return failed(outcome, "queue the calls of a group");
  for (const Taken& taken : group.taken)
    if (watch(taken)) host_.end(taken.work, {}, taken.source);
  return {};
}

Result<void> Communicator::wait_on(std::uint64_t work, cuda::Stream stream) {
  HEADRACE_TRY_VOID(works_.wait_on(work, stream));
  return windows_.wait_on(work, stream);
}

// --- memory that calls use again and again

Result<std::uint64_t> Communicator::tensor_register(const headrace_comm_elements_v1& tensor) {
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  const std::uint64_t number = ++last_registration_;
  registered_[number] = handle_of(tensor);
  return number;
}

void* Communicator::handle_of(const headrace_comm_elements_v1& tensor) {
  if (table_.comm_register == nullptr || tensor.count == 0) return nullptr;
  const std::size_t bytes = tensor.count * element_bytes(static_cast<DType>(tensor.dtype));
  const gpu::ContextGuard current(*device_);
  void* handle = nullptr;
  const Outcome outcome = settle(comm_, table_.comm_register(comm_, tensor.data, bytes, &handle),
                                 deadline_of(meeting_timeout_ns_));
  if (outcome == Outcome::success) return handle;
  const Error why = failed(outcome, fmt::format("register {} bytes at {}", bytes, tensor.data));
  Log(Logger::process_default(), "nccl").warn("{}; calls use this memory as before", why.message);
  return nullptr;
}

Result<void> Communicator::tensor_deregister(std::uint64_t registration) {
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  const auto at = registered_.find(registration);
  if (at == registered_.end())
    return make_error(Code::invalid_argument, "there is no registration {}", registration);
  void* const handle = at->second;
  registered_.erase(at);
  if (handle == nullptr) return {};
  const gpu::ContextGuard current(*device_);
  const Outcome outcome =
      settle(comm_, table_.comm_deregister(comm_, handle), deadline_of(meeting_timeout_ns_));
  if (outcome != Outcome::success)
    Log(Logger::process_default(), "nccl").warn("{}", failed(outcome, "deregister memory").message);
  return {};
}

// --- a communicator that sleeps

Result<void> Communicator::suspend(const Deadline& deadline) {
  if (table_.comm_suspend == nullptr) return needs_version(parts_.library, "suspend", 22907);
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  HEADRACE_TRY_VOID(together("suspend the communicator", deadline,
                             [this] { return table_.comm_suspend(comm_, suspend_memory); }));
  suspended_ = true;
  return {};
}

Result<void> Communicator::resume(const Deadline& deadline) {
  if (table_.comm_resume == nullptr) return needs_version(parts_.library, "resume", 22907);
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  HEADRACE_TRY_VOID(
      together("resume the communicator", deadline, [this] { return table_.comm_resume(comm_); }));
  suspended_ = false;
  return {};
}

// --- windows

Result<void> Communicator::call_for_windows(std::string_view what, const Deadline& deadline,
                                            const std::function<Outcome(Comm)>& begin) {
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  return together(what, deadline, [&] { return begin(comm_); });
}

Result<void> Communicator::window_open(headrace_comm_window_v1& window, const Deadline& deadline) {
  return windows_.open(window, deadline);
}

Result<void> Communicator::window_close(std::uint64_t window, const Deadline& deadline) {
  return windows_.close(window, deadline);
}

Result<bool> Communicator::window_issue(const headrace_comm_window_call_v1& call, std::uint64_t work) {
  return windows_.issue(call, work);
}

// --- ends

bool Communicator::progress() {
  const bool moved = windows_.progress();
  const auto ended = works_.take_ended();
  for (const auto& [work, source, result] : ended) {
    if (result && stopping_)
      host_.end(work, make_error(Code::canceled, "the communicator has ended"), source);
    else
      host_.end(work, result, source);
  }
  look_for_error();
  return moved || !ended.empty();
}

void Communicator::look_for_error() {
  if (!next_look_.expired()) return;
  next_look_ = Deadline::after(between_error_looks);
  std::unique_lock calls(calls_, std::try_to_lock);
  std::unique_lock asking(asking_);
  if (!calls.owns_lock() || comm_ == nullptr || stopping_) return;
  Outcome state = Outcome::success;
  const Outcome asked = table_.comm_get_async_error(comm_, &state);
  if (is_fine(asked) && is_fine(state)) return;
  const Error error = failed(is_fine(asked) ? state : asked, "an operation under way");
  asking.unlock();
  calls.unlock();
  host_.ended(error);
}

void Communicator::abort() {
  const std::scoped_lock ending(ending_);
  stopping_ = true;  // a call for which the library goes on returns
  windows_.abort();
  std::unique_lock calls(calls_, std::defer_lock);
  if (!blocking_) calls.lock();  // else a call that only this ends may have it
  if (!revoked_) stop_library();
}

/// Ends what is under way, and calls that wait inside the library. For shrink the communicator must still be
/// there, so the first time it is only revoked, where the library can do that.
void Communicator::stop_library() {
  const gpu::ContextGuard current(*device_);
  const std::scoped_lock asking(asking_);
  const Comm comm = comm_;
  if (comm == nullptr) return;
  if (table_.comm_revoke != nullptr && !revoked_.exchange(true)) {
    table_.comm_revoke(comm, 0);
    return;
  }
  comm_ = nullptr;
  table_.comm_abort(comm);
}

Communicator::~Communicator() { leave(); }

void Communicator::leave() {
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr) return;
  const gpu::ContextGuard current(*device_);
  const bool quiet =
      !stopping_ && !suspended_ &&
      settle(comm_, table_.comm_finalize(comm_), Deadline::after(longest_leave)) == Outcome::success;
  quiet ? table_.comm_destroy(comm_) : table_.comm_abort(comm_);
  comm_ = nullptr;
}

// --- other ranks

Outcome Communicator::settle_part(const Comm& made, Outcome outcome, const Deadline& deadline,
                                  const std::atomic<bool>& stop) const {
  outcome = settle(comm_, outcome, deadline, stop);
  // The parent may be ready before the part is there.
  const std::atomic_ref<Comm> part(const_cast<Comm&>(made));
  while (outcome == Outcome::success && part.load() == nullptr) {
    if (stop || deadline.expired()) return Outcome::in_progress;
    std::this_thread::sleep_for(20us);
    outcome = settle(comm_, Outcome::in_progress, deadline, stop);
  }
  return outcome == Outcome::success ? settle(made, Outcome::in_progress, deadline, stop) : outcome;
}

/// The library waits for another rank, without an end.
void Communicator::end_late_part() {
  stop_library();
  host_.ended(late_part());
}

template <class Begin>
Result<std::unique_ptr<Communicator>> Communicator::make_part(const Setup& setup,
                                                              const std::atomic<bool>& stop,
                                                              const Begin& begin) {
  const Deadline deadline = deadline_of(setup.meeting_timeout_ns);
  const std::span ranks(setup.ranks, static_cast<std::size_t>(setup.size));
  const std::uint64_t identity = hash64(std::as_bytes(ranks), identity_ + ++parts_made_);
  HEADRACE_TRY(wishes, wishes_of(parts_.library, setup));
  HEADRACE_TRY(part, make(parts_, setup, wishes.priority));
  const gpu::ContextGuard current(*device_);
  Config config = wishes.config.get();
  auto made = std::make_unique<Comm>(nullptr);
  if (deadline.expired()) return late_part();
  const Alarm alarm(blocking_ ? deadline : Deadline::never(), [this] { end_late_part(); });
  const Outcome outcome = settle_part(*made, begin(made.get(), &config), deadline, stop);
  if (alarm.has_rung() || outcome == Outcome::in_progress) {
    keep_for_ever(std::move(made));
    return stop && !alarm.has_rung() ? failed(Outcome::in_progress, "make the communicator") : late_part();
  }
  if (outcome != Outcome::success) return failed(outcome, "make the communicator");
  part->comm_ = *made;
  part->identity_ = identity;
  part->blocking_ = config.blocking == 1;
  HEADRACE_TRY_VOID(part->check_ranks(setup));
  return part;
}

template <class Begin>
Result<void> Communicator::together(std::string_view what, const Deadline& deadline, const Begin& begin) {
  const gpu::ContextGuard current(*device_);
  const Alarm alarm(blocking_ ? deadline : Deadline::never(), [this] { end_late_part(); });
  const Outcome outcome = settle(comm_, begin(), deadline);
  if (alarm.has_rung()) return late_part();
  if (outcome == Outcome::in_progress) {
    if (stopping_) return failed(outcome, what);
    end_late_part();
    return late_part();
  }
  if (outcome != Outcome::success) return failed(outcome, what);
  return {};
}

/// Takes part in a split for ranks of other groups.
Result<void> Communicator::stand_aside() {
  return together("split the communicator", deadline_of(meeting_timeout_ns_),
                  [this] { return table_.comm_split(comm_, no_color, 0, &no_part_, nullptr); });
}

Result<std::unique_ptr<Communicator>> Communicator::split(std::span<const int> ranks, const Setup* setup) {
  using Part = std::unique_ptr<Communicator>;
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  if (setup == nullptr) {
    HEADRACE_TRY_VOID(stand_aside());
    return Part();
  }
  // Groups have no rank in common, so their smallest rank tells them apart.
  const int color = *std::ranges::min_element(ranks);
  return make_part(*setup, stopping_, [&](Comm* made, Config* config) {
    return table_.comm_split(comm_, color, setup->rank, made, config);
  });
}

Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const int> excluded,
                                                           const Setup& setup) {
  if (table_.comm_shrink == nullptr) return needs_version(parts_.library, "shrink", 22703);
  const std::scoped_lock ending(ending_);
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr)
    return make_error(
        Code::not_supported,
        "the communicator has ended, and {} (NCCL {}) has freed it: shrink before it ends, or use "
        "a version with ncclCommRevoke",
        parts_.library.path, version_text(parts_.library.version));
  if (stopping_) settle(comm_, Outcome::in_progress, deadline_of(setup.meeting_timeout_ns), never_stops);
  std::vector<int> ranks(excluded.begin(), excluded.end());
  std::ranges::sort(ranks);
  const int flags = stopping_ ? shrink_default : shrink_abort;
  return make_part(setup, never_stops, [&](Comm* made, Config* config) {
    return table_.comm_shrink(comm_, ranks.data(), static_cast<int>(ranks.size()), made, config, flags);
  });
}

// --- ranks that the caller brings together

Result<RankHandle> Communicator::handle() {
  const std::scoped_lock calls(calls_);
  RankHandle mine{identity_, rank_, size_, {}, std::nullopt};
  if (const Outcome outcome = table_.get_unique_id(&mine.id); outcome != Outcome::success)
    return failed(outcome, "make the id of a communicator");
  mine.growth = growth_id();
  return mine;
}

std::optional<UniqueId> Communicator::growth_id() {
  const bool grows = table_.comm_grow != nullptr && table_.comm_get_unique_id != nullptr;
  if (!grows || rank_ != 0 || size_ == 1 || comm_ == nullptr || stopping_) return std::nullopt;
  if (growth_) return growth_;
  const gpu::ContextGuard current(*device_);
  UniqueId id{};
  const Outcome outcome =
      settle(comm_, table_.comm_get_unique_id(comm_, &id), deadline_of(meeting_timeout_ns_));
  if (outcome == Outcome::success) return growth_ = id;
  const Error why = failed(outcome, "make the id by which the communicator grows");
  Log(Logger::process_default(), "nccl").warn("{}; reconfigure makes one from nothing", why.message);
  return std::nullopt;
}

Result<std::unique_ptr<Communicator>> Communicator::reconfigure(std::span<const RankHandle> ranks,
                                                                const Setup& setup) {
  const RankHandle& first = ranks.front();
  if (const int inside = ranks_that_grow(ranks); inside != 0)
    return setup.rank < inside ? grow(first, setup) : join(first, setup);
  return make_beside(setup, identity_of(first.id), [&](Comm* made, Config* config) {
    return table_.comm_init_rank_config(made, setup.size, first.id, setup.rank, config);
  });
}

Result<std::unique_ptr<Communicator>> Communicator::grow(const RankHandle& first, const Setup& setup) {
  const std::scoped_lock calls(calls_);
  if (comm_ == nullptr || stopping_) return make_error(Code::canceled, "the communicator has ended");
  const UniqueId* const id = rank_ == 0 ? &*first.growth : nullptr;
  auto made = make_part(setup, stopping_, [&](Comm* part, Config* config) {
    return table_.comm_grow(comm_, setup.size, id, keeps_its_rank, part, config);
  });
  if (!made) return made;
  growth_.reset();
  (*made)->identity_ = identity_of(*first.growth);
  return made;
}

Result<std::unique_ptr<Communicator>> Communicator::join(const RankHandle& first, const Setup& setup) const {
  if (table_.comm_grow == nullptr)
    return needs_version(parts_.library, "joining a communicator that grows", version_of_grow);
  return make_beside(setup, identity_of(*first.growth), [&](Comm* made, Config* config) {
    return table_.comm_grow(nullptr, setup.size, &*first.growth, setup.rank, made, config);
  });
}

template <class Begin>
Result<std::unique_ptr<Communicator>> Communicator::make_beside(const Setup& setup, std::uint64_t identity,
                                                                const Begin& begin) const {
  HEADRACE_TRY(wishes, wishes_of(parts_.library, setup));
  HEADRACE_TRY(made, make(parts_, setup, wishes.priority));
  made->identity_ = identity;
  Config config = wishes.config.get();
  // No store says that all ranks have come: a call that blocks would wait for one that does not, without end.
  if (!wishes.config.has("blocking")) config.blocking = 0;
  HEADRACE_TRY_VOID(made->connect(setup, config, deadline_of(setup.meeting_timeout_ns), begin));
  return made;
}

}  // namespace headrace::nccl
