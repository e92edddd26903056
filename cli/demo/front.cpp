// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/front.hpp"

#include "cli/common/errors.hpp"

#include <fmt/ranges.h>

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace::cli::demo {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr const char* weights_name = "weights";
constexpr auto start_patience = 120s;
constexpr auto status_patience = 2s;
constexpr auto question_every = 250ms;
constexpr auto short_silence = 1s;  // a healthy worker answers within this time

bool is_readable(int fd) {
  ::pollfd look{fd, POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

bool is_decode_worker(const std::string& name) { return name != prefill_name && name != weights_name; }

std::string stopped_text(int signal) {
  return signal == 0 ? std::string() : fmt::format(": it is stopped by signal {}", signal);
}

}  // namespace

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
  std::size_t length = 0;  ///< tokens of the text so far
  /// Tokens that came before their predecessor: the first comes from the prefill worker, the second from the
  /// decode worker.
  std::map<std::size_t, std::int64_t> too_early;
  std::map<std::size_t, std::uint64_t> logits;  ///< checksums, by token
  std::optional<Error> error;
  PrefillReport report;

  [[nodiscard]] bool over() const { return length == count; }
  void put(std::size_t at, std::int64_t token) {
    if (at < length) return;  // a restarted decode worker sends its tokens again
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
  if (state_->error && !state_->over()) return *state_->error;
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

std::vector<std::uint64_t> TextStream::logits() const {
  const std::lock_guard lock(state_->front.mutex_);
  std::vector<std::uint64_t> all;
  for (const auto& [at, logits] : state_->logits) all.push_back(logits);
  return all;
}

// --- starting

Result<std::unique_ptr<Front>> Front::start(FrontOptions options, int stop) {
  std::unique_ptr<Front> front(new Front(std::move(options), stop));
  HEADRACE_CLI_CHECK(front->open());
  return front;
}

Result<void> Front::open() {
  failed_event_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!failed_event_) return fail(Code::exhausted, "make an eventfd: {}", system_text());
  HEADRACE_CLI_TRY(folder, WorkFolder::make());
  folder_ = std::move(folder);
  HEADRACE_CLI_TRY(sizes, read_model_sizes(options_.model));
  context_ = static_cast<std::size_t>(sizes.context);
  AgentOptions agent;
  agent.backends = options_.backends;
  agent.store = store();
  agent.options = options_.options;
  HEADRACE_CLI_TRY(opened, Agent::open(front_name, std::move(agent)));
  agent_.emplace(std::move(opened));
  agent_->on_notification([this](const Notification& notification) {
    if (const auto received = read_message(notification)) take(*received);
  });
  HEADRACE_CLI_CHECK(agent_->publish());
  if (!options_.model.weights.empty()) HEADRACE_CLI_CHECK(start_child(weights_name));
  HEADRACE_CLI_CHECK(start_child(prefill_name));
  for (std::size_t i = 0; i < options_.decode_workers; ++i) HEADRACE_CLI_CHECK(start_child(decode_name(i)));
  watcher_ = std::thread([this] { watch_children(); });
  return await_ready();
}

Result<void> Front::start_child(const std::string& name) {
  auto started = name == weights_name ? start_weights() : start_worker(name);
  const std::lock_guard lock(mutex_);
  restarts_[name].started(Clock::now());
  silences_[name].heard();
  return started;
}

Result<void> Front::start_weights() {
  std::vector<std::string> arguments{"serve", options_.model.weights, "--load", "--json"};
  for (const std::string& backend : options_.backends)
    arguments.insert(arguments.end(), {"--backend", backend});
  HEADRACE_CLI_TRY(child, Child::start(weights_name, std::move(arguments), Child::Output::piped));
  const auto said = Message::parse(child.read_line(patience(), stop_), nullptr, false);
  if (!said.is_object() || !said.contains("address"))
    return fail(Code::backend_failed, "{} (`headrace serve {}`) did not start within {} s{}", weights_name,
                options_.model.weights, options_.patience_seconds, stopped_text(child.stopped_by()));
  weights_address_ = said["address"].get<std::string>();
  const std::lock_guard lock(mutex_);
  children_[weights_name] = std::move(child);
  return {};
}

const std::string& Front::device_of(const std::string& worker) const {
  for (std::size_t i = 0; i < options_.decode_workers; ++i)
    if (worker == decode_name(i)) return options_.placement.of_decode(i);
  return options_.placement.prefill;
}

/// The name of a worker in errors, with its rank.
std::string Front::title_of(const std::string& worker) const {
  const int ranks = options_.ranks > 1 ? options_.ranks : options_.expert_ranks;
  for (int rank = 0; rank < ranks; ++rank)
    if (worker == rank_name(rank)) return fmt::format("{} (rank {} of {})", worker, rank, ranks);
  return worker;
}

Result<void> Front::start_worker(const std::string& name) {
  std::vector<std::string> arguments{"demo-worker", name == prefill_name ? "prefill" : "decode"};
  const auto add = [&](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  add("--name", name);
  add("--store", store());
  if (!weights_address_.empty()) add("--weights", weights_address_);
  add("--packages", options_.model.packages);
  add("--device", device_of(name));
  add("--folder", folder_.path());
  add("--page", std::to_string(options_.page_tokens));
  const auto page = static_cast<std::size_t>(options_.page_tokens);
  add("--pages", std::to_string(options_.texts_at_once * ((context_ + page - 1) / page)));
  add("--chunk", std::to_string(options_.chunk_tokens));
  add("--ranks", std::to_string(options_.ranks));
  add("--expert-ranks", std::to_string(options_.expert_ranks));
  for (int rank = 1; rank < std::max(options_.ranks, options_.expert_ranks); ++rank)
    if (name == rank_name(rank)) add("--rank", std::to_string(rank));
  if (options_.retry) arguments.emplace_back("--retry");
  if (options_.go_on) arguments.emplace_back("--go-on");
  for (const std::string& backend : options_.backends) add("--backend", backend);
  for (const auto& [option, value] : options_.options) add("--option", fmt::format("{}={}", option, value));
  HEADRACE_CLI_TRY(child, Child::start(name, std::move(arguments)));
  const std::lock_guard lock(mutex_);
  children_[name] = std::move(child);
  ready_[name] = false;
  return {};
}

Result<void> Front::await_ready() {
  std::unique_lock lock(mutex_);
  const auto waits_for = [&] {
    std::vector<std::string> names;
    for (const auto& [name, ready] : ready_)
      if (!ready) names.push_back(name);
    return names;
  };
  changed_.wait_for(lock, start_patience, [&] { return failure_ || waits_for().empty(); });
  if (failure_) return *failure_;
  if (const auto missing = waits_for(); !missing.empty())
    return fail(Code::timed_out, "{} not ready within {} s", fmt::join(missing, ", "),
                start_patience.count());
  all_were_ready_ = true;
  return {};
}

Front::~Front() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  children_.clear();
  agent_.reset();
}

// --- texts

Result<TextStream> Front::submit(const TextRequest& request) {
  if (request.prompt.empty())
    return fail(Code::invalid_argument, "the prompt is empty: give at least one byte");
  if (request.count == 0)
    return fail(Code::invalid_argument, "the request is for 0 tokens: ask for at least one");
  if (request.prompt.size() > context_ || request.count > context_ - request.prompt.size())
    return fail(Code::invalid_argument,
                "{} tokens of prompt and {} to generate are more than the model's context of {}",
                request.prompt.size(), request.count, context_);
  std::shared_ptr<TextStream::State> state;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    const std::uint64_t id = next_id_++;
    state = std::make_shared<TextStream::State>(*this, id, worker_for(id), request.count);
    texts_[id] = state;
  }
  TextStream stream(state);
  HEADRACE_CLI_CHECK(send(*agent_, prefill_name,
                          {{"type", "generate"},
                           {"id", state->id},
                           {"prompt", request.prompt},
                           {"count", request.count},
                           {"sampling", to_json(request.sampling)},
                           {"decode", state->worker}},
                          patience()));
  return stream;
}

/// Chooses the decode workers in turn; of ranks the first, which speaks for all. With the lock held.
std::string Front::worker_for(std::uint64_t id) const {
  if (options_.ranks > 1) return rank_name(0);
  const std::vector<std::string> left = decode_workers_left();
  std::vector<std::string> well;
  std::ranges::copy_if(left, std::back_inserter(well),
                       [&](const std::string& name) { return answers(name); });
  const std::vector<std::string>& names = well.empty() ? left : well;
  return names[id % names.size()];
}

std::vector<std::string> Front::decode_workers_left() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < options_.decode_workers; ++i)
    if (!losses_.contains(decode_name(i))) names.push_back(decode_name(i));
  return names;
}

