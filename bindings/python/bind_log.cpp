// SPDX-License-Identifier: Apache-2.0
// <headrace/log.hpp>
#include <headrace/log.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/log_relay.hpp"
#include "bindings/python/text.hpp"

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

namespace headrace::python {
namespace {

struct Line {
  LogLevel level;
  std::string room;
  std::string text;
};

/// The queue of lines for one sink. Shared by the threads that log and the thread that calls the sink.
class Relay {
 public:
  static constexpr std::size_t capacity = 8192;

  void put(LogLevel level, std::string_view room, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (lines_.size() == capacity) {
      ++dropped_;
      return;
    }
    lines_.push_back({level, std::string(room), std::string(text)});
    ready_.notify_one();
  }

  void deliver(const Callable& sink) {
    std::unique_lock lock(mutex_);
    while (true) {
      ready_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
      if (lines_.empty()) break;
      Line line = std::move(lines_.front());
      lines_.pop_front();
      if (const std::size_t dropped = std::exchange(dropped_, 0); dropped > 0)
        lines_.push_back({LogLevel::warn, "python",
                          std::to_string(dropped) + " lines were dropped: the log sink is too slow"});
      lock.unlock();
      call_back(sink, [&] {
        const std::string_view level = log_level_name(line.level);
        return nb::make_tuple(to_str(level), to_str(line.room), to_str(line.text));
      });
      lock.lock();
    }
    finished_ = true;
    ended_.notify_all();
  }

  /// Waits until the queued lines are delivered, at most 2 s: a sink may never return.
  void stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    ready_.notify_one();
    ended_.wait_for(lock, std::chrono::seconds(2), [this] { return finished_; });
  }
  std::thread::id thread;  ///< the thread that calls the sink; set before other threads see the relay

 private:
  std::mutex mutex_;
  std::condition_variable ready_, ended_;
  std::deque<Line> lines_;
  std::size_t dropped_ = 0;
  bool stopping_ = false;
  bool finished_ = false;
};

/// The current relay. Access needs the GIL.
std::shared_ptr<Relay>& current_relay() {
  static std::shared_ptr<Relay>& the = *new std::shared_ptr<Relay>;
  return the;
}

/// The sink after the end of the interpreter. A program with its own sink does not want all lines on stderr;
/// errors must not be lost.
void only_errors(LogLevel level, std::string_view room, std::string_view text) {
  if (level == LogLevel::error)
    std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(room.size()), room.data(),
                 static_cast<int>(text.size()), text.data());
}

void end_relay(LogSink next) {
  const std::shared_ptr<Relay> relay = std::exchange(current_relay(), nullptr);
  if (!relay) return;
  headrace::set_log_sink(std::move(next));
  // A sink that replaces itself runs on the relay's thread: its last lines are delivered after it returns.
  if (relay->thread == std::this_thread::get_id()) {
    std::thread([relay] { relay->stop(); }).detach();
    return;
  }
  const WithoutGil scope;
  relay->stop();
}

}  // namespace

void stop_log_relay() { end_relay(&only_errors); }

void relay_log(nb::object sink) {
  if (!sink.is_none() && PyCallable_Check(sink.ptr()) == 0)
    raise_invalid(shown(sink) + " cannot be called: give a function, or None");
  end_relay({});
  if (sink.is_none()) return;
  auto relay = std::make_shared<Relay>();
  std::thread thread([relay, callable = hold<Callable>(std::move(sink))] { relay->deliver(*callable); });
  relay->thread = thread.get_id();
  thread.detach();
  headrace::set_log_sink([relay](LogLevel level, std::string_view room, std::string_view text) {
    relay->put(level, room, text);
  });
  current_relay() = std::move(relay);
}

void bind_log(nb::module_& module) {
  module.def(
      "set_log_level", [](const std::string& spec) { take(headrace::set_log_level(spec)); }, nb::arg("spec"),
      "Sets the log level, with the syntax of HEADRACE_LOG: \"warn,tcp=debug,engine=off\".\n\n"
      "spec: one level for all, and pairs room=level; a room is a part of the library. Levels of an\n"
      "earlier call are dropped. Levels: off, error, warn, info, debug, trace.\n"
      "Errors: InvalidArgument (no such level, empty room): nothing is changed.");
  module.def(
      "set_log_sink", &relay_log, nb::arg("sink").none(),
      nb::sig("def set_log_sink(sink: collections.abc.Callable[[str, str, str], object] | None) -> None"),
      "Sends log lines to sink(level, room, text) instead of stderr; None restores stderr.\n\n"
      "Threads: the sink is called on a thread of its own, one line at a time and in order, so a\n"
      "slow sink delays no other thread. If 8192 lines wait, new ones are dropped, and a line tells\n"
      "how many. The call returns when the earlier sink has had its lines. An exception in it goes\n"
      "to sys.unraisablehook.\n"
      "Owns: the sink is kept until it is replaced.");
}

}  // namespace headrace::python
