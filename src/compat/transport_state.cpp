// SPDX-License-Identifier: Apache-2.0
#include "compat/transport_state.hpp"

#include "base/errors.hpp"

#include <thread>
#include <utility>

namespace headrace::compat {
namespace {

constexpr auto retry_every = std::chrono::microseconds(200);

/// Posts. While too many other posts run, waits.
Result<FabricWork> posted(const std::function<Result<FabricWork>()>& post) {
  for (;;) {
    auto work = post();
    if (work || work.code() != Code::would_block) return work;
    std::this_thread::sleep_for(retry_every);
  }
}

}  // namespace

RdmaTransport::State::State(std::shared_ptr<Endpoint> endpoint, std::uint32_t scope,
                            FabricExpectation written)
    : endpoint_(std::move(endpoint)), scope_(scope), written_(std::move(written)) {}

Result<std::shared_ptr<RdmaTransport::State>> RdmaTransport::State::open() {
  auto endpoint = Endpoint::shared();
  if (!endpoint) return std::move(endpoint).error();
  const auto scope = Endpoint::new_scope();
  auto written = (*endpoint)->fabric.expect((*endpoint)->immediate(Signal::written, scope), 1);
  if (!written) return std::move(written).error();
  auto state = std::make_shared<State>(*endpoint, scope, *written);
  written->on_reached([weak = std::weak_ptr(state)] {
    const auto alive = weak.lock();
    return alive && alive->write_came();
  });
  return state;
}

// --- the peer

Result<void> RdmaTransport::State::connect(Url url) {
  FabricWork watch;
  {
    const std::scoped_lock lock(mutex_);
    if (peer_)
      return make_error(Code::invalid_argument,
                        "the transport is connected already: make another one for another peer");
    auto begun = endpoint_->watch(url.address);
    if (!begun) return std::move(begun).error();
    watch_ = watch = *begun;
    peer_ = std::move(url);
  }
  watch.on_done([weak = weak_from_this(), watch](Status status) {
    if (const auto alive = weak.lock()) alive->watch_ended(watch, status);
  });
  return {};
}

std::optional<Url> RdmaTransport::State::peer() const {
  const std::scoped_lock lock(mutex_);
  return peer_;
}

void RdmaTransport::State::watch_ended(const FabricWork& watch, Status status) {
  if (status.ok() || status.code == Code::canceled) return;
  break_off("the peer has ended: " + watch.error().message);
}

// --- posts

CommFuture RdmaTransport::State::post(const Post& post) {
  if (broken()) return commInternalError;
  auto work = posted(post);
  if (work) return follow(*work);
  return result_of({.code = work.code()}, work.error());
}

CommFuture RdmaTransport::State::follow(const FabricWork& work) {
  const auto future = std::make_shared<CommFuture::State>();
  std::uint64_t number = 0;
  {
    const std::scoped_lock lock(mutex_);
    number = next_number_++;
    pending_.emplace(number, Pending{work, future});
  }
  work.on_done([alive = shared_from_this(), number](Status status) { alive->ended(number, status); });
  return CommFuture(future);
}

void RdmaTransport::State::ended(std::uint64_t number, Status status) {
  Pending pending;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = pending_.find(number);
    if (found == pending_.end()) return;  // `close` has ended it
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending.future->end(result_of(status, pending.work.error()));
}

commResult_t RdmaTransport::State::result_of(Status status, const Error& error) {
  if (status.ok()) return commSuccess;
  if (status.code != Code::timed_out && status.code != Code::canceled) {
    break_off(error.message);
    return commInternalError;
  }
  const std::scoped_lock lock(mutex_);
  if (!broken_) last_error_ = error.message;
  return status.code == Code::timed_out ? commTimeout : commUserAbort;
}

// --- writes of the peer

bool RdmaTransport::State::write_came() {
  Future first;
  {
    const std::scoped_lock lock(mutex_);
    if (waits_.empty()) {
      ++come_;
      return true;
    }
    first = std::move(waits_.front());
    waits_.pop_front();
  }
  first->end(commSuccess);
  return true;
}

CommFuture RdmaTransport::State::next_write() {
  const std::scoped_lock lock(mutex_);
  if (come_ != 0) {
    --come_;
    return commSuccess;
  }
  if (broken_) return commInternalError;
  waits_.push_back(std::make_shared<CommFuture::State>());
  return CommFuture(waits_.back());
}

void RdmaTransport::State::fail_waits(commResult_t result) {
  std::deque<Future> waits;
  {
    const std::scoped_lock lock(mutex_);
    waits.swap(waits_);
  }
  for (const auto& wait : waits) wait->end(result);
}

// --- failures, mocks and the end

void RdmaTransport::State::break_off(std::string why) {
  {
    const std::scoped_lock lock(mutex_);
    if (broken_) return;
    broken_ = true;
    last_error_ = std::move(why);
  }
  fail_waits(commInternalError);
}

bool RdmaTransport::State::broken() const {
  const std::scoped_lock lock(mutex_);
  return broken_;
}

std::string RdmaTransport::State::last_error() const {
  const std::scoped_lock lock(mutex_);
  return last_error_;
}

void RdmaTransport::State::set_mock(MockContext mock) {
  const std::scoped_lock lock(mutex_);
  mock_ = mock;
}

RdmaTransport::MockType RdmaTransport::State::mock() const {
  const std::scoped_lock lock(mutex_);
  return mock_.type;
}

void RdmaTransport::State::close() {
  std::unordered_map<std::uint64_t, Pending> pending;
  {
    const std::scoped_lock lock(mutex_);
    pending.swap(pending_);
    if (watch_) watch_.cancel();
  }
  written_.remove();
  fail_waits(commUserAbort);
  for (const auto& [number, each] : pending) each.work.cancel();
  for (const auto& [number, each] : pending)
    each.future->end(each.work.wait().ok() ? commSuccess : commUserAbort);
}

}  // namespace headrace::compat
