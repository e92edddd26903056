// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_comm.hpp"

#include "base/affinity.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/names.hpp"
#include "base/random.hpp"
#include "base/start_thread.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/call_card.hpp"
#include "collectives/check_options.hpp"
#include "collectives/host_call.hpp"
#include "collectives/host_window_state.hpp"
#include "collectives/meeting.hpp"
#include "collectives/missing_ranks.hpp"
#include "collectives/observers.hpp"
#include "collectives/split.hpp"

#include <headrace/version.hpp>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace headrace::collectives {
namespace {

constexpr auto settle_limit = std::chrono::seconds(5);

/// With more ranks than cores here, a rank that spins holds the core that the other one needs.
std::uint32_t spins_for(int ranks) {
  return static_cast<unsigned>(ranks) <= usable_cores() ? Waiter::many_spins : Waiter::few_spins;
}

/// The code that other ranks get for an error of this one.
Code code_for_others(Code code) {
  return code == Code::peer_lost || code == Code::invalid_argument ? code : Code::canceled;
}

}  // namespace

Result<Settings> settings_of_split(const CommOptions& options, const SplitOptions& changes) {
  if (changes.hints.contains("backends"))
    return make_error(Code::invalid_argument,
                      "hint backends is that of the communicator that was opened first");
  return Settings::read(options.hints);
}

Result<std::shared_ptr<Comm::Core>> HostComm::open(const CommOptions& options) {
  HEADRACE_TRY(settings, Settings::read(options.hints));
  const std::string agent = fmt::format("{}.{:016x}.{}", options.name, random_u64(), options.rank);
  HEADRACE_TRY(station, Station::open(agent, settings.backends, meets_on_this_host(options)));
  HEADRACE_TRY(members, Members::open(station, options.rank, options.size, "box", settings));
  std::vector<int> ranks = all_ranks(options.size);
  if (options.size == 1) {
    return std::shared_ptr<Core>(
        std::make_shared<HostComm>(options, std::move(settings), std::move(members), std::move(ranks)));
  }

  const Deadline deadline = deadline_of(options.meeting_timeout);
  HEADRACE_TRY(place, open_meeting_place(options));
  HEADRACE_TRY(card, members->card());
  Meeting meeting(*place, options.name, options.rank, options.size, Interrupt(options.interrupted));
  HEADRACE_TRY(cards, meeting.exchange(std::move(card), deadline));
  return of_cards(options, std::move(settings), std::move(members), std::move(ranks), cards, deadline,
                  std::move(place));
}

Result<std::shared_ptr<Comm::Core>> HostComm::open_lazily(const CommOptions& options) {
  CommOptions lazy = options;
  lazy.hints["lazy"] = "on";
  return open(lazy);
}

Result<std::shared_ptr<Comm::Core>> HostComm::of_cards(const CommOptions& options, Settings settings,
                                                       std::unique_ptr<Members> members,
                                                       std::vector<int> ranks,
                                                       const std::vector<std::string>& cards,
                                                       Deadline deadline, std::shared_ptr<CommStore> place) {
  const bool lazy = settings.lazy;
  HEADRACE_TRY_VOID(members->meet(cards));
  if (!lazy) HEADRACE_TRY_VOID(members->reach_all(deadline));
  auto core = std::make_shared<HostComm>(options, std::move(settings), std::move(members), std::move(ranks));
  if (lazy) {
    core->place_ = std::move(place);
    return std::shared_ptr<Core>(std::move(core));
  }
  HEADRACE_TRY_VOID(core->meet_all(deadline));
  return std::shared_ptr<Core>(std::move(core));
}

/// One that is through may end the communicator before another rank has heard of all. All have come, so that
/// one is through, too; its next operation says why the communicator has ended.
Result<void> HostComm::meet_all(Deadline deadline) {
  return own_collective(CommOperation::open, time_left(deadline), [this](Exchange& exchange) {
    Result<void> met = barrier(exchange);
    if (!met && members_->is_open()) met = {};
    if (met) members_->set_open();
    return met;
  });
}

