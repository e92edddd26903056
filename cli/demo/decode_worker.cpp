// SPDX-License-Identifier: Apache-2.0
// The decode worker: generates the texts whose prompt pages have arrived from the prefill worker, one token
// of each text in turn. Ranks that share the experts each write texts of their own, and run one token each at
// the same time: rank 0 names each step, as long as one of them has a text.
#include "cli/common/errors.hpp"
#include "cli/demo/decoder.hpp"
#include "cli/demo/messages.hpp"
#include "cli/demo/rank_model.hpp"
#include "cli/demo/stop_signals.hpp"
#include "cli/demo/worker.hpp"

#include <algorithm>
#include <deque>
#include <set>

namespace headrace::cli::demo {
namespace {

struct Text {
  std::uint64_t id = 0;
  std::uint64_t attempt = 0;
  std::string prefill, front;
  Sequence sequence;
  Sampling sampling;
  std::size_t count = 0;      ///< tokens to generate
  std::size_t generated = 0;  ///< tokens generated so far; the prefill worker's first token counts
  std::int64_t last = 0;      ///< the last token, not in the cache yet

  [[nodiscard]] bool is_written() const { return generated == count; }
};

struct Reservation {
  std::uint64_t id = 0;
  std::uint64_t attempt = 0;  ///< how often the prefill worker has asked for pages of that text
  std::string from;
  std::size_t tokens = 0;
};

class DecodeWorker {
 public:
  DecodeWorker(Agent agent, std::unique_ptr<Decoder> decoder, KvPool pool, const WorkerOptions& options)
      : pool_(std::move(pool)),
        tells_logits_(options.rank.of > 1 || options.expert_ranks > 0),
        steps_with_{options.rank.number, std::max(options.expert_ranks, 1)},
        agent_(std::move(agent)),
        decoder_(std::move(decoder)) {}

  Result<void> run() {
    HEADRACE_CLI_TRY(stop, StopSignals::open());
    HEADRACE_CLI_CHECK(decoder_->meet_ranks(agent_));
    HEADRACE_CLI_CHECK(report_ready(agent_));
    while (StopSignals::number() == 0) {
      while (auto received = receive(agent_, begins_step() ? Timeout(std::chrono::nanoseconds(0))
                                                           : Timeout(std::chrono::milliseconds(200))))
        HEADRACE_CLI_CHECK(take(*received));
      if (begins_step()) HEADRACE_CLI_CHECK(begin_step());
    }
    return {};
  }

 private:
  // --- ranks that step together

  /// Whether this worker is the one that begins the next step, and a rank has a token for it.
  [[nodiscard]] bool begins_step() const {
    return steps_with_.number == 0 && (!running_.empty() || !busy_.empty());
  }

  Result<void> begin_step() {
    for (int rank = 1; rank < steps_with_.of; ++rank)
      if (auto sent = send(agent_, rank_name(rank), {{"type", "step"}}); !sent)
        return after_the_end(std::move(sent).error());
    return step();
  }

  void note_busy(const Received& received) {
    if (received.message.at("is").get<bool>())
      busy_.insert(received.from);
    else
      busy_.erase(received.from);
  }

  /// Tells rank 0 when this rank gets its first text or has ended its last one.
  Result<void> tell_busy() {
    if (steps_with_.number == 0 || told_busy_ == !running_.empty()) return {};
    told_busy_ = !running_.empty();
    return send(agent_, rank_name(0), {{"type", "busy"}, {"is", told_busy_}});
  }

  // --- messages

  Result<void> take(const Received& received) try {
    const std::string type = received.type();
    const Message& message = received.message;
    if (type == "reserve") {
      HEADRACE_CLI_CHECK(
          drop(received.id()));  // asked twice: the first time it meant our earlier incarnation
      waiting_.push_back({received.id(), message.at("attempt").get<std::uint64_t>(), received.from,
                          message.at("tokens").get<std::size_t>()});
      return grant();
    }
    if (type == "start") return start(received);
    if (type == "cancel") return drop(received.id());
    if (type == "status") return answer_status(received);
    if (type == "step") return step();
    if (type == "busy") note_busy(received);
    return {};
  } catch (const Message::exception& error) {
    return fail(Code::corrupt, "a message from {} cannot be read: {}", received.from, error.what());
  }

