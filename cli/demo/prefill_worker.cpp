// SPDX-License-Identifier: Apache-2.0
// The prefill worker: runs prompts. The pages of a layer move to the decode worker while the next layer runs.
#include "cli/common/errors.hpp"
#include "cli/demo/messages.hpp"
#include "cli/demo/stop_signals.hpp"
#include "cli/demo/worker.hpp"

#include <chrono>
#include <deque>
#include <numeric>
#include <set>

namespace headrace::cli::demo {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto look_every = 200ms;  // how often to check the decode workers
constexpr auto patience = 30s;
constexpr auto look_up_patience = 5s;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One incarnation of a decode worker.
struct DecodePeer {
  std::uint64_t incarnation = 0;
  KvShape shape;
  std::vector<PageList> layers;
};

/// The report of what moved for one prompt.
struct Moved {
  std::uint64_t bytes = 0, bytes_before_end = 0, pages = 0;
  double transfer_seconds = 0, prefill_seconds = 0;
  std::string path, explanation;
};

struct Job {
  std::uint64_t id = 0;
  std::string front, decode;
  std::vector<std::int64_t> prompt;
  std::size_t count = 0;
  Sampling sampling;
  std::uint64_t attempt = 0;                ///< how often pages were asked for; earlier answers are void
  std::vector<std::uint32_t> remote_pages;  ///< empty: the decode worker has not given any yet
  Sequence sequence;                        ///< has pages once the prompt runs or has run
  std::int64_t first_token = -1;            ///< not negative: the prompt has run
  std::vector<Request> requests;
  Moved moved;
};

class PrefillWorker {
 public:
  PrefillWorker(const WorkerOptions& options, Agent agent, TextModel model, KvPool pool)
      : options_(options), model_(std::move(model)), pool_(std::move(pool)), agent_(std::move(agent)) {}

  Result<void> run() {
    for (int rank = 0; rank < options_.rank.of; ++rank) {
      HEADRACE_CLI_TRY(local, layer_lists({}, pool_.region(), pool_.shape(), {rank, options_.rank.of}));
      local_.push_back(std::move(local));
    }
    HEADRACE_CLI_TRY(stop, StopSignals::open());
    HEADRACE_CLI_CHECK(report_ready(agent_));
    while (StopSignals::number() == 0) {
      while (auto received = receive(agent_, ready_.empty() ? Timeout(look_every) : Timeout(0ns)))
        HEADRACE_CLI_CHECK(take(*received));
      HEADRACE_CLI_CHECK(look_at_peers());
      HEADRACE_CLI_CHECK(run_next());
    }
    return {};
  }

 private:
  Result<void> take(const Received& received) try {
    const std::string type = received.type();
    const auto found = jobs_.find(received.id());
    if (type == "generate") return accept(received);
    if (type == "status") return send(agent_, received.from, {{"type", "alive"}});
    if (type == "gone") return do_without(received.message.at("worker").get<std::string>()), Result<void>();
    if (found == jobs_.end()) return {};
    if (type == "reserved") {
      if (received.message.at("attempt").get<std::uint64_t>() != found->second.attempt) return {};
      found->second.remote_pages = received.message.at("pages").get<std::vector<std::uint32_t>>();
      ready_.push_back(received.id());
    } else if (type == "finished") {
      drop(received.id());
    } else if (type == "cancel") {
      return cancel(received.id());
    }
    return {};
  } catch (const Message::exception& error) {
    return fail(Code::corrupt, "a message from {} cannot be read: {}", received.from, error.what());
  }

  /// The order matters: first the requests of this text end, then the decode worker gets `cancel`, because it
  /// then gives the pages to other texts. It has received `reserve` before.
  Result<void> cancel(std::uint64_t id) {
    const std::string decode = jobs_.at(id).decode;
    drop(id);
    if (!peers_.contains(decode)) return {};
    return or_lost(decode, send(agent_, decode, {{"type", "cancel"}, {"id", id}}));
  }

  Result<void> accept(const Received& received) {
    const Message& message = received.message;
    Job job;
    job.id = received.id();
    job.front = received.from;
    job.decode = message.at("decode").get<std::string>();
    job.prompt = message.at("prompt").get<std::vector<std::int64_t>>();
    job.count = message.at("count").get<std::size_t>();
    job.sampling = sampling_of(message);
    if (gone_.contains(job.decode)) return {};  // the front knows of the loss and fails the text
    const auto at = jobs_.insert_or_assign(job.id, std::move(job)).first;
    return reserve(at->second);
  }

