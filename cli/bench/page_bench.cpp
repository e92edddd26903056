// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/page_bench.hpp"

#include "cli/bench/usable_cores.hpp"
#include "cli/common/gpu_count.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::seconds(60);
constexpr std::uint64_t singles_in_a_set = 256;
constexpr unsigned rounds_of_a_set = 8;  // after the first round, whose pages are in no cache
constexpr std::uint64_t waking_pages = 64;
constexpr int waking_posts = 20;
constexpr auto waking_time = std::chrono::milliseconds(100);  // until the clocks of a GPU are up
constexpr int makes = 7;  // how often requests are made when they are posted again: samples for a median

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Error request_error(const Request& request, Status status) {
  Error error = request.error();
  if (error.code == Code::ok) return fail(status.code, "post: {}", code_sentence(status.code));
  return error;
}

Result<void> post(Request& request) {
  Status status = request.post();
  if (status.code == Code::would_block) {
    for (const auto give_up = Clock::now() + patience;
         status.code == Code::would_block && Clock::now() < give_up;) {
      request.poll();
      status = request.post();
    }
  }
  if (!status.ok()) return request_error(request, status);
  return {};
}

Result<void> wait(Request& request) {
  if (const Status status = request.wait(patience); !status.ok()) return request_error(request, status);
  return {};
}

/// Posts each request `posts` times, each time after its last post has ended, then waits for all.
Result<void> carry_out(std::span<Request> requests, unsigned posts = 1) {
  for (unsigned number = 0; number < posts; ++number) {
    for (Request& request : requests) {
      if (number > 0) HEADRACE_CLI_CHECK(wait(request));
      HEADRACE_CLI_CHECK(post(request));
    }
  }
  for (Request& request : requests) HEADRACE_CLI_CHECK(wait(request));
  return {};
}

/// Splits the requests over several threads that begin together. Returns the time from the first begin to the
/// last end.
Result<double> carry_out_by(unsigned threads, std::span<Request> requests, unsigned posts) {
  if (threads == 1) {
    const auto begin = Clock::now();
    auto done = carry_out(requests, posts);
    const auto end = Clock::now();
    if (!done) return std::move(done).error();
    return seconds_between(begin, end);
  }
  struct Share {
    std::span<Request> requests;
    Clock::time_point begin, end;
    Result<void> done;
  };
  std::vector<Share> shares(threads);
  for (unsigned t = 0; t < threads; ++t) {
    const std::size_t from = requests.size() * t / threads;
    shares[t].requests = requests.subspan(from, requests.size() * (t + 1) / threads - from);
  }
  std::atomic<unsigned> waiting{threads};
  const auto work = [&waiting, posts](Share& share) {
    waiting.fetch_sub(1);
    while (waiting.load() != 0) std::this_thread::yield();
    share.begin = Clock::now();
    share.done = carry_out(share.requests, posts);
    share.end = Clock::now();
  };
  std::vector<std::thread> others;
  for (unsigned t = 1; t < threads; ++t) others.emplace_back(work, std::ref(shares[t]));
  work(shares[0]);
  for (std::thread& thread : others) thread.join();
  Clock::time_point begin = shares[0].begin, end = shares[0].end;
  for (Share& share : shares) {
    if (!share.done) return std::move(share.done).error();
    begin = std::min(begin, share.begin);
    end = std::max(end, share.end);
  }
  return seconds_between(begin, end);
}

RequestOptions within_patience() {
  RequestOptions options;
  options.timeout = patience;
  return options;
}

Json pages_json(const PageCase& plan, std::uint64_t slots) {
  return {{"page", plan.page_bytes}, {"slots", slots}, {"count", plan.count}, {"scattered", plan.scattered}};
}

}  // namespace

