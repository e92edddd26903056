// SPDX-License-Identifier: Apache-2.0
// The decode worker: generates the texts whose prompt pages have arrived from the prefill worker, one token
// of each text in turn.
#include "cli/common/errors.hpp"
#include "cli/demo/decoder.hpp"
#include "cli/demo/messages.hpp"
#include "cli/demo/rank_model.hpp"
#include "cli/demo/stop_signals.hpp"
#include "cli/demo/worker.hpp"

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
};

struct Reservation {
  std::uint64_t id = 0;
  std::uint64_t attempt = 0;  ///< how often the prefill worker has asked for pages of that text
  std::string from;
  std::size_t tokens = 0;
};

class DecodeWorker {
 public:
  DecodeWorker(Agent agent, std::unique_ptr<Decoder> decoder, KvPool pool, bool tells_logits)
      : decoder_(std::move(decoder)),
        pool_(std::move(pool)),
        tells_logits_(tells_logits),
        agent_(std::move(agent)) {}

  Result<void> run() {
    HEADRACE_CLI_TRY(stop, StopSignals::open());
    HEADRACE_CLI_CHECK(report_ready(agent_));
    HEADRACE_CLI_CHECK(decoder_->meet_ranks(agent_));
    while (StopSignals::number() == 0) {
      while (auto received = receive(agent_, running_.empty() ? Timeout(std::chrono::milliseconds(200))
                                                              : Timeout(std::chrono::nanoseconds(0))))
        HEADRACE_CLI_CHECK(take(*received));
      if (!running_.empty()) HEADRACE_CLI_CHECK(step());
    }
    return {};
  }

 private:
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
    return decoder_->begin(text.id, text.sequence);
  }

  /// Generates one token of the next text.
  Result<void> step() {
    const std::uint64_t id = running_.front();
    running_.pop_front();
    Text& text = texts_.at(id);
    if (text.generated == text.count) return finish(text);
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
    return grant();
  }

  Result<void> answer_status(const Received& received) {
    return send(agent_, received.from,
                {{"type", "status"},
                 {"id", received.id()},
                 {"free_pages", pool_.free_pages()},
                 {"pages", pool_.shape().pages}});
  }

  const std::unique_ptr<Decoder> decoder_;
  KvPool pool_;
  const bool tells_logits_;  // the checksums of logits, for --check
  Agent agent_;              // destroyed before the pool: peers reach the pool through it
  std::map<std::uint64_t, Text> texts_;
  std::deque<std::uint64_t> running_;
  std::deque<Reservation> waiting_;
  std::set<std::string> known_;  // peers whose metadata has been imported
};

}  // namespace

Result<void> run_decode_worker(const WorkerOptions& options) {
  if (options.rank.number != 0) return run_further_rank(options);
  HEADRACE_CLI_TRY(decoder, open_decoder(options));
  HEADRACE_CLI_TRY(agent, open_agent(options));
  HEADRACE_CLI_TRY(pool, KvPool::allocate(agent, decoder->kv_shape(options.page_tokens, options.pages),
                                          decoder->device()));
  return DecodeWorker(std::move(agent), std::move(decoder), std::move(pool), options.rank.of > 1).run();
}

}  // namespace headrace::cli::demo