bool Front::is_ready(const std::string& name) const {
  const auto found = ready_.find(name);
  return found != ready_.end() && found->second;
}

bool Front::answers(const std::string& name) const {
  const auto silence = silences_.find(name);
  return is_ready(name) && silence != silences_.end() && silence->second.lasts() < short_silence;
}

/// On the agent's callback thread.
void Front::take(const Received& received) try {
  const std::string type = received.type();
  const Message& message = received.message;
  if (type == "ready") (void)await_peer(*agent_, received.from, 10s);  // so that this agent can send to it
  const std::lock_guard lock(mutex_);
  silences_[received.from].heard();
  if (type == "ready") ready_[received.from] = true;
  if (type == "lost") unreachable_.insert(message.at("worker").get<std::string>());
  if (type == "status" && received.id() == status_question_)
    statuses_[received.from] = {received.from, CacheStatus::State::answers,
                                message.at("pages").get<std::uint64_t>(),
                                message.at("free_pages").get<std::uint64_t>(), ""};
  if (const auto found = texts_.find(received.id()); found != texts_.end()) {
    TextStream::State& text = *found->second;
    if (type == "prefilled" &&
        text.report.bytes ==
            0) {  // a restarted decode worker gets the pages a second time: keep the first report
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
      const auto at = message.at("at").get<std::size_t>();
      if (message.contains("logits")) text.logits[at] = message.at("logits").get<std::uint64_t>();
      text.put(at, message.at("token").get<std::int64_t>());
    }
  }
  changed_.notify_all();
} catch (const Message::exception& error) {
  std::fprintf(stderr, "headrace demo: a message from %s cannot be read: %s\n", received.from.c_str(),
               error.what());
}