  /// Asks the decode worker for pages.
  Result<void> reserve(Job& job) {
    if (awaited_.contains(job.decode)) return {};  // welcome_back() asks when it has restarted
    for (const std::string& name : ranks_of(job.decode))
      if (!peers_.contains(name))
        if (auto met = look_up(name); !met) return or_lost(name, std::move(met));
    return or_lost(job.decode, send(agent_, job.decode,
                                    {{"type", "reserve"},
                                     {"id", job.id},
                                     {"attempt", ++job.attempt},
                                     {"tokens", job.prompt.size() + job.count}}));
  }

  /// The processes that hold the pages of a decode worker: its ranks, which have the same page numbers.
  [[nodiscard]] std::vector<std::string> ranks_of(const std::string& decode) const {
    if (options_.rank.of == 1) return {decode};
    std::vector<std::string> names;
    for (int rank = 0; rank < options_.rank.of; ++rank) names.push_back(rank_name(rank));
    return names;
  }

  /// Imports the metadata of a decode worker. It was ready before the front chose it for a text.
  Result<void> look_up(const std::string& name) {
    const auto found = await_peer(agent_, name, look_up_patience);
    if (!found) return fail(Code::not_found, "{}", found.error().message);
    return meet(name, found->incarnation);
  }

  /// Prepares the page lists of a decode worker whose metadata has been imported.
  Result<void> meet(const std::string& name, std::uint64_t incarnation) {
    HEADRACE_CLI_TRY(region, agent_.peer_region(name, "kv"));
    DecodePeer peer;
    peer.incarnation = incarnation;
    HEADRACE_CLI_TRY(shape, read_kv_note(region.note));
    peer.shape = shape;
    KvShape ours = pool_.shape().split(options_.rank.of);
    ours.pages = shape.pages;
    if (ours != shape)
      return fail(
          Code::invalid_argument,
          "the cache of {} has another shape than that of {}: start both with the same model and page size",
          name, options_.name);
    HEADRACE_CLI_TRY(lists, layer_lists(name, region.id, shape, {}));
    peer.layers = std::move(lists);
    peers_[name] = std::move(peer);
    return {};
  }

  /// The pages of each layer. `heads`: those of one rank alone.
  Result<std::vector<PageList>> layer_lists(const std::string& peer, RegionId region, const KvShape& shape,
                                            Rank heads) {
    std::vector<PageList> lists;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const PageSpec pages = layer_pages(region, shape, layer, heads);
      HEADRACE_CLI_TRY(list, peer.empty() ? agent_.prepare(pages) : agent_.prepare(peer, pages));
      lists.push_back(std::move(list));
    }
    return lists;
  }

  Result<void> run_next() {
    if (ready_.empty()) return {};
    const auto found = jobs_.find(ready_.front());
    if (found == jobs_.end() || found->second.remote_pages.empty()) return ready_.pop_front(), Result<void>();
    Job& job = found->second;
    if (job.sequence.pages.empty()) {
      auto pages = pool_.take(pool_.pages_for(job.prompt.size()));
      if (!pages) return wait_for_room();
      job.sequence.pages = std::move(*pages);
    }
    ready_.pop_front();
    Result<void> done = job.first_token < 0 ? prefill(job) : send_again(job);
    return or_lost(job.decode, std::move(done));
  }

  /// Other texts hold the pages: waits for a message that one of them has finished.
  Result<void> wait_for_room() {
    if (auto received = receive(agent_, look_every)) return take(*received);
    return {};
  }

  Result<void> prefill(Job& job) {
    job.sequence.slots.clear();  // of an earlier run that the loss of the decode worker has ended
    const auto begin = Clock::now();
    const auto after_layer = [&](std::size_t from, std::size_t to, std::int64_t layer) {
      if (to == job.prompt.size() && layer + 1 == pool_.shape().layers) note_end(job, begin);
      return send_pages(job, from, to, layer);
    };
    HEADRACE_CLI_CHECK(
        run_prompt(model_, job.prompt, options_.chunk_tokens, pool_, job.sequence, after_layer));
    HEADRACE_CLI_TRY(logits, model_.logits());
    job.first_token = choose_token(logits, job.sampling, job.sequence.length());
    return hand_over(job);
  }