Result<PageBench> PageBench::open(const BenchSetup& here, BenchSetup there) {
  HEADRACE_CLI_TRY(peer, PeerProcess::start());
  if (there.kind == MemoryKind::vram && there.device < 0) there.device = count_gpus() > 1 ? 1 : 0;
  HEADRACE_CLI_TRY(side, BenchSide::open(fmt::format("bench-{}", ::getpid()), here));
  HEADRACE_CLI_TRY(ours, side.agent().export_metadata());
  Json hello = there.json();
  hello["do"] = "open";
  hello["metadata"] = Json::binary({ours.begin(), ours.end()});
  HEADRACE_CLI_TRY(answer, peer.call(hello));
  const auto& theirs = answer.at("metadata").get_binary();
  HEADRACE_CLI_TRY(
      report, side.agent().import_metadata({reinterpret_cast<const char*>(theirs.data()), theirs.size()}));
  HEADRACE_CLI_TRY(remote, side.agent().peer_region(report.peer, "pages"));
  return PageBench(std::move(peer), std::move(side), report.peer, remote);
}

/// Fills the source and the target from their seeds, in both processes at once.
Result<void> PageBench::refill(const PageCase& plan, const Seeds& seeds) {
  const bool reading = plan.op == Op::read;
  HEADRACE_CLI_CHECK(peer_.send({{"do", "fill"}, {"seed", reading ? seeds.source : seeds.target}}));
  auto filled = side_.fill(reading ? seeds.target : seeds.source);
  HEADRACE_CLI_TRY(answer, peer_.receive());  // before checking `filled`: the peer answers in any case
  HEADRACE_CLI_CHECK(std::move(filled));
  return {};
}

Result<void> PageBench::check(const PageCase& plan, const Seeds& seeds, std::uint64_t slots,
                              PageSamples& samples) {
  std::string wrong;
  if (plan.op == Op::read) {
    HEADRACE_CLI_TRY(contents, side_.contents());
    wrong = wrong_page(contents, choose_pages(slots, plan.count, plan.scattered, seeds.pages),
                       plan.page_bytes, seeds.source, seeds.target);
  } else {
    HEADRACE_CLI_TRY(answer, peer_.call({{"do", "check"},
                                         {"pages", pages_json(plan, slots)},
                                         {"pages_seed", seeds.pages},
                                         {"source_seed", seeds.source},
                                         {"target_seed", seeds.target}}));
    wrong = answer.at("wrong").get<std::string>();
  }
  if (!wrong.empty()) return fail(Code::corrupt, "the data that was moved is wrong: {}", wrong);
  ++samples.right;
  return {};
}

bool PageBench::by_gpu() const {
  return side_.region().kind == MemoryKind::vram || remote_kind_ == MemoryKind::vram;
}

