// SPDX-License-Identifier: Apache-2.0
#include "rail/deliveries.hpp"

#include "rail/link.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::rail {
namespace {

/// One page.
headrace_side_v1 side_of(void** region, std::uint64_t offset, std::uint64_t bytes) {
  headrace_side_v1 side{};
  side.struct_size = sizeof side;
  side.regions = region;
  side.region_count = 1;
  side.columns.base_offset = offset;
  side.columns.stride_bytes = side.columns.page_bytes = bytes;
  return side;
}

}  // namespace

// ------------------------------------------------------------------ what the peer says

/// Null: the peer knows already that it is done.
Result<Deliveries::Slot*> Deliveries::slot(std::uint64_t id) {
  if (const auto at = slots_.find(id); at != slots_.end()) return &at->second;
  if (id < first_open_) return nullptr;
  if (id - first_open_ >= offer_window)
    return make_error(Code::corrupt, "message {} was offered, and {} to {} may be open", id, first_open_,
                      first_open_ + offer_window - 1);
  // Who offers this one knows that those below the window are done.
  if (id > offer_window) slots_.erase(slots_.begin(), slots_.upper_bound(id - offer_window));
  return &slots_[id];
}

Result<void> Deliveries::offered(Offer offer) {
  if (!offer.keys.empty() && offer.keys.size() != peer_nics_)
    return make_error(Code::corrupt, "message {} was offered with {} keys, and the peer has {} NICs",
                      offer.id, offer.keys.size(), peer_nics_);
  HEADRACE_TRY(at, slot(offer.id));
  if (at == nullptr) return {};
  if (at->life == Slot::Life::closed) answers_.insert(offer.id);
  if (at->offer.id == 0 && at->life == Slot::Life::offered) at->offer = std::move(offer);
  return {};
}

Result<void> Deliveries::withdrawn(std::uint64_t id) {
  HEADRACE_TRY(at, slot(id));
  if (at == nullptr) return {};
  if (at->life == Slot::Life::closed) answers_.insert(id);
  if (at->life != Slot::Life::offered) return {};  // it is being read, and ends soon
  close(id, *at, Code::canceled);
  deliver();
  return {};
}

void Deliveries::close(std::uint64_t id, Slot& slot, Code code, std::uint64_t room) {
  slot.life = Slot::Life::closed;
  slot.offer = {};
  slot.answer = {id, code, room};
  answers_.insert(id);
}

void Deliveries::answer(std::deque<std::string>& outgoing) {
  for (const std::uint64_t id : std::exchange(answers_, {}))
    if (const auto at = slots_.find(id); at != slots_.end()) outgoing.push_back(encode(at->second.answer));
}

// ------------------------------------------------------------------ receives

bool Deliveries::match_one() {
  unmatched_ = std::max(unmatched_, first_open_);
  auto next = slots_.find(unmatched_);
  while (next != slots_.end() && next->second.life != Slot::Life::offered) next = slots_.find(++unmatched_);
  if (next == slots_.end() || next->second.offer.id == 0) return false;  // it has not come yet
  const Receives::Posted* const first = receives_.first_for(link_);
  if (first == nullptr) return false;
  Slot& slot = next->second;
  if (slot.offer.bytes > first->receive.bytes) {
    close(next->first, slot, Code::invalid_argument, first->receive.bytes);
  } else {
    slot.reading = std::make_unique<Reading>();
    slot.reading->posted = receives_.take(*first);
    read(next->first, slot);
  }
  deliver();
  return true;
}