HostComm::HostComm(CommOptions options, Settings settings, std::unique_ptr<Members> members,
                   std::vector<int> ranks)
    : Core({options.rank, options.size, options.name, std::move(ranks)}, std::make_shared<Hooks>()),
      backend_(options.backend == "lazy"   ? "lazy"
               : options.backend == "auto" ? "auto"
                                           : "host"),
      spins_(spins_for(members->size())),
      check_(settings.check && members->size() > 1),
      interrupted_(options.interrupted),
      members_(std::move(members)),
      messages_(*members_, settings),
      exchange_(*members_, *this, spins_),
      options_(std::move(options)),
      settings_(std::move(settings)) {}

HostComm::~HostComm() { close(); }

std::string_view HostComm::backend_version() const { return HEADRACE_VERSION; }

CommOptions HostComm::options() const {
  const std::scoped_lock lock(order_);
  return options_;
}

Tuning HostComm::tuning() const {
  const std::scoped_lock lock(order_);
  return settings_.tuning;
}

void HostComm::set_timeout(Timeout timeout) {
  const std::scoped_lock lock(order_);
  options_.timeout = timeout;
}

Result<void> HostComm::set_hints(const std::map<std::string, std::string>& hints) {
  const std::scoped_lock lock(order_);
  for (const char* fixed : {"backends", "lane_bytes", "message_lane_bytes", "check", "lazy"}) {
    if (hints.contains(fixed))
      return make_error(Code::invalid_argument,
                        "hint {} is fixed when the communicator opens: give it in CommOptions::hints", fixed);
  }
  std::map<std::string, std::string> all = options_.hints;
  for (const auto& [name, value] : hints) all[name] = value;
  HEADRACE_TRY(settings, Settings::read(all));
  options_.hints = std::move(all);
  settings_ = std::move(settings);
  messages_.set_limits(settings_);
  return {};
}

Result<void> HostComm::usable() const {
  if (!closing_) return {};
  return why_closed();
}

Result<void> HostComm::check_open() {
  if (ended()) return why_ended();
  const std::scoped_lock lock(order_);
  return usable();
}

Call HostComm::begin(CommCall& call) {
  call.number = is_message(call.operation)     ? ++message_number_
                : is_one_sided(call.operation) ? ++one_sided_number_
                                               : ++number_;
  Call running;
  running.operation = call.operation;
  running.number = call.number;
  if (!call.timeout) call.timeout = options_.timeout;
  running.timeout = call.timeout;
  running.deadline = deadline_of(running.timeout);
  running.waits_for_all = call.wait_all_ranks;
  running.group = call.group;
  hooks()->scheduled(call);
  return running;
}

Result<void> HostComm::start_worker() {
  if (worker_.joinable()) return {};
  HEADRACE_TRY(thread, start_thread("headrace-comm", [self = std::static_pointer_cast<HostComm>(
                                                          shared_from_this())] { self->work(); }));
  worker_ = std::move(thread);
  return {};
}

/// The communicator's own thread: runs what is queued, and drives sends and receives that no thread waits
/// for.
void HostComm::work() {
  Waiter waiter(spins_, members_->bell());
  std::unique_lock lock(order_);
  while (true) {
    const auto runnable = [this] { return !queue_.empty() && !running_; };
    changed_.wait(lock, [&] { return stop_ || runnable() || messages_.async_pending(); });
    if (runnable()) {
      Task task = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
      lock.unlock();
      task.work->begin();
      Result<void> result = run(task.work->call(), task.card, task.body);
      lock.lock();
      running_ = false;
      changed_.notify_all();
      lock.unlock();
      task.work->end(std::move(result));
      task = {};
      lock.lock();
    } else if (stop_) {
      return;
    } else if (messages_.async_pending()) {
      lock.unlock();
      drive_messages(waiter);
      lock.lock();
    }
  }
}

void HostComm::drive_messages(Waiter& waiter) {
  if (messages_.progress()) return waiter.moved();
  // A failed message ends by itself; the thread goes on with the others.
  static_cast<void>(waiter.pause([this]() -> Result<void> {
    end_stuck_messages();
    return {};
  }));
}

