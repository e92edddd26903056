// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/front.hpp"

#include "cli/errors.hpp"

#include <cstdlib>
#include <filesystem>

namespace headrace::cli::demo {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct TextStream::State {
  State(Front& owner, std::uint64_t number, std::string decode_worker, std::size_t tokens)
      : front(owner), id(number), worker(std::move(decode_worker)), count(tokens) {}

  Front& front;
  const std::uint64_t id;
  const std::string worker;
  const std::size_t count;
  const Clock::time_point begin = Clock::now();

  // Guarded by the front's mutex.
  std::deque<std::int64_t> arrived;
  std::size_t length = 0;  ///< of the text so far
  std::map<std::size_t, std::int64_t>
      too_early;  ///< the second token may overtake the first, which takes another road
  std::optional<Error> error;
  PrefillReport report;

  [[nodiscard]] bool over() const { return length == count; }
  void put(std::size_t at, std::int64_t token) {
    if (at < length) return;  // a decode worker that came back writes its text once more
    too_early[at] = token;
    for (auto next = too_early.begin(); next != too_early.end() && next->first == length;
         next = too_early.erase(next), ++length)
      arrived.push_back(next->second);
  }
};

TextStream::~TextStream() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->front.mutex_);
    state_->front.texts_.erase(state_->id);
    if (state_->over() || state_->error) return;
  }
  state_->front.cancel(state_->id);
}

Result<std::optional<std::int64_t>> TextStream::next() {
  std::unique_lock lock(state_->front.mutex_);
  state_->front.changed_.wait(lock,
                              [&] { return !state_->arrived.empty() || state_->over() || state_->error; });
  if (!state_->arrived.empty()) {
    const std::int64_t token = state_->arrived.front();
    state_->arrived.pop_front();
    return std::optional(token);
  }
  if (state_->error) return *state_->error;
  return std::optional<std::int64_t>();
}

bool TextStream::wait(std::chrono::milliseconds patience) const {
  std::unique_lock lock(state_->front.mutex_);
  return state_->front.changed_.wait_for(
      lock, patience, [&] { return !state_->arrived.empty() || state_->over() || state_->error; });
}

PrefillReport TextStream::report() const {
  const std::lock_guard lock(state_->front.mutex_);
  return state_->report;
}

const std::string& TextStream::worker() const { return state_->worker; }

// --- starting

Result<std::unique_ptr<Front>> Front::start(FrontOptions options) {
  std::unique_ptr<Front> front(new Front(std::move(options)));
  HEADRACE_CLI_CHECK(front->open());
  return front;
}

