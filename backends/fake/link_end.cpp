// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/link_end.hpp"

#include "backends/fake/instance.hpp"

namespace headrace::fake {

Status LinkEnd::usable() const {
  if (broken) return lost_status;
  return state == LinkState::connecting ? Status{Code::would_block} : Status{};
}

void LinkEnd::push(Event::Kind kind) {
  Event event;
  event.kind = kind;
  event.link = owner->links.get(*this);
  owner->worker.push(std::move(event));
}

void LinkEnd::break_off(LinkState to, Status status, const std::string& text) {
  if (state != LinkState::lost) {
    lost_status = status;
    lost_text = text;
  }
  state = to;
  broken.store(true, std::memory_order_release);  // pairs with the loads of threads that copy
}

void LinkEnd::lose(Status status, const std::string& text) {
  if (state == LinkState::lost || state == LinkState::closed) return;
  break_off(LinkState::lost, status, text);
  push(Event::Kind::lost);
}

void LinkEnd::kill() {
  const std::string text = "the fault script killed the link";
  if (const auto far = other.lock()) far->lose({Code::peer_lost}, text);
  lose({Code::peer_lost}, text);
}

Outside::Outside(Lock& lock, LinkEnd* link) : lock_(lock), link_(link) {
  if (link_ != nullptr) ++link_->busy;
  lock_.unlock();
}

Outside::~Outside() {
  lock_.lock();
  if (link_ == nullptr) return;
  --link_->busy;
  link_->owner->network.changed.notify_all();
}

}  // namespace headrace::fake