  /// Gives pages to the waiting reservations, in the order of their arrival.
  Result<void> grant() {
    while (!waiting_.empty()) {
      auto pages = pool_.take(pool_.pages_for(waiting_.front().tokens));
      if (!pages) return {};
      const Reservation granted = std::move(waiting_.front());
      waiting_.pop_front();
      if (known_.insert(granted.from).second)
        HEADRACE_CLI_CHECK(await_peer(agent_, granted.from, std::chrono::seconds(10)));
      Text& text = texts_[granted.id];
      text.id = granted.id;
      text.attempt = granted.attempt;
      text.prefill = granted.from;
      text.sequence.pages = *pages;
      HEADRACE_CLI_CHECK(
          send(agent_, granted.from,
               {{"type", "reserved"}, {"id", granted.id}, {"attempt", granted.attempt}, {"pages", *pages}}));
    }
    return {};
  }

  /// Called when the prompt's keys and values are in their pages.
  Result<void> start(const Received& received) {
    const auto found = texts_.find(received.id());
    if (found == texts_.end()) return {};  // it was canceled
    Text& text = found->second;
    const Message& message = received.message;
    if (message.at("attempt").get<std::uint64_t>() != text.attempt)
      return {};  // its pages belong to another text by now
    text.sequence.add_slots(message.at("length").get<std::size_t>(), pool_.shape());
    text.last = message.at("token").get<std::int64_t>();
    text.count = message.at("count").get<std::size_t>();
    text.sampling = sampling_of(message);
    text.front = message.at("front").get<std::string>();
    text.generated = 1;
    running_.push_back(text.id);
    HEADRACE_CLI_CHECK(decoder_->begin(text.id, text.sequence));
    return tell_busy();
  }

  /// Generates one token of the next text. Without a text it takes part in the step of other ranks.
  Result<void> step() {
    while (!running_.empty() && texts_.at(running_.front()).is_written())
      HEADRACE_CLI_CHECK(finish(texts_.at(running_.front())));
    if (running_.empty()) return decoder_->take_part();
    const std::uint64_t id = running_.front();
    running_.pop_front();
    Text& text = texts_.at(id);
    HEADRACE_CLI_CHECK(decoder_->take(id, text.last, pool_, text.sequence));
    HEADRACE_CLI_TRY(logits, decoder_->logits());
    text.last = choose_token(logits, text.sampling, text.sequence.length());
    Message token{{"type", "token"}, {"id", id}, {"at", text.generated}, {"token", text.last}};
    if (tells_logits_) token["logits"] = logits_checksum(logits);
    HEADRACE_CLI_CHECK(send(agent_, text.front, token));
    ++text.generated;
    running_.push_back(id);
    return {};
  }

  Result<void> finish(const Text& text) {
    const std::uint64_t id = text.id;
    const std::string prefill = text.prefill;
    HEADRACE_CLI_CHECK(drop(id));
    return send(agent_, prefill, {{"type", "finished"}, {"id", id}});
  }

  /// Frees a text's pages and gives them to waiting reservations.
  Result<void> drop(std::uint64_t id) {
    std::erase_if(waiting_, [&](const Reservation& reservation) { return reservation.id == id; });
    std::erase(running_, id);
    HEADRACE_CLI_CHECK(decoder_->end(id));
    if (const auto found = texts_.find(id); found != texts_.end()) {
      pool_.give_back(found->second.sequence.pages);
      texts_.erase(found);
    }
    HEADRACE_CLI_CHECK(tell_busy());
    return grant();
  }

  Result<void> answer_status(const Received& received) {
    return send(agent_, received.from,
                {{"type", "status"},
                 {"id", received.id()},
                 {"free_pages", pool_.free_pages()},
                 {"pages", pool_.shape().pages}});
  }

  KvPool pool_;
  const bool tells_logits_;                 // the checksums of logits, for --check
  const Rank steps_with_;                   // the ranks that share the experts
  Agent agent_;                             // destroyed before the pool: peers reach the pool through it
  const std::unique_ptr<Decoder> decoder_;  // destroyed before the agent, whose memory it may use
  std::set<std::string> busy_;              // rank 0: other ranks that have texts
  bool told_busy_ = false;                  // what rank 0 knows of this rank
  std::map<std::uint64_t, Text> texts_;
  std::deque<std::uint64_t> running_;
  std::deque<Reservation> waiting_;
  std::set<std::string> known_;  // peers whose metadata has been imported
};

}  // namespace

Result<void> run_decode_worker(const WorkerOptions& options) {
  if (options.rank.of > 1 && options.rank.number != 0) return run_further_rank(options);
  HEADRACE_CLI_TRY(decoder, open_decoder(options));
  HEADRACE_CLI_TRY(agent, open_agent(options));
  HEADRACE_CLI_TRY(pool, KvPool::allocate(agent, decoder->kv_shape(options.page_tokens, options.pages),
                                          decoder->device()));
  return DecodeWorker(std::move(agent), std::move(decoder), std::move(pool), options).run();
}

}  // namespace headrace::cli::demo
