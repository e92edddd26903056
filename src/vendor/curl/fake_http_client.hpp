// SPDX-License-Identifier: Apache-2.0
// An HTTP client for tests: a function gives the answers, a script gives the streams, and nothing leaves the
// process.
#pragma once

#include "vendor/curl/http_client.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace headrace {

class FakeHttpClient final : public HttpClient {
 public:
  /// The answer of post; without a function it is peer_lost. Called on the poster's thread, one call at a
  /// time.
  using Answer = std::function<Result<HttpResponse>(const HttpRequest& request)>;

  void set_answer(Answer answer) {
    const std::scoped_lock lock(mutex_);
    answer_ = std::move(answer);
  }

  /// Passes `bytes` to the running stream, or to the next one.
  void push(std::string bytes) { step({std::move(bytes), std::nullopt}); }
  /// Ends the stream after the pushed bytes, as a server does.
  void end() { step({"", Result<void>()}); }
  /// Breaks the stream with `error` after the pushed bytes.
  void fail(Error error) { step({"", Result<void>(std::move(error))}); }

  /// All requests so far, including those of streams, in order.
  [[nodiscard]] std::vector<HttpRequest> requests() const {
    const std::scoped_lock lock(mutex_);
    return requests_;
  }

  Result<HttpResponse> post(const HttpRequest& request, Deadline, std::stop_token stop) override {
    const std::scoped_lock lock(mutex_);
    requests_.push_back(request);
    if (stop.stop_requested())
      return make_error(Code::canceled, "POST {}: the caller asked to stop", request.url);
    if (answer_) return answer_(request);
    return make_error(Code::peer_lost, "POST {}: no server answers", request.url);
  }

  Result<void> stream(const HttpRequest& request, const std::function<void(std::string_view)>& on_bytes,
                      std::stop_token stop) override {
    std::unique_lock lock(mutex_);
    requests_.push_back(request);
    while (changed_.wait(lock, stop, [&] { return !steps_.empty(); })) {
      const Step next = std::move(steps_.front());
      steps_.pop_front();
      if (next.end) return *next.end;
      lock.unlock();
      on_bytes(next.bytes);
      lock.lock();
      if (stop.stop_requested()) break;
    }
    return make_error(Code::canceled, "POST {}: the caller asked to stop", request.url);
  }

 private:
  struct Step {
    std::string bytes;
    std::optional<Result<void>> end;
  };

  void step(Step next) {
    {
      const std::scoped_lock lock(mutex_);
      steps_.push_back(std::move(next));
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  Answer answer_;
  std::deque<Step> steps_;
  std::vector<HttpRequest> requests_;
};

}  // namespace headrace
