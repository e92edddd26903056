// SPDX-License-Identifier: Apache-2.0
// Host names to addresses on a thread of its own: the system's resolver blocks for as long as it likes.
#pragma once

#include "base/bounded_queue.hpp"
#include "base/start_thread.hpp"
#include "base/tcp_address.hpp"

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::tcp {

class Resolver {
 public:
  using Done = std::function<void(Result<std::vector<SocketAddress>>)>;

  /// Joins the thread, which may be in the middle of a question.
  ~Resolver() {
    questions_.close();
    if (thread_.joinable()) thread_.join();
  }

  /// Asks; `done` is called on the resolver's thread. The thread starts with the first question.
  ///   errors  would_block (too many questions are waiting), exhausted (no thread)
  Result<void> ask(TcpAddress address, Done done) {
    const std::scoped_lock lock(mutex_);
    if (!thread_.joinable()) {
      HEADRACE_TRY(thread, start_thread("headrace-names", [this] { answer(); }));
      thread_ = std::move(thread);
    }
    if (!questions_.try_push({std::move(address), std::move(done)}))
      return make_error(Code::would_block, "too many host names wait to be resolved");
    return {};
  }

 private:
  struct Question {
    TcpAddress address;
    Done done;
  };
  void answer() {
    while (auto question = questions_.pop())
      question->done(question->address.resolve(TcpAddress::Use::connect));
  }

  BoundedQueue<Question> questions_{256};
  std::mutex mutex_;
  std::thread thread_;
};

}  // namespace headrace::tcp
