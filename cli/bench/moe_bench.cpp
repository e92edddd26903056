// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/moe_bench.hpp"

#include "cli/bench/bench_control.hpp"
#include "cli/bench/bench_row.hpp"
#include "cli/bench/coll_gpu.hpp"
#include "cli/bench/coll_memory.hpp"
#include "cli/bench/moe_copies.hpp"
#include "cli/bench/moe_tokens.hpp"
#include "cli/bench/page_pattern.hpp"
#include "cli/common/progress_bar.hpp"

#include <headrace/agent.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
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

constexpr unsigned moe_graph_calls = 20;

/// The memory of one rank for one number of tokens.
struct MoEMemory {
  static Result<MoEMemory> make(const MoEConfig& config, const CollGpu* gpu) {
    const std::int64_t tokens = config.max_tokens, rows = config.output_rows();
    const std::int64_t entries = tokens * config.top_k, experts = config.local_experts();
    MoEMemory made;
    const std::pair<CollMemory*, std::int64_t> parts[] = {
        {&made.tokens, tokens * config.row_bytes()},
        {&made.token_scales, tokens * config.scale_bytes},
        {&made.experts, entries * std::int64_t{sizeof(std::int64_t)}},
        {&made.weights, entries * std::int64_t{sizeof(float)}},
        {&made.rows, rows * config.row_bytes()},
        {&made.scales, rows * config.scale_bytes},
        {&made.counts, experts * std::int64_t{sizeof(std::int32_t)}},
        {&made.first_rows, (experts + 1) * std::int64_t{sizeof(std::int64_t)}},
        {&made.results, rows * config.combine_row_bytes()},
        {&made.sums, tokens * config.combine_row_bytes()}};
    for (const auto& [part, bytes] : parts) {
      HEADRACE_CLI_TRY(memory, CollMemory::make(static_cast<std::size_t>(bytes), gpu));
      *part = std::move(memory);
    }
    return made;
  }
  /// What a dispatch writes.
  [[nodiscard]] MoERows output() const {
    return rows_at([](const CollMemory& memory) { return memory.host().empty() ? nullptr : memory.data(); });
  }
  /// The same on the host.
  [[nodiscard]] MoERows host_output() const {
    return rows_at([](const CollMemory& memory) -> void* { return memory.host().data(); });
  }
  CollMemory tokens, token_scales, experts, weights;           // given
  CollMemory rows, scales, counts, first_rows, results, sums;  // made

 private:
  template <class At>
  [[nodiscard]] MoERows rows_at(const At& at) const {
    MoERows out;
    out.rows = at(rows), out.scales = at(scales);
    out.counts = static_cast<std::int32_t*>(at(counts));
    out.first_rows = static_cast<std::int64_t*>(at(first_rows));
    return out;
  }
};