void HostComm::end_stuck_messages() {
  if (ended()) {
    messages_.progress();  // what came before the end
    return messages_.end_all(why_ended());
  }
  const auto stuck = messages_.stuck();
  if (stuck.empty()) return;
  messages_.progress();  // what a rank sent before it went
  for (const Messages::Stuck& one : stuck) {
    if (one.work->ended()) continue;
    const bool alone = one.error.code == Code::timed_out && !one.begun;
    if (alone && messages_.drop(one.work, one.error)) continue;
    if (!one.work->ended()) fail(one.work->call(), one.error);
  }
}

bool HostComm::wait(Work::State& work, Deadline deadline) {
  Waiter waiter(spins_, members_->bell());
  while (!work.ended()) {
    if (deadline.expired()) return false;
    if (!messages_.pending()) {
      // Not for long: messages that come up meanwhile need a thread that drives them.
      work.sleep(Deadline::earliest(deadline, Deadline::after(std::chrono::milliseconds(1))));
      continue;
    }
    drive_messages(waiter);
  }
  return true;
}

Result<void> HostComm::look(const Call& call, const Exchange& waiting) {
  const int awaited = waiting.awaited();
  if (call.awaited != nullptr) call.awaited->store(awaited, std::memory_order_relaxed);
  if (ended()) {
    if (call.end_seen) return why_ended();
    call.end_seen = true;
    return {};
  }
  if (call.interrupt.asked()) return interrupt(call);
  if (call.deadline.expired()) return missing(call, waiting.all_awaited());
  if (awaited >= 0 && !members_->alive(awaited) && !(call.waits_for_all && may_come(waiting.all_awaited()))) {
    if (call.gone == awaited && !members_->ended()) {
      if (call.waits_for_all) return missing(call, waiting.all_awaited());
      return gone({&awaited, 1});
    }
    call.gone = awaited;
  }
  messages_.progress();  // those that this rank has not asked for yet are kept, so that their senders go on
  members_->tell_far(LaneKind::collective);
  return {};
}

/// In short attempts, so that an end of the communicator ends it, too.
Result<void> HostComm::reach(const Call& call, int peer) {
  Interrupt interrupted = call.interrupt;
  while (!members_->is_reached(peer)) {
    const Deadline soon = Deadline::earliest(call.deadline, Deadline::after(Interrupt::interval));
    auto reached = members_->reach(peer, soon);
    if (reached || reached.code() != Code::timed_out) return reached;
    if (ended()) return why_ended();
    if (interrupted.asked()) return Interrupt::error();
    if (call.deadline.expired()) return late(call, {&peer, 1});
  }
  return {};
}

Result<void> HostComm::reach_all(const Call& call) {
  if (!members_->lazy()) return {};
  for (int peer = 0; peer < size(); ++peer) {
    auto reached = reach(call, peer);
    if (reached) continue;
    fail(call, reached.error());
    return reached;
  }
  return {};
}

/// Before a message begins: it ends alone if the rank cannot be reached.
Result<void> HostComm::reach_peer_of(const CommCall& message) {
  if (message.peer < 0 || members_->is_reached(message.peer) || ended()) return {};
  HEADRACE_TRY_VOID(still_open());
  Call call;
  call.timeout = message.timeout ? message.timeout : options().timeout;
  call.deadline = deadline_of(call.timeout);
  call.interrupt = Interrupt(interrupted_);
  auto reached = reach(call, message.peer);
  return reached ? reached : refused(message.operation, std::move(reached).error());
}

bool HostComm::may_come(const std::vector<int>& ranks) const {
  return std::ranges::any_of(ranks, [this](int rank) { return members_->alive(rank); });
}

Error HostComm::missing(const Call& call, const std::vector<int>& ranks) const {
  std::vector<int> lost, others;
  for (const int rank : ranks) (members_->alive(rank) ? others : lost).push_back(rank);
  if (lost.empty()) return late(call, others);
  Error lost_ones = gone(lost);
  if (others.empty()) return lost_ones;
  Error error = late(call, others);
  error.message += "; " + lost_ones.message;
  return error;
}

