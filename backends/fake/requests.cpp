// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/requests.hpp"

#include "base/errors.hpp"

#include <algorithm>

namespace headrace::fake {
namespace {

Event run_of(const std::shared_ptr<Request>& request) {
  Event event;
  event.request = request;
  event.post_number = request->post_number;
  return event;
}

}  // namespace

Result<Request*> Requests::prepare(const LinkEnd* link, const headrace_prepare_v1& args) {
  if (here_.script.next_preparation_denied())
    return make_error(Code::not_supported, "the fault script denies this preparation");
  auto request = std::make_shared<Request>();
  request->args = args;
  const Lock lock(here_.network.mutex);
  if (link != nullptr && link->broken) return Error{link->lost_status.code, "prepare: " + link->lost_text};
  if (link != nullptr) request->link = here_.links.get(*link);
  return handles_.add(std::move(request));
}

Status Requests::post(const Request& handle, const headrace_post_v1& args) {
  const std::uint64_t now = here_.host.now_ns();
  {
    const Lock lock(here_.network.mutex);
    const std::shared_ptr<Request> request = handles_.get(handle);
    if (const Status may = may_post(*request, args); !may.ok()) return may;
    begin(request, args);
    schedule(request, now);
  }
  here_.network.settle();
  return {};
}

/// A refused post leaves nothing behind: the host may make it again.
Status Requests::may_post(const Request& request, const headrace_post_v1& args) const {
  if (request.state != RequestState::idle) return {Code::invalid_argument};
  const LinkEnd* const link = request.link.get();
  if (link == nullptr && (args.has_message != 0 || args.has_immediate != 0)) return {Code::invalid_argument};
  if (link != nullptr) {
    Status may = link->usable();
    if (may.ok() && args.has_message != 0) may = Messages::may_send(*link, args.channel, args.message.length);
    if (may.ok() && args.has_immediate != 0) may = Messages::may_send(*link);
    if (!may.ok()) return may;
  }
  return {in_flight_ >= queue_depth_ ? Code::would_block : Code::ok};
}

void Requests::begin(const std::shared_ptr<Request>& request, const headrace_post_v1& args) {
  request->mishap = here_.script.next_action();
  request->state = RequestState::waiting;
  request->cancel = false;
  request->token = args.token;
  ++request->post_number;
  ++in_flight_;
  LinkEnd* const link = request->link.get();
  if (link != nullptr) link->in_flight.insert(request);
  request->message.reset();
  if (args.has_message != 0)
    request->message = {.channel = args.channel,
                        .sequence = Messages::take_place(*link, args.channel),
                        .bytes = {static_cast<const char*>(args.message.data), args.message.length}};
  request->immediate = plugin::Immediate::of(args);
  if (request->immediate) ++link->undelivered;
}

void Requests::schedule(const std::shared_ptr<Request>& request, std::uint64_t now) {
  const Mishap& mishap = request->mishap;
  if (mishap.drop) return;
  if (mishap.delay_ns != 0)
    here_.worker.delay(run_of(request), now, mishap.delay_ns);
  else if (mishap.reorder)
    here_.worker.hold_back(run_of(request));
  else
    here_.worker.push(run_of(request));
}

bool Requests::poll(const Request& handle) {
  if (completion_ != Completion::progress) return false;
  Lock lock(here_.network.mutex);
  const std::shared_ptr<Request> request = handles_.get(handle);
  const Mishap& mishap = request->mishap;
  const bool held = mishap.drop || mishap.reorder || mishap.delay_ns != 0;
  if (request->state != RequestState::waiting || held) return false;
  carry_out(lock, request);
  return true;
}

void Requests::cancel(const Request& handle) {
  {
    const Lock lock(here_.network.mutex);
    const std::shared_ptr<Request> request = handles_.get(handle);
    if (request->state == RequestState::idle) return;
    request->cancel = true;
    if (request->state == RequestState::waiting)
      here_.worker.push(run_of(request));  // wherever it waits: it ends now
  }
  here_.network.settle();
}

void Requests::release(const Request& handle) {
  const Lock lock(here_.network.mutex);
  handles_.drop(handle);
}

void Requests::run(Lock& lock, const Event& event) {
  // It may have been canceled, carried out by poll, or even posted again since.
  const Request& request = *event.request;
  if (request.state != RequestState::waiting || request.post_number != event.post_number) return;
  carry_out(lock, event.request);
  here_.worker.release_held_back(Event::Kind::run);
}

void Requests::carry_out(Lock& lock, const std::shared_ptr<Request>& request) {
  const std::shared_ptr<LinkEnd> link = request->link;
  if (request->cancel) return end(lock, request, {{Code::canceled}, "canceled before it began"});
  if (link && link->broken) return end(lock, request, {link->lost_status, link->lost_text});
  request->state = RequestState::running;
  Outcome outcome;
  {
    const Outside outside(lock, link.get());
    outcome = PageCopy(here_.network, *request).run();
  }
  if (link && request->mishap.kill_page && outcome.status.code == Code::peer_lost && !link->broken)
    link->kill();
  end(lock, request, outcome);
}

// The request by value: what the caller refers to may stand in a list that changes while the lock is let go
// of. NOLINTNEXTLINE(performance-unnecessary-value-param)
void Requests::end(Lock& lock, std::shared_ptr<Request> request, const Outcome& outcome) {
  if (request->link) {
    tell_peer(*request, outcome.status.ok());
    request->link->in_flight.erase(request);
  }
  request->state = RequestState::idle;
  --in_flight_;
  const std::uint64_t token = request->token;  // read before the host may post again
  const std::shared_ptr<LinkEnd> link = request->link;
  const Outside outside(lock, link.get());
  here_.host.completed(token, outcome.status, outcome.text);
}

/// A message whose post failed gives its place up; a count is sent by a post that succeeded alone.
void Requests::tell_peer(Request& request, bool succeeded) {
  Mishap on_the_way;  // delay and reorder have befallen the whole post
  on_the_way.duplicate = request.mishap.duplicate;
  if (request.message) {
    request.message->nothing = !succeeded;
    messages_.send(*request.link, std::move(*request.message), on_the_way, 0);
  }
  if (!request.immediate) return;
  if (succeeded)
    messages_.send_count(*request.link, *request.immediate, on_the_way);
  else
    --request.link->undelivered;
}

void Requests::end_waiting(Lock& lock, LinkEnd& link, Status status, const std::string& text) {
  for (;;) {  // the set changes while a post is being completed
    const auto waiting = std::find_if(link.in_flight.begin(), link.in_flight.end(), [](const auto& request) {
      return request->state == RequestState::waiting;
    });
    if (waiting == link.in_flight.end()) return;
    end(lock, *waiting, {status, text});
  }
}

}  // namespace headrace::fake
