// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/moe_bench.hpp"

#include "cli/bench/bench_control.hpp"
#include "cli/bench/bench_row.hpp"
#include "cli/bench/moe_copies.hpp"
#include "cli/bench/moe_tokens.hpp"
#include "cli/bench/page_pattern.hpp"
#include "cli/bench/zeroed_memory.hpp"
#include "cli/common/progress_bar.hpp"

#include <headrace/agent.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <span>
#include <utility>

namespace headrace::cli {
namespace {

using MoEClock = std::chrono::steady_clock;

constexpr auto moe_patience = std::chrono::seconds(60);

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

/// The samples of one phase on this rank.
struct PhaseSamples {
  std::vector<double> seconds;
  double host_seconds = 0;
};

/// The memory of one rank for one number of tokens.
struct MoEMemory {
  explicit MoEMemory(const MoEConfig& config)
      : rows(config.output_rows() * config.row_bytes()),
        scales(config.output_rows() * config.scale_bytes),
        results(config.output_rows() * config.combine_row_bytes()),
        sums(config.max_tokens * config.combine_row_bytes()),
        counts(static_cast<std::size_t>(config.local_experts())),
        first_rows(counts.size() + 1) {}
  [[nodiscard]] MoERows output() {
    MoERows out;
    out.rows = rows.data(), out.scales = scales.data();
    out.counts = counts.data(), out.first_rows = first_rows.data();
    return out;
  }
  ZeroedMemory rows, scales, results, sums;
  std::vector<std::int32_t> counts;
  std::vector<std::int64_t> first_rows;
};

/// What a round moves, of one group's tokens, for each of its ranks.
void count_bytes(const MoEConfig& config, const MoERoute& route, MoEFigures& figures) {
  const auto top_k = static_cast<std::size_t>(config.top_k);
  const double row = static_cast<double>(config.row_bytes() + config.scale_bytes);
  const auto sum_row = static_cast<double>(config.combine_row_bytes());
  const double members = config.group_size;
  const int group = config.rank / config.group_size;
  std::uint64_t entries = 0, near = 0, far = 0;  // ranks of tokens, in this group and in others
  for (auto rest = std::span(route.experts); !rest.empty(); rest = rest.subspan(top_k)) {
    std::uint64_t visited = 0;
    for (const std::int64_t expert : rest.first(top_k)) {
      if (expert < 0) continue;
      ++entries;
      int rank = 0;
      while (expert >= config.first_expert(rank + 1)) ++rank;
      if ((visited >> rank & 1) != 0) continue;
      visited |= std::uint64_t{1} << rank;
      ++(rank / config.group_size == group ? near : far);
    }
  }
  // The members of a group send equal shares of its tokens, and all of them get the sums.
  const double near_rows = static_cast<double>(near) * (members - 1) / members;
  figures.dispatch.moved += (near_rows + static_cast<double>(far)) * row / members;
  figures.dispatch.entries += static_cast<double>(entries) * row / members;
  figures.combine.moved +=
      (static_cast<double>(near) * (members - 1) / members + static_cast<double>(far)) * sum_row;
  figures.combine.entries += static_cast<double>(entries) * sum_row / members;
}

/// One number of tokens and one choice of experts.
class MoECase {
 public:
  MoECase(const MoEPlan& plan, MoE& moe, MoEMemory& memory, BenchControl& control, ExpertChoice choice,
          std::uint64_t seed)
      : plan_(plan),
        moe_(moe),
        config_(moe.config()),
        memory_(memory),
        control_(control),
        group_(config_.rank / config_.group_size),
        tokens_(config_, choice, seed),
        rows_(tokens_.rows(group_)),
        scales_(tokens_.scales(group_)) {
    figures_.tokens = config_.max_tokens;
    figures_.choice = choice;
    figures_.ranks = config_.ranks;
    figures_.checked = plan.checks != MoEChecks::none;
  }