Result<PageSamples> PageBench::pages(const PageCase& plan, const Progress& progress) {
  const std::uint64_t slots = side_.region().length_bytes / plan.page_bytes;
  const std::uint64_t shares =
      std::min<std::uint64_t>(std::uint64_t{plan.threads} * plan.in_flight, plan.count);
  if (plan.count > slots || plan.count == 0)
    return fail(Code::invalid_argument,
                "{} pages of {} bytes do not fit the buffer of {} bytes, which holds {}: raise --total or "
                "lower --count",
                plan.count, plan.page_bytes, side_.region().length_bytes, slots);
  Agent& agent = side_.agent();
  HEADRACE_CLI_TRY(local, agent.prepare(UniformPages{side_.region().id, 0, 0, plan.page_bytes, slots}));
  HEADRACE_CLI_TRY(remote, agent.prepare(peer_name_, UniformPages{remote_, 0, 0, plan.page_bytes, slots}));

  Seeds seeds{.source = 0, .target = 0, .pages = fresh_seed()};
  const PagePairs pairs = choose_pages(slots, plan.count, plan.scattered, seeds.pages);
  const std::span<const std::uint32_t> here = plan.op == Op::read ? pairs.to : pairs.from;
  const std::span<const std::uint32_t> there = plan.op == Op::read ? pairs.from : pairs.to;

  PageSamples samples;
  std::vector<Request> requests;
  requests.reserve(shares);
  const auto make = [&]() -> Result<void> {
    requests.clear();
    const auto begin = Clock::now();
    for (std::uint64_t s = 0; s < shares; ++s) {
      const std::uint64_t from = plan.count * s / shares, length = plan.count * (s + 1) / shares - from;
      HEADRACE_CLI_TRY(request,
                       agent.make_request(
                           plan.op, {local, remote, here.subspan(from, length), there.subspan(from, length)},
                           within_patience()));
      requests.push_back(std::move(request));
    }
    samples.make_seconds.push_back(seconds_between(begin, Clock::now()));
    return {};
  };
  // NVLink between idle GPUs starts slowly (0.2 ms between two H200), and filling takes so long that the link
  // becomes idle. So the first pages are moved several times right before a measurement. The check still
  // finds errors: the other pages have not moved before.
  std::optional<Request> waking;
  if (by_gpu()) {
    const std::uint64_t few = std::min(plan.count / 4, waking_pages);
    if (few > 0) {
      HEADRACE_CLI_TRY(
          request,
          agent.make_request(plan.op, {local, remote, here.first(few), there.first(few)}, within_patience()));
      waking = std::move(request);
    }
  }
  HEADRACE_CLI_CHECK(make());
  samples.make_seconds.clear();  // the first one connects, which happens once for a peer
  for (int i = 0; i < (plan.new_requests ? 1 : makes); ++i) HEADRACE_CLI_CHECK(make());
  const unsigned threads = static_cast<unsigned>(std::min<std::uint64_t>(plan.threads, shares));
  for (unsigned i = 0; i < plan.warm_up + plan.iterations; ++i) {
    if (plan.new_requests && i > 0) HEADRACE_CLI_CHECK(make());
    seeds.source = fresh_seed();
    seeds.target = fresh_seed();
    HEADRACE_CLI_CHECK(refill(plan, seeds));
    for (int post = 0; waking && post < waking_posts; ++post) HEADRACE_CLI_CHECK(carry_out({&*waking, 1}));
    HEADRACE_CLI_TRY(seconds, carry_out_by(threads, requests, plan.posts));
    ++samples.transfers;
    if (i >= plan.warm_up) samples.seconds.push_back(seconds);
    HEADRACE_CLI_CHECK(check(plan, seeds, slots, samples));
    progress(i + 1, plan.warm_up + plan.iterations);
  }
  samples.path = requests.front().backend();
  samples.explanation = requests.front().explain();
  return samples;
}

Result<PageSamples> PageBench::single(const PageCase& plan, const Progress& progress) {
  const std::uint64_t slots = side_.region().length_bytes / plan.page_bytes;
  PageCase set = plan;
  set.count = std::min(slots, singles_in_a_set);
  if (slots == 0)
    return fail(Code::invalid_argument,
                "a page of {} bytes does not fit the buffer of {} bytes: raise --total", plan.page_bytes,
                side_.region().length_bytes);
  Agent& agent = side_.agent();
  HEADRACE_CLI_TRY(local, agent.prepare(UniformPages{side_.region().id, 0, 0, plan.page_bytes, slots}));
  HEADRACE_CLI_TRY(remote, agent.prepare(peer_name_, UniformPages{remote_, 0, 0, plan.page_bytes, slots}));

  Seeds seeds{.source = 0, .target = 0, .pages = fresh_seed()};
  const PagePairs pairs = choose_pages(slots, set.count, plan.scattered, seeds.pages);
  const auto& here = plan.op == Op::read ? pairs.to : pairs.from;
  const auto& there = plan.op == Op::read ? pairs.from : pairs.to;
  PageSamples samples;
  std::vector<Request> requests;
  for (std::size_t i = 0; i < set.count; ++i) {
    const auto begin = Clock::now();
    HEADRACE_CLI_TRY(
        request, agent.make_request(
                     plan.op, {local, remote, std::span(here).subspan(i, 1), std::span(there).subspan(i, 1)},
                     within_patience()));
    samples.make_seconds.push_back(seconds_between(begin, Clock::now()));
    requests.push_back(std::move(request));
  }
  const auto one_round = [&requests](std::vector<double>& into) -> Result<void> {
    for (Request& request : requests) {
      const auto begin = Clock::now();
      auto posted = post(request);
      const Status status = posted.ok() ? request.wait(patience) : Status{};
      const auto end = Clock::now();
      if (!posted) return std::move(posted).error();
      if (!status.ok()) return request_error(request, status);
      into.push_back(seconds_between(begin, end));
    }
    return {};
  };
  std::vector<double> warm_up;
  for (bool warm = false; samples.seconds.size() < plan.iterations; warm = true) {
    seeds.source = fresh_seed();
    seeds.target = fresh_seed();
    HEADRACE_CLI_CHECK(refill(set, seeds));
    HEADRACE_CLI_CHECK(one_round(warm ? samples.first_seconds : warm_up));
    ++samples.transfers;
    HEADRACE_CLI_CHECK(check(set, seeds, slots, samples));
    // Keep the GPUs busy, as in production: a GPU that was idle during the filling is slower at first.
    for (const auto begin = Clock::now(); warm && by_gpu() && Clock::now() - begin < waking_time;)
      HEADRACE_CLI_CHECK(one_round(warm_up));
    for (unsigned round = 0; warm && round < rounds_of_a_set; ++round)
      HEADRACE_CLI_CHECK(one_round(samples.seconds));
    ++samples.transfers;
    HEADRACE_CLI_CHECK(check(set, seeds, slots, samples));
    progress(samples.seconds.size(), plan.iterations);
  }
  samples.path = requests.front().backend();
  samples.explanation = requests.front().explain();
  return samples;
}

