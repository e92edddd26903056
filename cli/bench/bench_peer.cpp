// SPDX-License-Identifier: Apache-2.0
// The peer process of a benchmark. It executes the messages of the control socket until that socket closes.
#include "cli/bench/bench_side.hpp"
#include "cli/bench/page_pattern.hpp"
#include "cli/bench/peer_process.hpp"

#include <unistd.h>

#include <chrono>
#include <optional>

namespace headrace::cli {
namespace {

constexpr auto peer_patience = std::chrono::seconds(60);

class BenchPeer {
 public:
  BenchPeer(int control_fd, int ping_fd, int pong_fd)
      : control_(control_fd), ping_(ping_fd), pong_(pong_fd) {}

  Result<void> serve() {
    for (;;) {
      auto message = receive_frame(control_);
      if (!message) {
        if (message.code() == Code::peer_lost) return {};
        if (message.code() == Code::timed_out) continue;
        return std::move(message).error();
      }
      auto answer = handle(*message);
      if (!answer)
        answer = Json{{"error", answer.error().message}, {"code", static_cast<int>(answer.error().code)}};
      HEADRACE_CLI_CHECK(send_frame(control_, *answer));
    }
  }

 private:
  Result<Json> handle(const Json& message) {
    const auto what = message.at("do").get<std::string>();
    if (what == "open") return open(message);
    if (!side_) return fail(Code::internal, "asked to {} before it was opened", what);
    if (what == "fill") return fill(message.at("seed"));
    if (what == "check") return check(message);
    if (what == "echo") return echo(message.at("rounds"), message.at("spinning"));
    if (what == "pong") return pong(message.at("rounds"));
    return fail(Code::internal, "asked to {}, which it cannot", what);
  }

  Result<Json> open(const Json& message) {
    HEADRACE_CLI_TRY(
        side, BenchSide::open(fmt::format("bench-peer-{}", ::getpid()), BenchSetup::from_json(message)));
    const auto& theirs = message.at("metadata").get_binary();
    HEADRACE_CLI_TRY(
        report, side.agent().import_metadata({reinterpret_cast<const char*>(theirs.data()), theirs.size()}));
    HEADRACE_CLI_TRY(ours, side.agent().export_metadata());
    initiator_ = report.peer;
    side_.emplace(std::move(side));
    return Json{{"metadata", Json::binary({ours.begin(), ours.end()})}};
  }

  Result<Json> fill(std::uint64_t seed) {
    HEADRACE_CLI_CHECK(side_->fill(seed));
    return Json::object();
  }

  Result<Json> check(const Json& message) {
    const Json& pages = message.at("pages");
    const auto pairs =
        choose_pages(pages.at("slots"), pages.at("count"), pages.at("scattered"), message.at("pages_seed"));
    HEADRACE_CLI_TRY(contents, side_->contents());
    return Json{{"wrong", wrong_page(contents, pairs, pages.at("page"), message.at("source_seed"),
                                     message.at("target_seed"))}};
  }

  Result<Json> echo(unsigned rounds, bool spinning) {
    HEADRACE_CLI_CHECK(send_frame(control_, Json{{"begun", true}}));
    Agent& agent = side_->agent();
    while (rounds > 0) {
      std::vector<Notification> come;
      if (spinning) {
        const auto give_up = std::chrono::steady_clock::now() + peer_patience;
        while (come.empty()) {
          HEADRACE_CLI_TRY(taken, agent.take_notifications());
          come = std::move(taken);
          if (come.empty() && std::chrono::steady_clock::now() > give_up)
            return fail(Code::timed_out, "no notification came within {} s", peer_patience.count());
        }
      } else {
        HEADRACE_CLI_TRY(one, agent.wait_notification(peer_patience));
        come.push_back(std::move(one));
      }
      for (const Notification& notification : come) {
        HEADRACE_CLI_CHECK(agent.notify(initiator_, notification.payload));
        --rounds;
      }
    }
    return Json{{"done", true}};
  }

  Result<Json> pong(unsigned rounds) {
    HEADRACE_CLI_CHECK(send_frame(control_, Json{{"begun", true}}));
    for (unsigned i = 0; i < rounds; ++i) {
      std::uint64_t one = 1;
      if (::read(ping_, &one, sizeof one) != sizeof one || ::write(pong_, &one, sizeof one) != sizeof one)
        return fail(Code::internal, "eventfd: {}", system_text());
    }
    return Json{{"done", true}};
  }

  const int control_, ping_, pong_;
  std::optional<BenchSide> side_;
  std::string initiator_;
};

}  // namespace

Result<void> run_bench_peer(int control_fd, int ping_fd, int pong_fd) {
  return BenchPeer(control_fd, ping_fd, pong_fd).serve();
}

}  // namespace headrace::cli