  Result<MoEFigures> run() {
    HEADRACE_CLI_TRY(routing, moe_.new_routing());
    routing_ = std::move(routing);
    if (plan_.copies) HEADRACE_CLI_CHECK(exchange_addresses());
    if (figures_.checked) HEADRACE_CLI_CHECK(round(true));
    HEADRACE_CLI_CHECK(rounds(plan_.warm_up, plan_.seconds / 10, nullptr));
    samples_ = {};
    figures_.dispatch = figures_.combine = {};
    std::optional<ProgressBar> bar;
    if (config_.rank == 0) bar.emplace(fmt::format("{} tokens", figures_.tokens), progress_bytes());
    HEADRACE_CLI_CHECK(rounds(plan_.repeats, plan_.seconds, bar ? &*bar : nullptr));
    bar.reset();
    HEADRACE_CLI_CHECK(summarise());
    if (figures_.checked) HEADRACE_CLI_CHECK(round(true));
    return figures_;
  }

 private:
  [[nodiscard]] std::uint64_t progress_bytes() const {
    return static_cast<std::uint64_t>(config_.max_tokens * config_.top_k * config_.row_bytes()) *
           plan_.repeats;
  }
  Result<void> exchange_addresses() {
    const MoEAddresses own{memory_.rows.data(), memory_.scales.data(), memory_.results.data()};
    std::string bytes(sizeof own, '\0');
    std::memcpy(bytes.data(), &own, sizeof own);
    HEADRACE_CLI_TRY(all, control_.gather(bytes));
    copies_.emplace(config_, rows_.data(), scales_.data(), memory_.sums.data(), all);
    return {};
  }

  /// Fewer than `most` when the time is over. All ranks run as many.
  Result<void> rounds(unsigned most, double seconds, ProgressBar* bar) {
    const auto end = MoEClock::now() + std::chrono::duration<double>(seconds);
    for (unsigned i = 0; i < most; ++i) {
      const bool is_over = plan_.seconds > 0 && i > 0 && MoEClock::now() > end;
      HEADRACE_CLI_TRY(over, control_.first(is_over ? 1 : 0));
      if (over != 0) break;
      HEADRACE_CLI_CHECK(round(plan_.checks == MoEChecks::all));
      if (bar != nullptr) bar->show(progress_bytes() / most * (i + 1));
    }
    return {};
  }