/// The prefill worker forwards it to the decode worker: only the prefill worker knows when no request writes
/// into that text's pages any more.
void Front::cancel(std::uint64_t id) {
  (void)send(*agent_, prefill_name, {{"type", "cancel"}, {"id", id}}, patience());
}

Result<std::vector<CacheStatus>> Front::cache_status() {
  std::unique_lock lock(mutex_);
  statuses_.clear();
  const std::uint64_t question = ++status_question_;
  std::vector<std::string> asked = decode_workers_left();
  std::erase_if(asked, [&](const std::string& name) { return !is_ready(name); });
  lock.unlock();
  for (const std::string& name : asked)
    (void)send(*agent_, name, {{"type", "status"}, {"id", question}}, 0ms);
  lock.lock();
  changed_.wait_for(lock, status_patience, [&] {
    return failure_ || std::ranges::all_of(asked, [&](const std::string& name) {
             return statuses_.contains(name) || !is_ready(name);
           });
  });
  if (failure_) return *failure_;
  std::vector<CacheStatus> all;
  for (std::size_t i = 0; i < options_.decode_workers; ++i) all.push_back(status_of(decode_name(i)));
  return all;
}

/// With the lock held.
CacheStatus Front::status_of(const std::string& name) const {
  using State = CacheStatus::State;
  if (const auto lost = losses_.find(name); lost != losses_.end())
    return {name, State::lost, 0, 0, lost->second};
  if (!is_ready(name)) return {name, State::starting, 0, 0, ""};
  const auto found = statuses_.find(name);
  return found != statuses_.end() ? found->second : CacheStatus{name, State::silent, 0, 0, ""};
}