/// Copies into the memory, and to the GPU if that is its place.
template <class Value>
Result<void> put(const CollMemory& memory, const std::vector<Value>& values) {
  std::ranges::copy(std::as_bytes(std::span(values)), memory.host().begin());
  return memory.upload();
}

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
  MoECase(const MoEPlan& plan, MoE& moe, const CollGpu* gpu, MoEMemory& memory, BenchControl& control,
          ExpertChoice choice, std::uint64_t seed)
      : plan_(plan),
        moe_(moe),
        gpu_(gpu),
        config_(moe.config()),
        memory_(memory),
        control_(control),
        group_(config_.rank / config_.group_size),
        tokens_(config_, choice, seed) {
    figures_.tokens = config_.max_tokens;
    figures_.choice = choice;
    figures_.ranks = config_.ranks;
    figures_.checked = plan.checks != MoEChecks::none;
  }

  Result<MoEFigures> run() {
    HEADRACE_CLI_TRY(routing, moe_.new_routing());
    routing_ = std::move(routing);
    HEADRACE_CLI_CHECK(put(memory_.tokens, tokens_.rows(group_)));
    HEADRACE_CLI_CHECK(put(memory_.token_scales, tokens_.scales(group_)));
    if (plan_.copies) HEADRACE_CLI_CHECK(exchange_addresses());
    if (figures_.checked || plan_.graph) HEADRACE_CLI_CHECK(round(figures_.checked));
    if (plan_.graph) HEADRACE_CLI_CHECK(capture());
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
    const MoEAddresses own{memory_.rows.host().data(), memory_.scales.host().data(),
                           memory_.results.host().data()};
    std::string bytes(sizeof own, '\0');
    std::memcpy(bytes.data(), &own, sizeof own);
    HEADRACE_CLI_TRY(all, control_.gather(bytes));
    copies_.emplace(config_, memory_.tokens.host().data(), memory_.token_scales.host().data(),
                    memory_.sums.host().data(), all);
    return {};
  }

  /// Each graph has many calls on one routing, which changes between replays.
  Result<void> capture() {
    const auto many = [](const auto& call) {
      return [call]() -> Result<void> {
        for (unsigned i = 0; i < moe_graph_calls; ++i) HEADRACE_CLI_CHECK(call());
        return {};
      };
    };
    const std::pair<MoEPhase, std::function<Result<void>()>> wanted[] = {
        {MoEPhase::dispatch, many([this] { return dispatch(); })},
        {MoEPhase::combine, many([this] { return combine(); })},
        {MoEPhase::round_trip, many([this] { return step(); })}};
    // Memory is given and taken while no rank waits for another one on the same GPU.
    HEADRACE_CLI_CHECK(control_.meet());
    for (const auto& [phase, record] : wanted) {
      HEADRACE_CLI_TRY(graph, gpu_->capture(record));
      graphs_[static_cast<std::size_t>(phase)] = std::move(graph);
    }
    return control_.meet();
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
    HEADRACE_CLI_CHECK(take_route(++round_));
    std::optional<MoEExpected> expected;
    if (checks || plan_.copies) expected.emplace(config_, tokens_, round_);
    if (checks) HEADRACE_CLI_CHECK(fill_results(*expected));
    const MoEExpected* const compared = checks ? &*expected : nullptr;
    HEADRACE_CLI_CHECK(wholes(compared));
    if (graphs_[0] == nullptr) HEADRACE_CLI_CHECK(halves(compared));  // graphs have whole calls alone
    HEADRACE_CLI_CHECK(round_trip(compared));
    if (gpu_ != nullptr) HEADRACE_CLI_CHECK(kernels(compared));
    return plan_.copies ? copies(*expected, compared) : Result<void>();
  }
  Result<void> wholes(const MoEExpected* expected) {
    HEADRACE_CLI_CHECK(spoil(expected));
    HEADRACE_CLI_CHECK(timed(MoEPhase::dispatch, [&] { return dispatch(); }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    HEADRACE_CLI_CHECK(timed(MoEPhase::combine, [&] { return combine(); }));
    return check_sums(expected);
  }
  Result<void> halves(const MoEExpected* expected) {
    HEADRACE_CLI_CHECK(spoil(expected));
    HEADRACE_CLI_CHECK(
        timed(MoEPhase::dispatch_send, [&] { return moe_.dispatch_send(argument(), *routing_, stream()); }));
    HEADRACE_CLI_CHECK(timed(MoEPhase::dispatch_receive,
                             [&] { return moe_.dispatch_receive(memory_.output(), *routing_, stream()); }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    HEADRACE_CLI_CHECK(
        timed(MoEPhase::combine_send, [&] { return moe_.combine_send(results(), *routing_, stream()); }));
    HEADRACE_CLI_CHECK(
        timed(MoEPhase::combine_receive, [&] { return moe_.combine_receive(sums(), *routing_, stream()); }));
    return check_sums(expected);
  }
  Result<void> round_trip(const MoEExpected* expected) {
    HEADRACE_CLI_CHECK(spoil(expected));
    HEADRACE_CLI_CHECK(timed(MoEPhase::round_trip, [&] { return step(); }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    return check_sums(expected);
  }
  Result<void> kernels(const MoEExpected* expected) {
    HEADRACE_CLI_CHECK(spoil(expected));
    HEADRACE_CLI_CHECK(
        timed_alone(MoEPhase::dispatch_kernel, MoEPhase::dispatch, [&] { return dispatch(); }));
    HEADRACE_CLI_CHECK(check_rows(expected));
    HEADRACE_CLI_CHECK(timed_alone(MoEPhase::combine_kernel, MoEPhase::combine, [&] { return combine(); }));
    return check_sums(expected);
  }
  Result<void> copies(const MoEExpected& of_round, const MoEExpected* expected) {
    copies_->find(of_round);
    HEADRACE_CLI_CHECK(spoil(expected));
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

  Result<void> take_route(std::uint64_t round) {
    const MoERoute route = tokens_.route(group_, round);
    count_bytes(config_, route, figures_);
    HEADRACE_CLI_CHECK(put(memory_.experts, route.experts));
    return put(memory_.weights, route.weights);
  }
  [[nodiscard]] MoETokens argument() const {
    MoETokens tokens;
    tokens.count = config_.max_tokens;
    tokens.rows = memory_.tokens.data();
    tokens.scales = config_.scale_bytes == 0 ? nullptr : memory_.token_scales.data();
    tokens.experts = memory_.experts.data();
    tokens.weights = static_cast<const float*>(memory_.weights.data());
    return tokens;
  }
  [[nodiscard]] MoEResults results() const { return {.rows = memory_.results.data()}; }
  [[nodiscard]] MoESums sums() const { return {.rows = memory_.sums.data()}; }
  [[nodiscard]] void* stream() const { return gpu_ != nullptr ? gpu_->stream() : nullptr; }
  Result<void> dispatch() { return moe_.dispatch(argument(), memory_.output(), *routing_, stream()); }
  Result<void> combine() { return moe_.combine(results(), sums(), *routing_, stream()); }
  Result<void> step() {
    HEADRACE_CLI_CHECK(dispatch());
    return combine();
  }

  /// Ranks begin together; each has its own sample.
  template <class Run>
  Result<void> timed(MoEPhase phase, const Run& run) {
    PhaseSamples& samples = samples_[static_cast<std::size_t>(phase)];
    const auto& graph = graphs_[static_cast<std::size_t>(phase)];
    const unsigned calls = graph != nullptr ? moe_graph_calls : 1;
    HEADRACE_CLI_CHECK(control_.meet());
    const double host = thread_seconds();
    const auto begin = MoEClock::now();
    HEADRACE_CLI_CHECK(graph != nullptr ? graph->launch() : run());
    const double host_end = thread_seconds();
    if (gpu_ != nullptr) HEADRACE_CLI_CHECK(gpu_->wait());
    const std::chrono::duration<double> taken = MoEClock::now() - begin;
    samples.seconds.push_back(taken.count() / calls);
    samples.host_seconds += (host_end - host) / calls;
    return gpu_ != nullptr ? moe_.check() : Result<void>();
  }

  /// The GPUs begin together, each with what its rank has queued: the calls, or the graph of `whole`.
  template <class Run>
  Result<void> timed_alone(MoEPhase phase, MoEPhase whole, const Run& run) {
    PhaseSamples& samples = samples_[static_cast<std::size_t>(phase)];
    const auto& graph = graphs_[static_cast<std::size_t>(whole)];
    const unsigned calls = graph != nullptr ? moe_graph_calls : 1;
    const auto queue = [&]() -> Result<void> {
      const double begin = thread_seconds();
      HEADRACE_CLI_CHECK(graph != nullptr ? graph->launch() : run());
      samples.host_seconds += (thread_seconds() - begin) / calls;
      return {};
    };
    HEADRACE_CLI_CHECK(control_.meet());  // streams may share a queue of the GPU: none is held up before
    HEADRACE_CLI_TRY(taken, gpu_->time_alone(queue, [&] { return control_.meet(); }));
    samples.seconds.push_back(std::chrono::duration<double>(taken).count() / calls);
    return moe_.check();
  }

  Result<void> fill_results(const MoEExpected& expected) {
    expected.fill_results(memory_.results.host().data());
    return memory_.results.upload(used_rows(expected) *
                                  static_cast<std::size_t>(config_.combine_row_bytes()));
  }
  /// Rows of the output that this round has.
  [[nodiscard]] std::size_t used_rows(const MoEExpected& expected) const {
    return expected.rows_of(config_.rank).size();
  }

  // Of rounds that are compared; null: of another one.
  Result<void> spoil(const MoEExpected* expected) {
    if (expected == nullptr) return {};
    expected->spoil_rows(memory_.host_output());
    std::ranges::fill(memory_.sums.host(), std::byte{0xff});
    const std::size_t rows = used_rows(*expected);
    HEADRACE_CLI_CHECK(memory_.rows.upload(rows * static_cast<std::size_t>(config_.row_bytes())));
    HEADRACE_CLI_CHECK(memory_.scales.upload(rows * static_cast<std::size_t>(config_.scale_bytes)));
    return memory_.sums.upload();
  }
  Result<void> check_rows(const MoEExpected* expected) {
    if (expected == nullptr) return {};
    const std::size_t rows = used_rows(*expected);
    HEADRACE_CLI_CHECK(memory_.rows.download(rows * static_cast<std::size_t>(config_.row_bytes())));
    HEADRACE_CLI_CHECK(memory_.scales.download(rows * static_cast<std::size_t>(config_.scale_bytes)));
    HEADRACE_CLI_CHECK(memory_.counts.download());
    HEADRACE_CLI_CHECK(memory_.first_rows.download());
    return judge(expected->wrong_rows(memory_.host_output()), "rows");
  }
  Result<void> check_sums(const MoEExpected* expected) {
    if (expected == nullptr) return {};
    HEADRACE_CLI_CHECK(memory_.sums.download());
    return judge(expected->wrong_sums(memory_.sums.host().data()), "sums");
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
  const CollGpu* const gpu_;  // null: host memory
  const MoEConfig& config_;
  MoEMemory& memory_;
  BenchControl& control_;
  const int group_;
  const MoEBenchTokens tokens_;
  std::optional<MoERouting> routing_;
  std::optional<MoECopies> copies_;
  std::array<std::unique_ptr<CollGraph>, moe_phases> graphs_;
  std::uint64_t round_ = 0;
  std::array<PhaseSamples, moe_phases> samples_;
  MoEFigures figures_;
};

/// Agents that know one another, and a MoE for each number of tokens.
class MoERankBench {
 public:
  MoERankBench(const MoEPlan& plan, const RankPlace& place, MoEReport& report, BenchControl control,
               std::unique_ptr<CollGpu> gpu, Agent agent, std::uint64_t seed)
      : plan_(plan),
        place_(place),
        report_(report),
        control_(std::move(control)),
        gpu_(std::move(gpu)),
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
    config.device = gpu_ != nullptr ? gpu_->ordinal() : -1;
    HEADRACE_CLI_TRY(memory, MoEMemory::make(config, gpu_.get()));
    HEADRACE_CLI_TRY(moe, MoE::open(agent_, config));
    HEADRACE_CLI_CHECK(join(moe));
    for (const ExpertChoice choice : plan_.choices) {
      HEADRACE_CLI_TRY(figures, MoECase(plan_, moe, gpu_.get(), memory, control_, choice, seed_).run());
      HEADRACE_CLI_CHECK(
          control_.meet());  // before it frees memory: the driver may wait for other ranks' launches
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
  std::unique_ptr<CollGpu> gpu_;  // its stream outlives the MoE
  Agent agent_;
  const std::uint64_t seed_;
};

}  // namespace

std::string_view moe_phase_name(MoEPhase phase) noexcept {
  constexpr std::array<std::string_view, moe_phases> names{
      "dispatch",       "dispatch-send",   "dispatch-receive", "combine",
      "combine-send",   "combine-receive", "round-trip",       "dispatch-kernel",
      "combine-kernel", "copy-dispatch",   "copy-combine",     "copy-round-trip"};
  return names[static_cast<std::size_t>(phase)];
}

namespace {

Result<std::unique_ptr<CollGpu>> gpu_of_rank(const MoEPlan& plan, int rank) {
  HEADRACE_CLI_TRY(name, device_of_rank(plan.device, rank));
  HEADRACE_CLI_TRY(device, device_from_text(name));
  if (device.kind == Device::Kind::cpu) return std::unique_ptr<CollGpu>();
  HEADRACE_CLI_TRY(driver, cuda::load_driver());
  return CollGpu::open(driver, device.index);
}

}  // namespace

Result<void> run_moe_rank(const MoEPlan& plan, const RankPlace& place, MoEReport& report) {
  HEADRACE_CLI_TRY(control, BenchControl::open(place));
  HEADRACE_CLI_TRY(seed, control.first(fresh_seed()));
  AgentOptions options;
  options.options = plan.options;
  HEADRACE_CLI_TRY(gpu, gpu_of_rank(plan, place.rank));
  HEADRACE_CLI_TRY(agent, Agent::open(fmt::format("bench-{:x}-{}", seed, place.rank), std::move(options)));
  return MoERankBench(plan, place, report, std::move(control), std::move(gpu), std::move(agent), seed).run();
}

}  // namespace headrace::cli