Result<void> Front::open() {
  std::string pattern = (std::filesystem::temp_directory_path() / "headrace-demo-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    return fail(Code::exhausted, "make a folder {}: {}", pattern, system_text());
  folder_ = pattern;
  HEADRACE_CLI_TRY(sizes, read_model_sizes(options_.weights));
  context_ = static_cast<std::size_t>(sizes.context);
  AgentOptions agent;
  agent.backends = options_.backends;
  agent.store = "file://" + folder_ + "/agents";
  agent.options = options_.options;
  HEADRACE_CLI_TRY(opened, Agent::open(front_name, std::move(agent)));
  agent_.emplace(std::move(opened));
  agent_->on_notification([this](const Notification& notification) {
    if (const auto received = read_message(notification)) take(*received);
  });
  HEADRACE_CLI_CHECK(agent_->publish());
  HEADRACE_CLI_CHECK(start_weights());
  HEADRACE_CLI_CHECK(start_worker(prefill_name));
  for (std::size_t i = 0; i < options_.decode_workers; ++i) HEADRACE_CLI_CHECK(start_worker(decode_name(i)));
  watcher_ = std::thread([this] { watch_children(); });
  return await_ready();
}

Result<void> Front::start_weights() {
  std::vector<std::string> arguments{"serve", options_.weights, "--load", "--json"};
  for (const std::string& backend : options_.backends)
    arguments.insert(arguments.end(), {"--backend", backend});
  HEADRACE_CLI_TRY(child, Child::start("weights", std::move(arguments), Child::Output::piped));
  weights_ = std::move(child);
  const auto said = Message::parse(weights_.read_line(), nullptr, false);
  if (!said.is_object() || !said.contains("address"))
    return fail(Code::backend_failed, "`headrace serve {}` did not start", options_.weights);
  weights_address_ = said["address"].get<std::string>();
  return {};
}

Result<void> Front::start_worker(const std::string& name) {
  std::vector<std::string> arguments{"demo-worker", name == prefill_name ? "prefill" : "decode"};
  const auto add = [&](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  add("--name", name);
  add("--store", "file://" + folder_ + "/agents");
  add("--weights", weights_address_);
  add("--packages", options_.packages);
  add("--folder", folder_);
  add("--page", std::to_string(options_.page_tokens));
  const auto page = static_cast<std::size_t>(options_.page_tokens);
  add("--pages", std::to_string(options_.texts_at_once * ((context_ + page - 1) / page)));
  add("--chunk", std::to_string(options_.chunk_tokens));
  if (options_.retry) arguments.emplace_back("--retry");
  for (const std::string& backend : options_.backends) add("--backend", backend);
  for (const auto& [option, value] : options_.options) add("--option", option + "=" + value);
  HEADRACE_CLI_TRY(child, Child::start(name, std::move(arguments)));
  const std::lock_guard lock(mutex_);
  workers_[name] = std::move(child);
  ready_[name] = false;
  return {};
}

Result<void> Front::await_ready() {
  std::unique_lock lock(mutex_);
  const auto all_ready = [&] {
    return std::all_of(ready_.begin(), ready_.end(), [](const auto& worker) { return worker.second; });
  };
  changed_.wait_for(lock, 120s, [&] { return failure_ || all_ready(); });
  if (failure_) return *failure_;
  if (!all_ready()) return fail(Code::timed_out, "the workers were not ready within 120 s");
  return {};
}

Front::~Front() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  workers_.clear();
  weights_.stop();
  agent_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

// --- texts

Result<TextStream> Front::submit(const TextRequest& request) {
  if (request.prompt.empty())
    return fail(Code::invalid_argument, "the prompt is empty: give at least one byte");
  if (request.count == 0) return fail(Code::invalid_argument, "0 tokens are asked for: ask for at least one");
  if (request.prompt.size() + request.count > context_)
    return fail(Code::invalid_argument,
                "{} tokens of prompt and {} to generate are more than the model's context of {}",
                request.prompt.size(), request.count, context_);
  std::shared_ptr<TextStream::State> state;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    const std::uint64_t id = next_id_++;
    state = std::make_shared<TextStream::State>(*this, id, decode_name(id % options_.decode_workers),
                                                request.count);
    texts_[id] = state;
  }
  TextStream stream(state);
  HEADRACE_CLI_CHECK(send(*agent_, prefill_name,
                          {{"type", "generate"},
                           {"id", state->id},
                           {"prompt", request.prompt},
                           {"count", request.count},
                           {"sampling", to_json(request.sampling)},
                           {"decode", state->worker}}));
  return stream;
}

/// On the agent's callback thread.
void Front::take(const Received& received) try {
  const std::string type = received.type();
  const Message& message = received.message;
  if (type == "ready") (void)await_peer(*agent_, received.from, 10s);  // messages go both ways
  const std::lock_guard lock(mutex_);
  if (type == "ready") ready_[received.from] = true;
  if (type == "status")
    statuses_[received.from] = {received.from, message.at("pages").get<std::uint64_t>(),
                                message.at("free_pages").get<std::uint64_t>()};
  if (const auto found = texts_.find(received.id()); found != texts_.end()) {
    TextStream::State& text = *found->second;
    if (type == "prefilled" &&
        text.report.bytes == 0) {  // a decode worker that came back has the pages sent once more
      text.report = {message.at("bytes").get<std::uint64_t>(),
                     message.at("bytes_before_end").get<std::uint64_t>(),
                     message.at("pages").get<std::uint64_t>(),
                     message.at("transfer_seconds").get<double>(),
                     message.at("prefill_seconds").get<double>(),
                     std::chrono::duration<double>(Clock::now() - text.begin).count(),
                     message.at("path").get<std::string>(),
                     message.at("explanation").get<std::string>()};
      text.put(0, message.at("token").get<std::int64_t>());
    } else if (type == "token") {
      text.put(message.at("at").get<std::size_t>(), message.at("token").get<std::int64_t>());
    }
  }
  changed_.notify_all();
} catch (const Message::exception& error) {
  std::fprintf(stderr, "headrace demo: a message of %s is not understood: %s\n", received.from.c_str(),
               error.what());
}

/// The prefill worker passes it on: it alone knows when nothing writes into that text's pages any more.
void Front::cancel(std::uint64_t id) {
  (void)send(*agent_, prefill_name, {{"type", "cancel"}, {"id", id}});
}

Result<std::vector<CacheStatus>> Front::cache_status() {
  std::unique_lock lock(mutex_);
  statuses_.clear();
  lock.unlock();
  for (std::size_t i = 0; i < options_.decode_workers; ++i)
    HEADRACE_CLI_CHECK(send(*agent_, decode_name(i), {{"type", "status"}, {"id", 0}}));
  lock.lock();
  changed_.wait_for(lock, 10s, [&] { return failure_ || statuses_.size() == options_.decode_workers; });
  if (failure_) return *failure_;
  std::vector<CacheStatus> all;
  for (const auto& [name, status] : statuses_) all.push_back(status);
  return all;
}

// --- children

/// Ends everything when a worker dies; with --retry a decode worker is started again.
void Front::watch_children() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<std::string> dead;
    for (auto& [name, child] : workers_)
      if (!child.ended().empty()) dead.push_back(name);
    for (const std::string& name : dead) {
      const std::string how = workers_[name].ended();
      if (options_.retry && name != prefill_name) {
        std::fprintf(stderr, "headrace demo: %s ended with %s; starting it again\n", name.c_str(),
                     how.c_str());
        lock.unlock();
        auto started = start_worker(name);
        lock.lock();
        if (started) continue;
      }
      await_prefill_worker(lock);
      fail_all(fail(Code::peer_lost, "worker {} ended with {}", name, how));
      workers_.erase(name);
    }
    changed_.wait_for(lock, 20ms, [&] { return stopping_; });
  }
}

/// It hears itself of a decode worker's death and says so: that goes before our own words.
void Front::await_prefill_worker(std::unique_lock<std::mutex>& lock) {
  const auto end = Clock::now() + 2s;
  while (!stopping_ && Clock::now() < end && workers_.contains(prefill_name) &&
         workers_[prefill_name].ended().empty())
    changed_.wait_for(lock, 10ms);
}

/// With the lock held.
void Front::fail_all(const Error& error) {
  if (!failure_) failure_ = error;
  for (auto& [id, text] : texts_) text->error = error;
  changed_.notify_all();
}

std::optional<Error> Front::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace headrace::cli::demo
