// SPDX-License-Identifier: Apache-2.0
#include "collectives/exchange.hpp"

#include "base/errors.hpp"
#include "collectives/operation.hpp"

#include <algorithm>
#include <set>

namespace headrace::collectives {

Exchange::Exchange(Members& members, Watch& watch, std::uint32_t spins)
    : members_(members),
      watch_(watch),
      waiter_(spins, members.bell()),
      sources_(static_cast<std::size_t>(members.size())) {}

void Exchange::begin(const Call& call, std::uint32_t tag, std::size_t chunk_bytes) {
  call_ = call;
  tag_ = tag;
  chunk_bytes_ = chunk_bytes;
}

void Exchange::send(int to, const void* data, std::size_t bytes) {
  if (bytes != 0) outgoing_.push_back({to, static_cast<const std::byte*>(data), bytes, 0});
}

void Exchange::receive(int from, void* data, std::size_t bytes) {
  if (bytes != 0) incoming_.push_back({from, static_cast<std::byte*>(data), bytes, 0});
}

void Exchange::reduce(const void* own, void* output, std::size_t count, const Reduction& reduction) {
  reducing_ = {static_cast<const std::byte*>(own), static_cast<std::byte*>(output), count * reduction.width(),
               0, reduction};
}

Result<void> Exchange::run() {
  waiter_.moved();
  Result<void> result;
  while (true) {
    bool moved = false;
    bool done = true;
    for (Outgoing& part : outgoing_) {
      moved |= push(part);
      done &= part.done == part.bytes;
    }
    for (Incoming& part : incoming_) {
      auto pulled = pull(part);
      if (!pulled) {
        result = std::move(pulled).error();
        break;
      }
      moved |= *pulled;
      done &= part.done == part.bytes;
    }
    if (result && reducing_.done < reducing_.bytes) {
      auto reduced = reduce_some();
      if (!reduced)
        result = std::move(reduced).error();
      else
        moved |= *reduced;
      done &= reducing_.done == reducing_.bytes;
    }
    if (!result || done) break;
    if (moved) {
      waiter_.moved();
      continue;
    }
    result = waiter_.pause([this] { return watch_.look(call_, *this); });
    if (!result) break;
  }
  outgoing_.clear();
  incoming_.clear();
  reducing_ = {};
  return result;
}

bool Exchange::push(Outgoing& part) {
  if (part.done == part.bytes) return false;
  LaneWriter& lane = members_.writer(part.to, LaneKind::collective);
  const auto written =
      lane.write({tag_, part.bytes}, part.data + part.done, part.bytes - part.done, chunk_bytes_);
  if (written) part.done += *written;
  return written.has_value();
}

Result<bool> Exchange::pull(Incoming& part) {
  if (part.done == part.bytes) return false;
  LaneReader& lane = members_.reader(part.from, LaneKind::collective);
  const Front* const front = lane.next();
  if (front == nullptr) return false;
  HEADRACE_TRY_VOID(check(*front, part.from, part.bytes));
  const std::size_t length = std::min(front->bytes.size(), part.bytes - part.done);
  std::memcpy(part.data + part.done, front->bytes.data(), length);
  lane.take(length);
  part.done += length;
  return true;
}

/// Reduces as many bytes as every rank has sent, straight from their lanes.
Result<bool> Exchange::reduce_some() {
  std::size_t length = std::min(reducing_.bytes, sent_everywhere()) - reducing_.done;
  for (int from = 0; from < size(); ++from) {
    const auto i = static_cast<std::size_t>(from);
    if (from == rank()) {
      sources_[i] = reducing_.own + reducing_.done;
      continue;
    }
    const Front* const front = members_.reader(from, LaneKind::collective).next();
    reduction_awaits_ = from;
    if (front == nullptr) return false;
    HEADRACE_TRY_VOID(check(*front, from, reducing_.bytes));
    sources_[i] = front->bytes.data();
    length = std::min(length, front->bytes.size());
  }
  reduction_awaits_ = -1;
  if (length == 0) return false;  // it waits for its own bytes to leave
  reducing_.reduction(reducing_.output + reducing_.done, sources_, length / reducing_.reduction.width());
  for (int from = 0; from < size(); ++from)
    if (from != rank()) members_.reader(from, LaneKind::collective).take(length);
  reducing_.done += length;
  return true;
}

/// Elements that are reduced in place must have been sent before.
std::size_t Exchange::sent_everywhere() const {
  std::size_t least = reducing_.bytes;
  for (const Outgoing& part : outgoing_)
    if (part.data == reducing_.output) least = std::min(least, part.done);
  return least;
}

Result<void> Exchange::check(const Front& front, int from, std::size_t bytes) const {
  if (front.tag == tag_ && front.message_bytes == bytes) return {};
  if (front.tag != tag_) {
    return make_error(Code::invalid_argument,
                      "rank {} is in {} number {}: all ranks must call the same operations in the same order",
                      from, comm_operation_name(operation_of(front.tag)), number_of(front.tag));
  }
  return make_error(
      Code::invalid_argument,
      "rank {} sends {} bytes and {} were expected: all ranks must give the same counts and types", from,
      front.message_bytes, bytes);
}

int Exchange::awaited() const {
  for (const Incoming& part : incoming_)
    if (part.done < part.bytes) return part.from;
  if (reducing_.done < reducing_.bytes && reduction_awaits_ >= 0) return reduction_awaits_;
  for (const Outgoing& part : outgoing_)
    if (part.done < part.bytes) return part.to;
  return -1;
}

std::vector<int> Exchange::all_awaited() const {
  std::set<int> ranks;
  for (const Incoming& part : incoming_)
    if (part.done < part.bytes) ranks.insert(part.from);
  if (reducing_.done < reducing_.bytes) {
    for (int from = 0; from < size(); ++from)
      if (from != rank() && members_.reader(from, LaneKind::collective).next() == nullptr) ranks.insert(from);
  }
  if (ranks.empty()) {
    for (const Outgoing& part : outgoing_)
      if (part.done < part.bytes) ranks.insert(part.to);
  }
  return {ranks.begin(), ranks.end()};
}

void Exchange::restart_limit(std::chrono::nanoseconds longer) {
  if (!call_.timeout) return;
  call_.timeout = *call_.timeout + std::min(longer, std::chrono::nanoseconds::max() - *call_.timeout);
  call_.deadline = Deadline::after(*call_.timeout);
}

}  // namespace headrace::collectives