// --- children

/// A lost child has one of three results. With --retry it is started again, unless it is the prefill worker.
/// A server continues without a lost decode worker while another is left. Everything else ends the demo.
void Front::watch_children() {
  std::unique_lock lock(mutex_);
  for (auto before = Clock::now(); !stopping_;) {
    changed_.wait_for(lock, 20ms, [&] { return stopping_; });
    if (!failure_ && is_readable(stop_)) fail_all(fail(Code::canceled, "the demo is being stopped"));
    if (stopping_ || failure_) continue;
    const auto now = Clock::now();
    look_for_dead(lock);
    end_unreachable();
    look_for_silent(before, now);
    start_again(lock);
    tell_of_loss(lock);
    ask_for_a_word(lock);
    before = now;
  }
}

void Front::look_for_dead(std::unique_lock<std::mutex>& lock) {
  std::map<std::string, std::string> dead;
  for (auto& [name, child] : children_)
    if (const std::string how = child.ended(); !how.empty()) dead[name] = how;
  for (const auto& [name, how] : dead) {
    if (is_readable(stop_)) return;  // the same signal may have ended it
    lost(lock, name, how);
    children_.erase(name);
  }
}

/// Ends workers that are alive but that the prefill worker cannot reach any more. With the lock held.
void Front::end_unreachable() {
  for (const std::string& name : std::exchange(unreachable_, {})) {
    const auto child = children_.find(name);
    if (child == children_.end() || !child->second.ended().empty()) continue;
    std::fprintf(stderr, "headrace demo: %s cannot be reached by %s; ending it\n", name.c_str(),
                 prefill_name);
    child->second.kill();
  }
}

/// With the lock held.
void Front::lost(std::unique_lock<std::mutex>& lock, const std::string& name, const std::string& how) {
  std::string what = how;
  if (options_.retry && name != prefill_name && begin_again(name, what)) return;
  const Error why = fail(Code::peer_lost, "worker {} {}", title_of(name), what);
  if (can_do_without(name)) {
    losses_[name] = what;
    return do_without(name, why);
  }
  if (is_decode_worker(name) && !options_.retry && !options_.go_on) await_prefill_worker(lock);
  fail_all(why);
}

/// Whether another decode worker is left. During the start every loss ends the demo.
bool Front::can_do_without(const std::string& name) const {
  return options_.go_on && all_were_ready_ && is_decode_worker(name) && decode_workers_left().size() > 1;
}

/// Restarts a child. False if it has died too often; `how` then says so. With the lock held.
bool Front::begin_again(const std::string& name, std::string& how) {
  Restarts& restarts = restarts_[name];
  const auto at = restarts.died(Clock::now());
  if (!at) {
    how += fmt::format(", {} times in a row: it is not started again", restarts.deaths());
    return false;
  }
  std::fprintf(stderr, "headrace demo: %s %s; starting it again\n", name.c_str(), how.c_str());
  due_[name] = *at;
  if (name != weights_name) ready_[name] = false;
  return true;
}

/// Fails the texts of the lost worker; texts of the others continue. With the lock held.
void Front::do_without(const std::string& name, const Error& why) {
  std::fprintf(stderr, "headrace demo: %s; continuing with %s\n", why.message.c_str(),
               fmt::format("{}", fmt::join(decode_workers_left(), ", ")).c_str());
  ready_.erase(name);
  untold_.insert(name);
  for (auto& [id, text] : texts_)
    if (text->worker == name) text->error = why;
  changed_.notify_all();
}

