// SPDX-License-Identifier: Apache-2.0
#include "collectives/trace_file.hpp"

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/start_thread.hpp"

#include <chrono>
#include <utility>
#include <vector>

namespace headrace::collectives {
namespace {

constexpr auto end_look_interval = std::chrono::milliseconds(100);

using Watched = std::vector<std::weak_ptr<Comm::Core>>;

/// Drops those that have ended, and those that are gone.
bool any_ended(Watched& watched) {
  bool any = false;
  std::erase_if(watched, [&any](const std::weak_ptr<Comm::Core>& one) {
    const auto comm = one.lock();
    const bool ended = comm && comm->ended();
    any = any || ended;
    return !comm || ended;
  });
  return any;
}

}  // namespace

Result<std::shared_ptr<TraceFile>> TraceFile::open(FlightRecorder recorder, std::string prefix) {
  auto file = std::make_shared<TraceFile>(std::move(recorder), std::move(prefix));
  HEADRACE_TRY(thread, start_thread("headrace-trace", [raw = file.get()] { raw->work(); }));
  file->thread_ = std::move(thread);
  return file;
}

TraceFile::TraceFile(FlightRecorder recorder, std::string prefix)
    : recorder_(std::move(recorder)), prefix_(std::move(prefix)) {}

TraceFile::~TraceFile() { close(); }

void TraceFile::watch(std::weak_ptr<Comm::Core> comm) {
  const std::scoped_lock lock(mutex_);
  added_.push_back(std::move(comm));
}

void TraceFile::ask() {
  const std::scoped_lock lock(mutex_);
  asked_ = true;
  changed_.notify_all();
}

void TraceFile::flush() {
  if (fork_guard_.forked()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !asked_ && !writing_; });
}

void TraceFile::close() {
  if (!thread_.joinable()) return;
  if (fork_guard_.forked()) return thread_.detach();  // the thread is the parent's
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void TraceFile::work() {
  Watched watched;
  std::unique_lock lock(mutex_);
  while (!stop_ || asked_) {
    changed_.wait_for(lock, end_look_interval, [this] { return asked_ || stop_; });
    watched.insert(watched.end(), added_.begin(), added_.end());
    added_.clear();
    const bool asked = asked_;
    writing_ = asked;
    asked_ = false;
    lock.unlock();
    // Without the lock: the last reference to a communicator may end here, and its hooks ask.
    if (any_ended(watched) || asked) write();
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
}

void TraceFile::write() const {
  const Log log(Logger::process_default(), "collectives");
  const auto written = recorder_.write(prefix_);
  if (written)
    log.info("wrote the last calls to {}", *written);
  else
    log.error("the last calls are not written: {}", written.error().message);
}

}  // namespace headrace::collectives