Result<NotificationSamples> PageBench::notifications(unsigned rounds, bool spinning) {
  const unsigned warm_up = std::min(rounds / 10 + 1, 200U);
  HEADRACE_CLI_TRY(begun, peer_.call({{"do", "echo"}, {"rounds", rounds + warm_up}, {"spinning", spinning}}));
  Agent& agent = side_.agent();
  NotificationSamples samples;
  for (unsigned i = 0; i < rounds + warm_up; ++i) {
    const std::string message = fmt::format("{:08}", i);
    const auto begin = Clock::now();
    HEADRACE_CLI_CHECK(agent.notify(peer_name_, message));
    std::string answer;
    if (spinning) {
      for (bool came = false; !came;) {
        HEADRACE_CLI_TRY(come, agent.take_notification());
        came = come.has_value();
        if (came)
          answer = std::move(come->payload);
        else if (Clock::now() - begin > patience)
          return fail(Code::timed_out, "notification {} was not answered within {} s", i, patience.count());
      }
    } else {
      HEADRACE_CLI_TRY(come, agent.wait_notification(patience));
      answer = std::move(come.payload);
    }
    const auto end = Clock::now();
    if (answer != message)
      return fail(Code::corrupt, "notification \"{}\" came back as \"{}\"", message, answer);
    if (i < warm_up) continue;
    samples.seconds.push_back(seconds_between(begin, end));
    ++samples.right;
  }
  HEADRACE_CLI_TRY(done, peer_.receive());
  return samples;
}

Result<void> PageBench::place(Cores cores) {
  static const std::vector<int> usable = usable_cores();
  const std::size_t wanted = cores == Cores::two ? 2 : 1;
  if (usable.size() < wanted)
    return fail(Code::not_supported, "{} cores are needed, and this process may use {}", wanted,
                usable.size());
  const auto put = [](pid_t who, int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return ::sched_setaffinity(who, sizeof set, &set) == 0;
  };
  if (!put(0, usable.front()) || !put(peer_.id(), usable[wanted - 1]))
    return fail(Code::internal, "bind the two processes to cores: {}", system_text());
  return {};
}

Result<NotificationSamples> PageBench::eventfds(unsigned rounds) {
  const unsigned warm_up = std::min(rounds / 10 + 1, 200U);
  HEADRACE_CLI_TRY(begun, peer_.call({{"do", "pong"}, {"rounds", rounds + warm_up}}));
  NotificationSamples samples;
  for (unsigned i = 0; i < rounds + warm_up; ++i) {
    std::uint64_t one = 1;
    const auto begin = Clock::now();
    if (::write(peer_.ping_fd(), &one, sizeof one) != sizeof one ||
        ::read(peer_.pong_fd(), &one, sizeof one) != sizeof one)
      return fail(Code::internal, "eventfd: {}", system_text());
    if (i >= warm_up) samples.seconds.push_back(seconds_between(begin, Clock::now()));
  }
  HEADRACE_CLI_TRY(done, peer_.receive());
  return samples;
}

}  // namespace headrace::cli
