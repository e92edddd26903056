// SPDX-License-Identifier: Apache-2.0
// The process that people talk to: starts the weights' server and the workers, hands texts to them, hears
// tokens from them.
#pragma once

#include "cli/demo/messages.hpp"
#include "cli/demo/processes.hpp"
#include "cli/demo/worker.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace headrace::cli::demo {

struct FrontOptions {
  std::string packages;
  std::string weights;  ///< safetensors file
  std::vector<std::string> backends;
  std::int64_t page_tokens = 16;
  std::size_t chunk_tokens = 256;
  std::size_t decode_workers = 1;
  std::size_t texts_at_once = 24;  ///< whose pages fit into each worker's cache
  bool retry = false;
  std::map<std::string, std::string> options;  ///< of the agents
};

/// What is asked for.
struct TextRequest {
  std::vector<std::int64_t> prompt;  ///< tokens; at least one
  std::size_t count = 0;             ///< tokens to generate; at least one
  Sampling sampling;
};

/// What moved for a text's prompt, as the prefill worker measured it.
struct PrefillReport {
  std::uint64_t bytes = 0, bytes_before_end = 0, pages = 0;
  double transfer_seconds = 0, prefill_seconds = 0;
  double first_token_seconds = 0;  ///< from the request to its first token, here
  std::string path, explanation;
};

/// A text under way: its tokens as they come. Canceled, its pages freed, when this object goes before the
/// end.
class TextStream {
 public:
  struct State;
  explicit TextStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  TextStream(TextStream&&) noexcept = default;
  TextStream& operator=(TextStream&&) = delete;
  ~TextStream();

  /// Waits for the next token; nothing at the end.
  ///   errors  peer_lost (a worker died: which)
  Result<std::optional<std::int64_t>> next();
  /// Waits until `next` has something to say, at most so long; whether it has.
  [[nodiscard]] bool wait(std::chrono::milliseconds patience) const;
  /// Once the first token is there.
  [[nodiscard]] PrefillReport report() const;
  [[nodiscard]] const std::string& worker() const;

 private:
  std::shared_ptr<State> state_;
};

struct CacheStatus {
  std::string worker;
  std::uint64_t pages = 0, free_pages = 0;
};

///   threads  any
class Front {
 public:
  /// Starts everything and waits until every worker is ready.
  static Result<std::unique_ptr<Front>> start(FrontOptions options);
  ~Front();

  ///   errors  invalid_argument (no prompt, more tokens than the model's context), peer_lost (a worker has
  ///   died)
  Result<TextStream> submit(const TextRequest& request);
  /// Asks each decode worker.
  Result<std::vector<CacheStatus>> cache_status();
  /// Of the model, as the weights file says.
  [[nodiscard]] std::size_t context() const { return context_; }
  /// Why nothing goes on, once it is so.
  [[nodiscard]] std::optional<Error> failure() const;

 private:
  friend class TextStream;
  friend struct TextStream::State;
  explicit Front(FrontOptions options) : options_(std::move(options)) {}
  Result<void> open();
  Result<void> start_weights();
  Result<void> start_worker(const std::string& name);
  Result<void> await_ready();
  void take(const Received& received);
  void watch_children();
  void await_prefill_worker(std::unique_lock<std::mutex>& lock);
  void fail_all(const Error& error);
  void cancel(std::uint64_t id);

  const FrontOptions options_;
  std::string folder_;
  std::string weights_address_;
  std::size_t context_ = 0;
  std::optional<Agent> agent_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Child weights_;
  std::map<std::string, Child> workers_;
  std::map<std::string, bool> ready_;
  std::map<std::uint64_t, std::shared_ptr<TextStream::State>> texts_;
  std::map<std::string, CacheStatus> statuses_;
  std::optional<Error> failure_;
  std::uint64_t next_id_ = 1;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace headrace::cli::demo
