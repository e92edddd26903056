// SPDX-License-Identifier: Apache-2.0
#include "metadata/shared_watch.hpp"

#include "base/start_thread.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <set>
#include <thread>

namespace headrace::metadata {

struct SharedWatch::Listener {
  explicit Listener(Store::OnEvent function) : on_event(std::move(function)) {}
  const Store::OnEvent on_event;
  bool ended = false;
};

/// What has been read and not been told yet, and who is to hear of it. The threads co-own it.
class SharedWatch::Audience {
 public:
  void add(std::shared_ptr<Listener> listener) {
    {
      const std::scoped_lock lock(mutex_);
      newcomers_.push_back(std::move(listener));
    }
    changed_.notify_all();
  }

  /// When it returns, the listener is not called and will not be called again. Inside its own call it does
  /// not wait: that call is the last one.
  void remove(Listener& listener) {
    std::unique_lock lock(mutex_);
    listener.ended = true;
    const auto is_it = [&](const auto& other) { return other.get() == &listener; };
    std::erase_if(newcomers_, is_it);
    std::erase_if(listeners_, is_it);
    if (std::this_thread::get_id() != teller_) told_.wait(lock, [&] { return called_ != &listener; });
  }

  void push(StoreEvent event) {
    {
      const std::scoped_lock lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  /// Tells the listeners what comes, until `stop`.
  void tell(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    teller_ = std::this_thread::get_id();
    const auto something = [this] { return !events_.empty() || !newcomers_.empty(); };
    while (changed_.wait(lock, stop, something) && !stop.stop_requested()) {
      Part part = newcomers_.empty() ? next_event() : next_newcomer();
      lock.unlock();
      for (const StoreEvent& event : part.events)
        for (const auto& listener : part.listeners) call(*listener, event);
      part = {};  // a listener may go with it: not under the lock
      lock.lock();
    }
  }

 private:
  struct Part {
    std::vector<std::shared_ptr<Listener>> listeners;
    std::vector<StoreEvent> events;
  };

  Part next_event() {
    Part part{listeners_, {std::move(events_.front())}};
    events_.pop_front();
    const StoreEvent& event = part.events.front();
    if (event.kind == StoreEvent::Kind::left) {
      names_.erase(event.name);
    } else {
      names_.insert(event.name);
    }
    return part;
  }

  /// A newcomer joins between two events: it hears of the names that the others know.
  Part next_newcomer() {
    Part part{{std::move(newcomers_.front())}, {}};
    newcomers_.pop_front();
    listeners_.push_back(part.listeners.front());
    for (const std::string& name : names_) part.events.push_back({StoreEvent::Kind::joined, name});
    return part;
  }

  void call(const Listener& listener, const StoreEvent& event) {
    {
      const std::scoped_lock lock(mutex_);
      if (listener.ended) return;
      called_ = &listener;
    }
    listener.on_event(event);
    {
      const std::scoped_lock lock(mutex_);
      called_ = nullptr;
    }
    told_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::condition_variable told_;
  // Guarded by mutex_:
  std::deque<StoreEvent> events_;
  std::deque<std::shared_ptr<Listener>> newcomers_;
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::set<std::string> names_;  // that have an entry, as far as told
  const Listener* called_ = nullptr;
  std::thread::id teller_;
};

/// The two threads from the first listener to the last one.
class SharedWatch::Run {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Run>> start(const Source& source) {
    auto run = std::make_shared<Run>();
    HEADRACE_TRY(teller, start_thread<std::jthread>("headrace-events",
                                                    [audience = run->audience_](const std::stop_token& stop) {
                                                      audience->tell(stop);
                                                    }));
    run->teller_ = std::move(teller);
    HEADRACE_TRY(
        reader, start_thread<std::jthread>("headrace-watch", [source, audience = run->audience_](
                                                                 const std::stop_token& stop) {
          source(stop, [&](StoreEvent::Kind kind, const std::string& name) { audience->push({kind, name}); });
        }));
    run->reader_ = std::move(reader);
    return run;
  }

  Run() = default;
  ~Run() {
    end(reader_);
    end(teller_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  [[nodiscard]] Audience& audience() const { return *audience_; }
  [[nodiscard]] bool is_of_the_parent_process() const { return ::getpid() != made_in_; }

 private:
  void end(std::jthread& thread) const {
    if (!thread.joinable()) return;
    if (is_of_the_parent_process()) return thread.detach();
    thread.request_stop();
    // Ended inside a call: the loop sees the stop when the call returns.
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();
    if (thread.joinable()) thread.join();
  }

  const pid_t made_in_ = ::getpid();
  const std::shared_ptr<Audience> audience_ = std::make_shared<Audience>();
  std::jthread teller_;
  std::jthread reader_;
};

class SharedWatch::Listening final : public Store::Watch {
 public:
  Listening(std::shared_ptr<Run> run, std::shared_ptr<Listener> listener)
      : run_(std::move(run)), listener_(std::move(listener)) {}
  ~Listening() override {
    // In a forked child the lock may be one that a thread of the parent held.
    if (!run_->is_of_the_parent_process()) run_->audience().remove(*listener_);
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  const std::shared_ptr<Run> run_;
  const std::shared_ptr<Listener> listener_;
};

Result<std::unique_ptr<Store::Watch>> SharedWatch::listen(const Source& source, Store::OnEvent on_event) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<Run> run = run_.lock();
  if (run == nullptr) {
    HEADRACE_TRY(started, Run::start(source));
    run = std::move(started);
    run_ = run;
  }
  auto listener = std::make_shared<Listener>(std::move(on_event));
  run->audience().add(listener);
  return std::unique_ptr<Store::Watch>(std::make_unique<Listening>(std::move(run), std::move(listener)));
}

void tell_difference(const Snapshot& before, const Snapshot& after, const Tell& tell) {
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