Result<void> HostComm::wait_in_call(const std::shared_ptr<Work::State>& work) {
  Interrupt interrupted(interrupted_);
  while (!wait(*work, interrupted.next_look())) {
    if (!interrupted.asked()) continue;
    const bool alone = messages_.drop(work, Interrupt::error());
    if (!alone) interrupt(work->call());
  }
  if (work->status() == WorkStatus::completed) return {};
  return work->error();
}

Result<Work> HostComm::issue(CommCall& call, std::shared_ptr<const void> owner) {
  if (is_message(call.operation)) return message(call, std::move(owner));
  const auto plan = HostPlan::make(call, tuning(), size());
  if (!plan) return refused(comm_operation_name(call.operation), plan.error());
  std::string card = card_of(call, &*plan);
  if (!call.async)  // the caller waits, so what it gave stays
    return collective(call, std::move(card), owner,
                      [&](Exchange& exchange) { return plan->run(exchange, call); });
  return collective(call, std::move(card), owner, body_of(*plan, call));
}

Result<void> HostComm::check(const CommCall& call) const {
  if (is_message(call.operation)) return {};
  const auto plan = HostPlan::make(call, tuning(), size());
  return plan ? Result<void>() : plan.error();
}

HostComm::QueuedBody HostComm::body_of(const HostPlan& plan, const CommCall& call) {
  return [plan, copy = std::make_shared<const KeptCall>(call)](Exchange& exchange) {
    return plan.run(exchange, copy->call());
  };
}

/// All of them, with no operation of another thread between them.
void HostComm::issue_all(std::span<const KeptCall> calls, bool async, Group& group) {
  for (const KeptCall& kept : calls) {
    if (!is_message(kept.call().operation)) continue;
    if (auto reached = reach_peer_of(kept.call()); !reached) return group.refuse(reached.error());
  }
  const std::scoped_lock lock(order_);
  for (const KeptCall& kept : calls) issue_one(kept, async, group);
}

void HostComm::issue_one(const KeptCall& kept, bool async, Group& group) {
  CommCall call = kept.call();
  call.group = group.id();
  const auto begun = [&]() -> Result<std::shared_ptr<Work::State>> {
    HEADRACE_TRY_VOID(usable());
    if (is_message(call.operation)) {
      call.async = async;
      return begin_message(call, kept.owner());
    }
    call.async = true;
    HEADRACE_TRY(plan, HostPlan::make(call, settings_.tuning, size()));
    return enqueue(call, card_of(call, &plan), kept.owner(), body_of(plan, call));
  };
  auto work = begun();
  work ? group.add(Work(std::move(*work))) : group.refuse(work.error());
}

Result<std::shared_ptr<Work::State>> HostComm::enqueue(CommCall& call, std::string card,
                                                       std::shared_ptr<const void> owner, QueuedBody body) {
  HEADRACE_TRY_VOID(start_worker());
  auto work = std::make_shared<Work::State>(shared_from_this(), begin(call), std::move(owner));
  queue_.push_back({work, std::move(card), std::move(body)});
  changed_.notify_all();
  return work;
}

std::string HostComm::card_of(const CommCall& call, const HostPlan* plan) const {
  if (!check_) return {};
  return card_of_call(call, size(), plan != nullptr ? plan->way(call) : "").encode();
}

Result<void> HostComm::compare(const Call& call, const std::string& card) {
  exchange_.begin(call, check_tag(call.number), tuning().chunk_bytes);
  std::vector<CallCard> cards;
  const auto gather_cards = [&]() -> Result<void> {
    std::vector<std::string> texts;
    HEADRACE_TRY_VOID(gather_texts(exchange_, card, texts));
    for (const std::string& text : texts) {
      HEADRACE_TRY(decoded, CallCard::decode(text));
      cards.push_back(std::move(decoded));
    }
    return {};
  };
  if (auto gathered = gather_cards(); !gathered) {
    fail(call, gathered.error());
    return gathered;
  }
  if (auto differ = difference(cards)) return *std::move(differ);
  return {};
}