void Deliveries::read(std::uint64_t id, Slot& slot) {
  Reading& reading = *slot.reading;
  const Receive& receive = reading.posted.receive;
  if (slot.offer.keys.empty()) {
    if (slot.offer.bytes > 0)
      std::memcpy(reinterpret_cast<char*>(receive.region->memory.address + receive.offset),
                  slot.offer.content.data(), slot.offer.bytes);
    slot.life = Slot::Life::filled;
    return;
  }
  slot.life = Slot::Life::reading;
  reading.source.keys = slot.offer.keys;
  reading.source_region = &reading.source;
  reading.target_region = const_cast<LocalRegion*>(receive.region);
  reading.local = side_of(&reading.target_region, receive.offset, slot.offer.bytes);
  reading.remote = side_of(&reading.source_region, 0, slot.offer.bytes);
  headrace_prepare_v1 prepared{};
  prepared.struct_size = sizeof prepared;
  prepared.op = HEADRACE_READ;
  prepared.count = 1;
  prepared.bytes = slot.offer.bytes;
  prepared.local = &reading.local;
  prepared.remote = &reading.remote;
  reading.request = std::make_unique<Request>(prepared, id);
  static_cast<void>(link_.post(*reading.request, {}));  // a lost link has no messages
}

Result<void> Deliveries::read_ended(const Request& read, Status status) {
  const std::uint64_t id = read.message;
  Slot& slot = slots_.at(id);
  link_.unload(slot.reading->source);
  if (status.ok()) {
    slot.life = Slot::Life::filled;
    deliver();
    return {};
  }
  const std::unique_ptr<Reading> reading = std::move(slot.reading);
  const std::uint64_t bytes = slot.offer.bytes;
  const bool canceled = status.code == Code::canceled;
  const bool refused = status.code == Code::not_found || status.code == Code::corrupt;
  close(id, slot, canceled ? Code::canceled : Code::backend_failed);
  // A peer may send from memory that no NIC here reaches: that must not use up receives of other peers.
  if (refused || status.code == Code::not_supported || link_.lost()) {
    receives_.give_back(reading->posted);  // the message has not come, so it is still free
  } else {
    tell(*reading, 0, status);
  }
  deliver();
  if (refused)
    return make_error(Code::corrupt, "message {} of {} bytes was offered, and cannot be read", id, bytes);
  return {};
}

/// In the order in which they were sent.
void Deliveries::deliver() {
  if (link_.lost()) return;
  for (auto at = slots_.find(first_open_); at != slots_.end(); at = slots_.find(first_open_)) {
    Slot& slot = at->second;
    if (slot.life == Slot::Life::offered || slot.life == Slot::Life::reading) return;
    ++first_open_;
    if (slot.life == Slot::Life::closed) continue;
    const std::unique_ptr<Reading> reading = std::move(slot.reading);
    const std::uint64_t bytes = slot.offer.bytes;
    close(at->first, slot, Code::ok);
    tell(*reading, bytes, {});
  }
}

void Deliveries::tell(const Reading& reading, std::uint64_t bytes, Status status) {
  const Receive& receive = reading.posted.receive;
  events_.received(&link_, receive.token, bytes, status);
  // A lost link brings nothing more to a receive of its own.
  if (status.ok() && receive.again && (receive.from == nullptr || !link_.lost()))
    static_cast<void>(receives_.add(receive));  // there is room: it came from there
}

bool Deliveries::cancel(std::uint64_t token, std::uint64_t now_ns) {
  for (auto& [id, slot] : slots_) {
    if (slot.reading == nullptr || slot.reading->posted.receive.token != token) continue;
    if (slot.life == Slot::Life::reading) link_.cancel(*slot.reading->request, now_ns);
    return true;  // one that is filled will be delivered
  }
  return false;
}

void Deliveries::lose(Status status) {
  // Filled ones, too: the peer hears that they are lost.
  for (auto& [id, slot] : slots_)
    if (slot.reading != nullptr) receives_.give_back(slot.reading->posted);
  slots_.clear();
  answers_.clear();
  for (const Receive& receive : receives_.remove_all_of(link_))
    events_.received(&link_, receive.token, 0, status);
}

std::size_t Deliveries::open() const {
  return static_cast<std::size_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const auto& each) { return each.second.life != Slot::Life::closed; }));
}

}  // namespace headrace::rail