/// Tells the prefill worker: it may not have noticed the loss, or may wait for that worker to restart.
void Front::tell_of_loss(std::unique_lock<std::mutex>& lock) {
  const std::set<std::string> names = untold_;
  for (const std::string& name : names) {
    lock.unlock();
    const bool told = send(*agent_, prefill_name, {{"type", "gone"}, {"worker", name}}, 0ms).ok();
    lock.lock();
    if (told) untold_.erase(name);  // else its queue is full: send again in the next round
  }
}

/// Starts the children whose pause is over.
void Front::start_again(std::unique_lock<std::mutex>& lock) {
  std::vector<std::string> names;
  for (const auto& [name, at] : due_)
    if (at <= Clock::now()) names.push_back(name);
  for (const std::string& name : names) {
    due_.erase(name);
    lock.unlock();
    auto started = start_child(name);
    lock.lock();
    if (!started) lost(lock, name, fmt::format("did not start ({})", started.error().message));
  }
}

/// Finds workers that send nothing. A ready worker answers status messages; a stopped one (SIGSTOP) does not.
/// With the lock held.
void Front::look_for_silent(Clock::time_point before, Clock::time_point now) {
  auto longest = children_.end();
  for (auto at = children_.begin(); at != children_.end(); ++at) {
    Silence& silence = silences_[at->first];
    if (at->second.stopped_by() != 0 || is_ready(at->first))
      silence.pass(before, now);
    else
      silence.heard();
    if (longest == children_.end() || silence.lasts() > silences_[longest->first].lasts()) longest = at;
  }
  if (longest == children_.end() || silences_[longest->first].lasts() < patience()) return;
  // Others may have waited for one that is stopped; their last word can be older than its own.
  for (auto at = children_.begin(); at != children_.end(); ++at)
    if (at->second.stopped_by() != 0 && silences_[at->first].lasts() >= patience() / 2) longest = at;
  auto& [name, child] = *longest;
  const std::string what =
      fmt::format("has sent nothing for {} s{}", options_.patience_seconds, stopped_text(child.stopped_by()));
  if (name == prefill_name || !(options_.retry || can_do_without(name)))
    return fail_all(fail(Code::peer_lost, "worker {} {}", title_of(name), what));
  std::fprintf(stderr, "headrace demo: %s %s; ending it\n", name.c_str(), what.c_str());
  child.kill();
  for (auto& [other, silence] : silences_) silence.heard();  // the others may have waited for the lost one
}

void Front::ask_for_a_word(std::unique_lock<std::mutex>& lock) {
  if (Clock::now() < next_question_) return;
  next_question_ = Clock::now() + question_every;
  std::vector<std::string> names;
  for (const auto& [name, ready] : ready_)
    if (ready) names.push_back(name);
  lock.unlock();
  for (const std::string& name : names)
    (void)send(*agent_, name, {{"type", "status"}, {"id", 0}}, 0ms);  // a failed send shows as silence
  lock.lock();
}

/// Waits up to 2 s for the prefill worker to end: it notices a decode worker's death itself, and its error
/// message shall come before ours.
void Front::await_prefill_worker(std::unique_lock<std::mutex>& lock) {
  const auto end = Clock::now() + 2s;
  while (!stopping_ && Clock::now() < end && children_.contains(prefill_name) &&
         children_[prefill_name].ended().empty())
    changed_.wait_for(lock, 10ms);
}

/// With the lock held.
void Front::fail_all(const Error& error) {
  if (!failure_) failure_ = error;
  for (auto& [id, text] : texts_) text->error = error;
  const std::uint64_t one = 1;
  (void)!::write(failed_event_.get(), &one, sizeof one);
  changed_.notify_all();
}

std::optional<Error> Front::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace headrace::cli::demo