Result<Work> HostComm::message(CommCall& call, std::shared_ptr<const void> owner) {
  HEADRACE_TRY_VOID(reach_peer_of(call));
  std::unique_lock lock(order_);
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(work, begin_message(call, std::move(owner)));
  lock.unlock();
  if (!call.async) HEADRACE_TRY_VOID(wait_in_call(work));
  return Work(std::move(work));
}

Result<std::shared_ptr<Work::State>> HostComm::begin_message(CommCall& call,
                                                             std::shared_ptr<const void> owner) {
  if (call.async) HEADRACE_TRY_VOID(start_worker());
  auto work = std::make_shared<Work::State>(shared_from_this(), begin(call), std::move(owner));
  hooks()->started(work->call().id());
  if (ended()) {
    work->end(why_ended());
    return work->error();
  }
  post(call, work);  // in order of call
  changed_.notify_all();
  return work;
}

void HostComm::post(const CommCall& call, const std::shared_ptr<Work::State>& work) {
  if (call.operation == CommOperation::send) {
    const ConstElements& input = call.inputs.front();
    messages_.send(work, call.async, call.peer, call.tag, static_cast<const std::byte*>(input.data),
                   input.bytes());
    return;
  }
  const Elements& output = call.outputs.front();
  messages_.receive(work, call.async, call.peer, call.tag, static_cast<std::byte*>(output.data),
                    output.bytes());
  messages_.progress();
}

Result<Window> HostComm::new_window() {
  const std::scoped_lock lock(order_);
  HEADRACE_TRY_VOID(usable());
  return Window(
      std::make_unique<HostWindowState>(std::static_pointer_cast<HostComm>(shared_from_this()), ++windows_));
}

WindowComm HostComm::window_comm() {
  WindowComm comm;
  comm.members = members_.get();
  comm.spins = spins_;
  comm.interrupted = interrupted_;
  comm.look = [this]() -> Result<void> {
    if (ended()) return why_ended();
    {
      const std::scoped_lock lock(order_);
      HEADRACE_TRY_VOID(usable());
    }
    messages_.progress();  // as in a collective
    return {};
  };
  comm.collective = [this](CommOperation operation, const WindowComm::Body& body) {
    return own_collective(operation, {}, [&](Exchange& exchange) {
      return body([&](const std::string& mine) -> Result<std::vector<std::string>> {
        std::vector<std::string> texts;
        HEADRACE_TRY_VOID(gather_texts(exchange, mine, texts));
        return texts;
      });
    });
  };
  return comm;
}

Result<Call> HostComm::begin_one_sided(CommCall& call) {
  const std::scoped_lock lock(order_);
  HEADRACE_TRY_VOID(usable());
  return begin(call);
}

Error HostComm::why_ended() {
  Error cause;
  {
    const std::scoped_lock lock(cause_mutex_);
    if (cause_) return *cause_;
    cause_ = cause = members_->first_farewell();
    ended_.store(true, std::memory_order_release);
  }
  // A rank that sees this one leave knows why, though the first words have not reached it yet.
  members_->say_farewell(code_for_others(cause.code), cause.message);
  hooks()->aborted(cause);
  return cause;
}

void HostComm::end_all(Error cause, std::string_view farewell) {
  {
    const std::scoped_lock lock(cause_mutex_);
    if (cause_) return;
    cause_ = std::move(cause);
    ended_.store(true, std::memory_order_seq_cst);
  }
  members_->say_farewell(code_for_others(cause_->code), farewell);
  members_->bell().ring();
  hooks()->aborted(*cause_);
  messages_.end_all(*cause_);
}

void HostComm::fail(const Call& call, const Error& error) {
  if (ended()) return messages_.end_all(why_ended());
  const Error full = described(*this, call, error);
  end_all(full, full.message);
  if (!options().abort_on_error) return;
  Log(Logger::process_default(), "collectives")
      .error("the process ends, as it shall when an operation fails: {}", full.message);
  flush_trace_files();
  std::abort();
}

Error HostComm::interrupt(const Call& call) {
  const Error full = described(*this, call, Interrupt::error());
  end_all(full, full.message);
  return Interrupt::error();
}

void HostComm::abort(std::string_view reason) {
  if (forked()) return;
  const std::string text = fmt::format("rank {} aborted {}: {}", rank(), name_text(name()), reason);
  end_all(Error{Code::canceled, text}, text);
}

