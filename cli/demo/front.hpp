// SPDX-License-Identifier: Apache-2.0
// The process that users start. It starts the weights' server and the workers, sends prompts to them and
// receives tokens from them.
#pragma once

#include "cli/common/work_folder.hpp"
#include "cli/demo/messages.hpp"
#include "cli/demo/placement.hpp"
#include "cli/demo/processes.hpp"
#include "cli/demo/watch_rules.hpp"
#include "cli/demo/worker.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace headrace::cli::demo {

struct FrontOptions {
  ModelFiles model;
  Placement placement;
  std::vector<std::string> backends;
  std::int64_t page_tokens = 16;
  std::size_t chunk_tokens = 256;
  std::size_t decode_workers = 1;
  int ranks = 1;         ///< more than one: the decode workers are ranks that write each text together
  int expert_ranks = 0;  ///< not 0: the decode workers are so many ranks that share the experts
  std::size_t texts_at_once = 24;  ///< each worker's cache has pages for so many texts
  bool retry = false;
  bool go_on = false;              ///< continue without a lost decode worker while another is left
  unsigned patience_seconds = 20;  ///< a worker that sends nothing for this time is lost
  std::map<std::string, std::string> options;  ///< of the agents
};

struct TextRequest {
  std::vector<std::int64_t> prompt;  ///< tokens; at least one
  std::size_t count = 0;             ///< tokens to generate; at least one
  Sampling sampling;
};

/// What moved for a prompt, measured by the prefill worker.
struct PrefillReport {
  std::uint64_t bytes = 0, bytes_before_end = 0, pages = 0;
  double transfer_seconds = 0, prefill_seconds = 0;
  double first_token_seconds = 0;  ///< from the request to its first token, measured by the front
  std::string path, explanation;
};

/// The tokens of a text that is being generated. Destroying this object before the end cancels the text and
/// frees its pages.
class TextStream {
 public:
  struct State;
  explicit TextStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  TextStream(TextStream&&) noexcept = default;
  TextStream& operator=(TextStream&&) = delete;
  ~TextStream();

  /// Waits for the next token; nullopt at the end.
  ///   errors  peer_lost (a worker died; the text names it)
  Result<std::optional<std::int64_t>> next();
  /// Waits until `next` would return at once, at most `patience`. Returns whether it would.
  [[nodiscard]] bool wait(std::chrono::milliseconds patience) const;
  /// Valid once the first token has arrived.
  [[nodiscard]] PrefillReport report() const;
  [[nodiscard]] const std::string& worker() const;
  /// With ranks: the checksum of the logits of each token but the first. Valid at the end.
  [[nodiscard]] std::vector<std::uint64_t> logits() const;

 private:
  std::shared_ptr<State> state_;
};

struct CacheStatus {
  enum class State { answers, silent, starting, lost };
  std::string worker;
  State state = State::answers;  ///< the numbers below are valid in this state only
  std::uint64_t pages = 0, free_pages = 0;
  std::string loss;  ///< state `lost`: how it was lost
};

///   threads  any
class Front {
 public:
  /// Starts all processes and waits until every worker is ready.
  ///   stop    a descriptor; when it becomes readable, all texts fail and the demo ends
  ///   errors  timed_out (the text names workers that are not ready), peer_lost (it names the worker that
  ///   died)
  static Result<std::unique_ptr<Front>> start(FrontOptions options, int stop);
  ~Front();

  /// Starts a text. Decode workers that answer are preferred to those that are being restarted.
  ///   errors  invalid_argument (no prompt, more tokens than the model's context), peer_lost (a worker died)
  Result<TextStream> submit(const TextRequest& request);
  /// Asks each decode worker that is ready, and waits up to 2 s for the answers.
  Result<std::vector<CacheStatus>> cache_status();
  /// The most tokens of prompt and text together.
  [[nodiscard]] std::size_t context() const { return context_; }
  /// The error that ended the demo, if one has.
  [[nodiscard]] std::optional<Error> failure() const;
  /// A descriptor that becomes readable when an error has ended the demo.
  [[nodiscard]] int failed_event() const { return failed_event_.get(); }

 private:
  using Clock = std::chrono::steady_clock;
  friend class TextStream;
  friend struct TextStream::State;
  Front(FrontOptions options, int stop) : options_(std::move(options)), stop_(stop) {}
  Result<void> open();
  Result<void> start_child(const std::string& name);
  Result<void> start_weights();
  Result<void> start_worker(const std::string& name);
  [[nodiscard]] std::string title_of(const std::string& worker) const;
  [[nodiscard]] const std::string& device_of(const std::string& worker) const;
  Result<void> await_ready();
  void take(const Received& received);
  void watch_children();
  void look_for_dead(std::unique_lock<std::mutex>& lock);
  void end_unreachable();
  void lost(std::unique_lock<std::mutex>& lock, const std::string& name, const std::string& how);
  bool begin_again(const std::string& name, std::string& how);
  [[nodiscard]] bool can_do_without(const std::string& name) const;
  void do_without(const std::string& name, const Error& why);
  void tell_of_loss(std::unique_lock<std::mutex>& lock);
  void start_again(std::unique_lock<std::mutex>& lock);
  void look_for_silent(Clock::time_point before, Clock::time_point now);
  void ask_for_a_word(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::string store() const { return "file://" + folder_.path() + "/agents"; }
  [[nodiscard]] bool is_ready(const std::string& name) const;
  [[nodiscard]] bool answers(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> decode_workers_left() const;
  [[nodiscard]] std::string worker_for(std::uint64_t id) const;
  [[nodiscard]] CacheStatus status_of(const std::string& name) const;
  void await_prefill_worker(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::chrono::seconds patience() const {
    return std::chrono::seconds(options_.patience_seconds);
  }
  void fail_all(const Error& error);
  void cancel(std::uint64_t id);

  const FrontOptions options_;
  const int stop_;
  FileDescriptor failed_event_;
  WorkFolder folder_;
  std::string weights_address_;
  std::size_t context_ = 0;
  std::optional<Agent> agent_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Child> children_;
  std::map<std::string, bool> ready_;  ///< of the workers
  std::map<std::string, Silence> silences_;
  std::map<std::string, Restarts> restarts_;
  std::map<std::string, Clock::time_point> due_;  ///< children to start again, and when
  Clock::time_point next_question_{};
  std::map<std::string, std::string>
      losses_;                         ///< decode workers that are not restarted, and how each was lost
  std::set<std::string> untold_;       ///< those of `losses_` that the prefill worker does not know of
  std::set<std::string> unreachable_;  ///< workers that the prefill worker has reported as lost
  bool all_were_ready_ = false;
  std::map<std::uint64_t, std::shared_ptr<TextStream::State>> texts_;
  std::map<std::string, CacheStatus> statuses_;
  std::uint64_t status_question_ = 0;  ///< the id of the question that `statuses_` answers
  std::optional<Error> failure_;
  std::uint64_t next_id_ = 1;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace headrace::cli::demo