  /// Called when the prompt has run, before the pages of its last layer are posted.
  static void note_end(Job& job, Clock::time_point begin) {
    job.moved.prefill_seconds = seconds_since(begin);
    job.moved.bytes_before_end = 0;
    for (Request& request : job.requests)
      if (request.poll() == RequestState::done) job.moved.bytes_before_end += request.bytes();
  }

  /// Posts all pages again, to a decode worker that has restarted. The prompt does not run again.
  Result<void> send_again(Job& job) {
    job.requests.clear();
    for (std::int64_t layer = 0; layer < pool_.shape().layers; ++layer)
      HEADRACE_CLI_CHECK(send_pages(job, 0, job.prompt.size(), layer));
    return hand_over(job);
  }

  /// Posts the pages that hold the tokens [from, to) of one layer; to each rank its heads.
  Result<void> send_pages(Job& job, std::size_t from, std::size_t to, std::int64_t layer) {
    const auto page = static_cast<std::size_t>(pool_.shape().page_tokens);
    const std::size_t first = from / page, count = (to - 1) / page + 1 - first;
    const auto at = static_cast<std::size_t>(layer);
    const std::vector<std::string> ranks = ranks_of(job.decode);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      HEADRACE_CLI_TRY(
          request,
          agent_.make_request(Op::write, {local_[rank][at], peers_.at(ranks[rank]).layers[at],
                                          std::span(job.sequence.pages).subspan(first, count),
                                          std::span(std::as_const(job.remote_pages)).subspan(first, count)}));
      if (const Status posted = request.post(); !posted.ok()) return request.error();
      job.requests.push_back(std::move(request));
    }
    return {};
  }

  /// Waits until all pages have moved, then starts the decode worker and sends the first token to the front.
  Result<void> hand_over(Job& job) {
    for (Request& request : job.requests)
      if (const Status status = request.wait(patience); !status.ok()) return request.error();
    measure(job);
    job.requests.clear();
    HEADRACE_CLI_CHECK(send(agent_, job.decode,
                            {{"type", "start"},
                             {"id", job.id},
                             {"attempt", job.attempt},
                             {"length", job.prompt.size()},
                             {"token", job.first_token},
                             {"count", job.count},
                             {"sampling", to_json(job.sampling)},
                             {"front", job.front}}));
    const Moved& moved = job.moved;
    return send(agent_, job.front,
                {{"type", "prefilled"},
                 {"id", job.id},
                 {"token", job.first_token},
                 {"bytes", moved.bytes},
                 {"pages", moved.pages},
                 {"bytes_before_end", moved.bytes_before_end},
                 {"transfer_seconds", moved.transfer_seconds},
                 {"prefill_seconds", moved.prefill_seconds},
                 {"path", moved.path},
                 {"explanation", moved.explanation}});
  }

  static void measure(Job& job) {
    Moved& moved = job.moved;
    moved.bytes = moved.pages = 0;
    moved.transfer_seconds = 0;
    for (const Request& request : job.requests) {
      moved.bytes += request.bytes();
      moved.pages += request.pages();
      moved.transfer_seconds += static_cast<double>(request.times().transfer_ns) * 1e-9;
      moved.path = request.backend();
    }
    if (!job.requests.empty()) moved.explanation = job.requests.back().explain();
  }

  // --- decode workers that die

  /// Returns the error, unless it is the loss of a peer and this worker waits for that peer or continues
  /// without it.
  Result<void> or_lost(const std::string& name, Result<void> result) {
    if (result || (result.code() != Code::peer_lost && result.code() != Code::not_found)) return result;
    return lost(missing_rank(name), std::move(result).error());
  }

  /// The process that is gone: with several ranks the name may be that of another one.
  std::string missing_rank(const std::string& name) {
    for (const std::string& rank : ranks_of(name))
      if (peers_.contains(rank) && !look_at(rank)) return rank;
    return name;
  }

  /// `name` is a copy, because the caller's name may be part of a job that is dropped here.
  Result<void> lost(std::string name, Error why) {
    if (!options_.retry) {
      const bool is_rank = options_.rank.of > 1 || options_.expert_ranks > 0;
      const char* const advice = is_rank ? "" : " (with --retry it is restarted)";
      const Error loss = fail(Code::peer_lost, "{} is lost, and with it the texts that it was writing{}: {}",
                              name, advice, why.message);
      if (!options_.go_on) return loss;
      std::fprintf(stderr, "headrace demo: %s\n", loss.message.c_str());
      do_without(name);
      return send(agent_, front_name, {{"type", "lost"}, {"worker", name}});
    }
    std::fprintf(stderr, "headrace demo: %s is lost; waiting for its restart: %s\n", name.c_str(),
                 why.message.c_str());
    awaited_[name] = peers_.contains(name) ? peers_[name].incarnation : 0;
    peers_.erase(name);
    for (auto& [id, job] : jobs_) {
      if (job.decode != name) continue;
      job.requests.clear();
      job.remote_pages.clear();
      std::erase(ready_, id);
    }
    return {};
  }

  /// Forgets a decode worker that is not restarted.
  void do_without(const std::string& name) {
    gone_.insert(name);
    peers_.erase(name);
    awaited_.erase(name);
    std::vector<std::uint64_t> its;
    for (const auto& [id, job] : jobs_)
      if (job.decode == name) its.push_back(id);
    for (const std::uint64_t id : its) drop(id);
  }

  Result<void> look_at_peers() {
    if (Clock::now() < next_look_) return {};
    next_look_ = Clock::now() + look_every;
    std::vector<std::string> names;
    for (const auto& [name, peer] : peers_) names.push_back(name);
    for (const std::string& name : names) HEADRACE_CLI_CHECK(or_lost(name, look_at(name)));
    return welcome_back();
  }

  /// Checks one decode worker. It may have restarted unnoticed: then its agent has another incarnation, and
  /// messages reach the new agent.
  Result<void> look_at(const std::string& name) {
    const std::uint64_t known = peers_.at(name).incarnation;
    for (const PeerInfo& peer : agent_.peers())
      if (peer.name == name && peer.incarnation != known) return fail(Code::peer_lost, "it has restarted");
    return send(agent_, name, {{"type", "alive"}});
  }

  /// Finds the awaited workers that have another incarnation now, and reserves pages for their texts again.
  Result<void> welcome_back() {
    const auto awaited = awaited_;
    for (const auto& [name, incarnation] : awaited) {
      const auto found = agent_.find(name, look_every);
      if (!found || found->incarnation == incarnation) continue;
      if (!agent_.peer_region(name, "kv")) continue;  // it is not ready yet
      awaited_.erase(name);
      HEADRACE_CLI_CHECK(meet(name, found->incarnation));
      std::fprintf(stderr, "headrace demo: %s is back\n", name.c_str());
      for (auto& [id, job] : jobs_)
        if (job.decode == name) HEADRACE_CLI_CHECK(reserve(job));
    }
    return {};
  }

  void drop(std::uint64_t id) {
    const auto found = jobs_.find(id);
    for (Request& request : found->second.requests) request.cancel();
    for (Request& request : found->second.requests) (void)request.wait(patience);
    pool_.give_back(found->second.sequence.pages);
    jobs_.erase(found);
    std::erase(ready_, id);
  }

  const WorkerOptions options_;
  TextModel model_;
  KvPool pool_;
  Agent agent_;                               // destroyed before the pool: peers reach the pool through it
  std::vector<std::vector<PageList>> local_;  // for each rank one a layer
  std::map<std::string, DecodePeer> peers_;
  std::map<std::string, std::uint64_t> awaited_;  // the incarnation that was lost
  std::set<std::string> gone_;
  std::map<std::uint64_t, Job> jobs_;
  std::deque<std::uint64_t> ready_;  // ids of the jobs that have pages of their decode worker
  Clock::time_point next_look_{};
};

}  // namespace

Result<void> run_prefill_worker(const WorkerOptions& options) {
  HEADRACE_CLI_TRY(model, open_model(options));
  HEADRACE_CLI_TRY(agent, open_agent(options));
  HEADRACE_CLI_TRY(
      pool, KvPool::allocate(agent, model.kv_shape(options.page_tokens, options.pages), model.device()));
  return PrefillWorker(options, std::move(agent), std::move(model), std::move(pool)).run();
}

}  // namespace headrace::cli::demo