Result<void> HostComm::finalize() {
  if (forked()) return why_not_in_child();
  Interrupt interrupted(interrupted_);
  const auto look = [&] {
    if (interrupted.asked()) abort("its caller interrupted finalize");
  };
  {
    std::unique_lock lock(order_);
    if (closing_) return {};
    closing_ = true;
    while (!changed_.wait_for(lock, Interrupt::interval, [this] { return queue_.empty() && !running_; })) {
      lock.unlock();
      look();
      lock.lock();
    }
  }
  Waiter waiter(spins_, members_->bell());
  while (messages_.pending()) {
    drive_messages(waiter);
    look();
  }
  Result<void> result;
  if (ended()) result = why_ended();
  close();
  return result;
}

void HostComm::close() {
  if (forked()) return;
  std::thread worker;
  bool busy = messages_.pending(), again = false;
  {
    const std::scoped_lock lock(order_);
    again = std::exchange(stop_, true);
    closing_ = true;
    busy = busy || running_ || !queue_.empty();
    worker = std::move(worker_);
  }
  if (busy) abort("it left while operations were under way");
  if (!again && ended()) static_cast<void>(why_ended());  // the hooks hear of an end that no call has met
  changed_.notify_all();
  if (worker.get_id() == std::this_thread::get_id())
    worker.detach();  // a hook has let go of the communicator: the thread owns it until it ends
  else if (worker.joinable())
    worker.join();
  const Deadline until = Deadline::after(settle_limit);
  while (!ended() && !until.expired() && !members_->far_ranks_have_all())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  members_->leave();
  registrations().clear();
}

Result<std::shared_ptr<Comm::Core>> HostComm::split(std::span<const int> ranks, const std::string& name,
                                                    const SplitOptions& changes) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY(mine, index_in_group(ranks, rank(), size()));
  if (!ranks.empty()) HEADRACE_TRY_VOID(check_name(name));
  const CommOptions options = options_of_split(ranks, mine, name, changes);
  HEADRACE_TRY(settings, settings_of_split(options, changes));
  std::unique_ptr<Members> members;
  wire::SplitCard card{{ranks.begin(), ranks.end()}, name, {}};
  const auto open_part = [&]() -> Result<void> {
    if (ranks.empty()) return {};
    const std::string box = fmt::format("{}/{:016x}", members_->box_name(), random_u64());
    HEADRACE_TRY(opened,
                 Members::open(members_->station(), mine, static_cast<int>(ranks.size()), box, settings));
    HEADRACE_TRY(bytes, opened->card());
    members = std::move(opened);
    card.rank_card = std::move(bytes);
    return {};
  };
  // A rank that fails says so: the others do not wait for it.
  const Result<void> part = open_part();
  std::vector<std::string> cards;
  const std::string encoded = wire::Outcome::encode(part) + card.encode();
  HEADRACE_TRY_VOID(own_collective(
      CommOperation::split, {}, [&](Exchange& exchange) { return gather_texts(exchange, encoded, cards); }));
  if (!part) return refused(CommOperation::split, part.error());
  if (ranks.empty()) return std::shared_ptr<Core>();
  std::vector<std::string> group;
  for (const int other : ranks) {
    HEADRACE_TRY(outcome, wire::Outcome::decode(cards[static_cast<std::size_t>(other)]));
    if (!outcome.result)
      return refused(CommOperation::split,
                     std::move(outcome.result).error().within(fmt::format("rank {}", other)));
    HEADRACE_TRY(theirs, wire::SplitCard::decode(outcome.rest));
    if (theirs.ranks != card.ranks || theirs.name != name) {
      return make_error(
          Code::invalid_argument,
          "rank {} splits {} into other groups than rank {}: all ranks of a group give the same "
          "ranks and name",
          other, name_text(this->name()), rank());
    }
    group.push_back(std::move(theirs.rank_card));
  }
  return of_cards(options, std::move(settings), std::move(members), first_ranks(ranks), group,
                  deadline_of(options.meeting_timeout));
}

}  // namespace headrace::collectives