  /// Everything once, on a route of its own.
  Result<void> round(bool checks) {
    take_route(++round_);
    std::optional<MoEExpected> expected;
    if (checks || plan_.copies) expected.emplace(config_, tokens_, round_);
    if (checks) expected->fill_results(memory_.results.data());
    const MoEExpected* const compared = checks ? &*expected : nullptr;
    HEADRACE_CLI_CHECK(wholes(compared));
    HEADRACE_CLI_CHECK(halves(compared));
    HEADRACE_CLI_CHECK(round_trip(compared));
    return plan_.copies ? copies(*expected, compared) : Result<void>();
  }
  Result<void> wholes(const MoEExpected* expected) {
    spoil(expected);
    HEADRACE_CLI_CHECK(timed(MoEPhase::dispatch, [&] { return dispatch(); }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    HEADRACE_CLI_CHECK(timed(MoEPhase::combine, [&] { return combine(); }));
    return check_sums(expected);
  }
  Result<void> halves(const MoEExpected* expected) {
    spoil(expected);
    HEADRACE_CLI_CHECK(
        timed(MoEPhase::dispatch_send, [&] { return moe_.dispatch_send(argument(), *routing_); }));
    HEADRACE_CLI_CHECK(timed(MoEPhase::dispatch_receive,
                             [&] { return moe_.dispatch_receive(memory_.output(), *routing_); }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    HEADRACE_CLI_CHECK(
        timed(MoEPhase::combine_send, [&] { return moe_.combine_send(results(), *routing_); }));
    HEADRACE_CLI_CHECK(
        timed(MoEPhase::combine_receive, [&] { return moe_.combine_receive(sums(), *routing_); }));
    return check_sums(expected);
  }
  Result<void> round_trip(const MoEExpected* expected) {
    spoil(expected);
    HEADRACE_CLI_CHECK(timed(MoEPhase::round_trip, [&]() -> Result<void> {
      HEADRACE_CLI_CHECK(dispatch());
      return combine();
    }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    return check_sums(expected);
  }
  Result<void> copies(const MoEExpected& of_round, const MoEExpected* expected) {
    copies_->find(of_round);
    spoil(expected);
    HEADRACE_CLI_CHECK(timed(MoEPhase::copy_dispatch, [&] { return copies_->dispatch(), Result<void>(); }));
    HEADRACE_CLI_CHECK(timed(MoEPhase::copy_combine, [&] { return copies_->combine(), Result<void>(); }));
    HEADRACE_CLI_CHECK(timed(MoEPhase::copy_round_trip, [&] {
      copies_->dispatch();
      copies_->combine();
      return Result<void>();
    }));
    HEADRACE_CLI_CHECK(control_.meet());
    HEADRACE_CLI_CHECK(check_rows(expected));
    return expected == nullptr ? Result<void>() : judge(copies_->wrong_sums(), "copied sums");
  }

  void take_route(std::uint64_t round) {
    route_ = tokens_.route(group_, round);
    count_bytes(config_, route_, figures_);
  }
  [[nodiscard]] MoETokens argument() const {
    MoETokens tokens;
    tokens.count = config_.max_tokens;
    tokens.rows = rows_.data();
    tokens.scales = config_.scale_bytes == 0 ? nullptr : scales_.data();
    tokens.experts = route_.experts.data();
    tokens.weights = route_.weights.data();
    return tokens;
  }
  [[nodiscard]] MoEResults results() const { return {.rows = memory_.results.data()}; }
  [[nodiscard]] MoESums sums() const { return {.rows = memory_.sums.data()}; }
  Result<void> dispatch() { return moe_.dispatch(argument(), memory_.output(), *routing_); }
  Result<void> combine() { return moe_.combine(results(), sums(), *routing_); }

  /// Ranks begin together; each has its own sample.
  template <class Run>
  Result<void> timed(MoEPhase phase, const Run& run) {
    PhaseSamples& samples = samples_[static_cast<std::size_t>(phase)];
    HEADRACE_CLI_CHECK(control_.meet());
    const double host = thread_seconds();
    const auto begin = MoEClock::now();
    HEADRACE_CLI_CHECK(run());
    samples.seconds.push_back(std::chrono::duration<double>(MoEClock::now() - begin).count());
    samples.host_seconds += thread_seconds() - host;
    return {};
  }

  // Of rounds that are compared; null: of another one.
  void spoil(const MoEExpected* expected) {
    if (expected == nullptr) return;
    expected->spoil_rows(memory_.output());
    std::memset(memory_.sums.data(), 0xff,
                static_cast<std::size_t>(config_.max_tokens * config_.combine_row_bytes()));
  }
  Result<void> check_rows(const MoEExpected* expected) {
    if (expected == nullptr) return {};
    return judge(expected->wrong_rows(memory_.output()), "rows");
  }
  Result<void> check_sums(const MoEExpected* expected) {
    if (expected == nullptr) return {};
    return judge(expected->wrong_sums(memory_.sums.data()), "sums");
  }
  /// All ranks end when one has a wrong row.
  Result<void> judge(const MoEWrong& wrong, const char* what) {
    HEADRACE_CLI_TRY(all, control_.sum(wrong.count));
    if (wrong.count > 0)
      return fail(Code::corrupt, "{} {} of rank {} are wrong, {} of all ranks. The first: {}", wrong.count,
                  what, config_.rank, all, wrong.first);
    if (all > 0) return fail(Code::canceled, "{} {} of other ranks are wrong", all, what);
    return {};
  }

  Result<void> summarise() {
    figures_.rounds = static_cast<unsigned>(samples_[0].seconds.size());
    for (std::size_t phase = 0; phase < moe_phases; ++phase) {
      PhaseSamples& samples = samples_[phase];
      if (samples.seconds.empty()) continue;
      HEADRACE_CLI_CHECK(control_.make_largest(samples.seconds));
      HEADRACE_CLI_TRY(host, control_.largest(samples.host_seconds / figures_.rounds));
      const Summary summary(std::move(samples.seconds));
      figures_.times[phase] =
          MoETimes{summary.mean, summary.percentile(1), summary.median(), summary.percentile(99), host};
    }
    for (MoEBytes* const bytes : {&figures_.dispatch, &figures_.combine})
      bytes->moved /= figures_.rounds, bytes->entries /= figures_.rounds;
    return {};
  }

  const MoEPlan& plan_;
  MoE& moe_;
  const MoEConfig& config_;
  MoEMemory& memory_;
  BenchControl& control_;
  const int group_;
  const MoEBenchTokens tokens_;
  const std::vector<std::byte> rows_, scales_;
  std::optional<MoERouting> routing_;
  std::optional<MoECopies> copies_;
  MoERoute route_;
  std::uint64_t round_ = 0;
  std::array<PhaseSamples, moe_phases> samples_;
  MoEFigures figures_;
};

/// Agents that know one another, and a MoE for each number of tokens.
class MoERankBench {
 public:
  MoERankBench(const MoEPlan& plan, const RankPlace& place, MoEReport& report, BenchControl control,
               Agent agent, std::uint64_t seed)
      : plan_(plan),
        place_(place),
        report_(report),
        control_(std::move(control)),
        agent_(std::move(agent)),
        seed_(seed) {}

  Result<void> run() {
    if (place_.rank == 0) report_.begin(plan_, place_.ranks);
    for (const std::int64_t tokens : plan_.tokens) HEADRACE_CLI_CHECK(all_choices(tokens));
    return {};
  }

 private:
  Result<void> all_choices(std::int64_t tokens) {
    MoEConfig config = plan_.config;
    config.name = fmt::format("bench {}", tokens);
    config.rank = place_.rank, config.ranks = place_.ranks;
    config.max_tokens = tokens;
    HEADRACE_CLI_TRY(moe, MoE::open(agent_, config));
    HEADRACE_CLI_CHECK(join(moe));
    MoEMemory memory(config);
    for (const ExpertChoice choice : plan_.choices) {
      HEADRACE_CLI_TRY(figures, MoECase(plan_, moe, memory, control_, choice, seed_).run());
      if (place_.rank == 0) HEADRACE_CLI_CHECK(report_.figures(figures));
    }
    return control_.meet();  // nobody uses a window any more
  }
  Result<void> join(MoE& moe) {
    HEADRACE_CLI_TRY(own, agent_.export_metadata());
    HEADRACE_CLI_TRY(all, control_.gather(own));
    HEADRACE_CLI_TRY(names, control_.gather(agent_.name()));
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (rank != static_cast<std::size_t>(place_.rank))
        HEADRACE_CLI_CHECK(agent_.import_metadata(all[rank]));
    return moe.join(names, moe_patience);
  }

  const MoEPlan& plan_;
  const RankPlace place_;
  MoEReport& report_;
  BenchControl control_;
  Agent agent_;
  const std::uint64_t seed_;
};

}  // namespace

std::string_view moe_phase_name(MoEPhase phase) noexcept {
  constexpr std::array<std::string_view, moe_phases> names{
      "dispatch",        "dispatch-send", "dispatch-receive", "combine",      "combine-send",
      "combine-receive", "round-trip",    "copy-dispatch",    "copy-combine", "copy-round-trip"};
  return names[static_cast<std::size_t>(phase)];
}

Result<void> run_moe_rank(const MoEPlan& plan, const RankPlace& place, MoEReport& report) {
  HEADRACE_CLI_TRY(control, BenchControl::open(place));
  HEADRACE_CLI_TRY(seed, control.first(fresh_seed()));
  AgentOptions options;
  options.options = plan.options;
  HEADRACE_CLI_TRY(agent, Agent::open(fmt::format("bench-{:x}-{}", seed, place.rank), std::move(options)));
  return MoERankBench(plan, place, report, std::move(control), std::move(agent), seed).run();
}

}  // namespace headrace::cli
