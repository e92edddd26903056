// SPDX-License-Identifier: Apache-2.0
#include "collectives/call_ring.hpp"

#include "base/errors.hpp"
#include "collectives/operation.hpp"

#include <headrace/comm.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace::collectives {
namespace {

std::uint64_t wall_clock_ns() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(since_1970).count());
}

/// Messages have numbers of their own.
std::uint64_t key_of(CommOperation operation, std::uint64_t number) {
  return number << 1 | (is_message(operation) ? 1U : 0U);
}

template <class List>
std::optional<RecordedElements> recorded(const List& lists) {
  if (lists.empty()) return std::nullopt;
  RecordedElements all{0, lists.front().dtype};
  for (const auto& elements : lists) all.count += elements.count;
  return all;
}

}  // namespace

std::uint64_t CallRing::Recorded::count_message(bool is_send, int peer) {
  if (messages_.empty()) messages_.resize(2 * ranks.size());
  return ++messages_[static_cast<std::size_t>(peer) + (is_send ? 0 : ranks.size())];
}

CallRing::CallRing(std::size_t entries) : entries_(std::max<std::size_t>(entries, 1)) {}

std::shared_ptr<CallRing::Recorded> CallRing::add(const Comm& comm) {
  auto added = std::make_shared<Recorded>();
  added->ranks = comm.ranks();
  added->rank = comm.rank();
  added->name = comm.name();
  const std::scoped_lock lock(mutex_);
  added->id = ++last_id_;
  const int times = ++names_[{added->name, added->ranks}];
  if (times > 1) added->name += fmt::format(" ({})", times);
  if (!rank_) rank_ = added->ranks[static_cast<std::size_t>(added->rank)];
  std::erase_if(comms_, [](const auto& one) { return one.expired(); });
  comms_.push_back(added);
  return added;
}

CallRecord& CallRing::next_record() {
  const std::size_t place = count_ % entries_;
  if (place == records_.size())
    records_.emplace_back();
  else
    records_[place] = {};
  records_[place].id = count_++;
  return records_[place];
}

CallRecord* CallRing::find(Recorded& comm, const CommCallId& call) {
  const auto found = comm.under_way_.find(key_of(call.operation, call.number));
  if (found == comm.under_way_.end()) return nullptr;
  CallRecord& record = records_[found->second % entries_];
  return record.id == found->second ? &record : nullptr;
}

void CallRing::scheduled(const std::shared_ptr<Recorded>& comm, const CommCall& call) {
  const std::uint64_t now = wall_clock_ns();
  const std::scoped_lock lock(mutex_);
  CallRecord& record = next_record();
  record.comm = comm;
  record.operation = call.operation;
  record.number = call.number;
  record.peer = call.peer;
  record.tag = call.tag;
  record.input = recorded(moved_inputs(call));
  record.output = recorded(call.outputs);
  record.timeout = call.timeout;
  record.created_ns = now;
  if (!is_message(call.operation))
    comm->last_scheduled = call.number;
  else if (call.peer != any_source)
    record.pair_number = comm->count_message(call.operation == CommOperation::send, call.peer);
  comm->under_way_[key_of(call.operation, call.number)] = record.id;
}

void CallRing::started(Recorded& comm, const CommCallId& call) {
  const std::uint64_t now = wall_clock_ns();
  const std::scoped_lock lock(mutex_);
  if (!is_message(call.operation)) comm.last_started = call.number;
  CallRecord* record = find(comm, call);
  if (record == nullptr) return;
  record->state = CallRecord::State::started;
  record->started_ns = now;
}

void CallRing::completed(Recorded& comm, const CommCallId& call, const Error& error) {
  const std::uint64_t now = wall_clock_ns();
  const bool well = error.code == Code::ok;
  const std::scoped_lock lock(mutex_);
  if (well && !is_message(call.operation)) comm.last_completed = call.number;
  CallRecord* record = find(comm, call);
  if (record != nullptr) {
    record->ended = true;
    record->error = error.message;
    if (well) {
      record->state = CallRecord::State::completed;
      record->completed_ns = now;
    }
  }
  const bool sender_follows = well && record != nullptr && is_message(call.operation) && record->peer < 0;
  if (!sender_follows) comm.under_way_.erase(key_of(call.operation, call.number));
}

void CallRing::received(Recorded& comm, std::uint64_t number, int source) {
  const CommCallId call{CommOperation::recv, number};
  const std::scoped_lock lock(mutex_);
  const std::uint64_t pair_number = comm.count_message(false, source);
  if (CallRecord* record = find(comm, call)) {
    record->peer = source;
    record->pair_number = pair_number;
  }
  comm.under_way_.erase(key_of(call.operation, call.number));
}

void CallRing::ended(Recorded& comm, const Error& cause) {
  const std::scoped_lock lock(mutex_);
  comm.why_ended = cause.message;
}

CallRing::Snapshot CallRing::snapshot() const {
  Snapshot all;
  const std::scoped_lock lock(mutex_);
  for (const auto& comm : comms_)
    if (const auto open = comm.lock()) all.comms.push_back(*open);
  all.calls.reserve(records_.size());
  const std::size_t oldest = count_ < entries_ ? 0 : count_ % entries_;
  for (std::size_t i = 0; i < records_.size(); ++i)
    all.calls.push_back(records_[(oldest + i) % records_.size()]);
  return all;
}

std::optional<int> CallRing::rank() const {
  const std::scoped_lock lock(mutex_);
  return rank_;
}

}  // namespace headrace::collectives
