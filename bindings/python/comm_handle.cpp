// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/comm_handle.hpp"

#include <map>
#include <vector>

namespace headrace::python {
namespace {

/// The communicators of this process. Access needs the GIL.
std::map<CommHome*, std::weak_ptr<CommHome>>& open_comms() {
  static auto& the = *new std::map<CommHome*, std::weak_ptr<CommHome>>;
  return the;
}

}  // namespace

std::shared_ptr<CommHome> CommHome::make(headrace::Comm comm) {
  std::shared_ptr<CommHome> made(new CommHome(std::move(comm)), &CommHome::end);
  open_comms()[made.get()] = made;
  return made;
}

void CommHome::end(CommHome* home) {
  open_comms().erase(home);
  const nb::error_scope keep_error;
  const WithoutGil scope;
  home->home_.release(home->comm_);
  delete home;
}

void CommHome::check_home() const {
  if (home_.is_here()) return;
  raise(Error{Code::invalid_argument,
              "the communicator belongs to the parent process: open one in this process, after the fork"});
}

const headrace::Work& PyWork::work() const {
  if (home_) home_->check_home();
  return work_;
}

bool PyWork::completed() const {
  if (work().status() > WorkStatus::in_progress) return true;
  return without_gil([this] { return work_.is_completed(); });
}

void PyWork::wait(const Timeout& timeout) const {
  const bool on_gpu = home_ && home_->comm().device().kind != Device::Kind::cpu;
  on_gpu && !timeout ? wait_on(stream_) : wait_blocking(timeout);
}

void PyWork::wait_on(void* stream) const {
  const headrace::Work& work = this->work();
  take(without_gil([&] { return work.wait_on(stream); }));
}

void PyWork::wait_blocking(const Timeout& timeout) const {
  const auto ended = [this] { return work_.status() > WorkStatus::in_progress; };
  const auto wait = [this](std::chrono::nanoseconds time) {
    return without_gil([&] { return work_.wait(time); });
  };
  if (work().status() == WorkStatus::completed) return;
  // Any other error of a work that has not ended is about the wait itself.
  const auto goes_on = [&](const Result<void>& result) {
    return result.code() == Code::timed_out && !ended();
  };
  take(ended() ? work_.wait() : wait_in_slices(timeout, wait, goes_on));
}

nb::object PyWork::exception() const {
  const Error error = work().error();
  return error.code == Code::ok ? nb::object(nb::none()) : to_exception(error);
}

PyComm::~PyComm() { free_laid_aside(); }

headrace::Comm& PyComm::comm() const {
  home->check_home();
  return home->comm();
}

void close_all_comms() {
  std::vector<std::shared_ptr<CommHome>> homes;
  for (const auto& [address, home] : open_comms())
    if (auto open = home.lock()) homes.push_back(std::move(open));
  for (const auto& home : homes) {
    without_gil([&] {
      home->comm().close();
      return true;
    });
  }
}

}  // namespace headrace::python
