// SPDX-License-Identifier: Apache-2.0
#include "metadata/watch_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <system_error>

namespace headrace::metadata {

Result<std::unique_ptr<Store::Watch>> WatchThread::start(Loop loop, Store::OnEvent on_event) {
  const auto run = [](std::stop_token stop, const Loop& watch_loop, const Store::OnEvent& callback) {
    ::pthread_setname_np(::pthread_self(), "headrace-watch");
    watch_loop(stop, [&](StoreEvent::Kind kind, const std::string& name) {
      if (!stop.stop_requested()) callback(StoreEvent{kind, name});
    });
  };
  try {
    return std::unique_ptr<Store::Watch>(
        new WatchThread(std::jthread(run, std::move(loop), std::move(on_event))));
  } catch (const std::system_error& error) {
    return make_error(Code::exhausted, "no thread for a watch: {}", error.what());
  }
}

WatchThread::WatchThread(std::jthread thread) : thread_(std::move(thread)), made_in_(::getpid()) {}

WatchThread::~WatchThread() {
  thread_.request_stop();
  // Ended from its own callback: the loop sees the stop when the callback returns. A forked child has no such
  // thread.
  if (thread_.get_id() == std::this_thread::get_id() || ::getpid() != made_in_) thread_.detach();
}

void tell_difference(const Snapshot& before, const Snapshot& after, const WatchThread::Tell& tell) {
  for (const auto& [name, revision] : before) {
    if (!after.contains(name)) tell(StoreEvent::Kind::left, name);
  }
  for (const auto& [name, revision] : after) {
    const auto known = before.find(name);
    if (known == before.end()) {
      tell(StoreEvent::Kind::joined, name);
    } else if (known->second != revision) {
      tell(StoreEvent::Kind::updated, name);
    }
  }
}

}  // namespace headrace::metadata
