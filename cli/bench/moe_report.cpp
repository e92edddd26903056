// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/moe_report.hpp"

#include "cli/bench/bench_row.hpp"
#include "cli/common/text.hpp"

#include <cstdio>
#include <fstream>
#include <functional>
#include <utility>

namespace headrace::cli {
namespace {

MoEPhase phase_at(std::size_t i) { return static_cast<MoEPhase>(i); }

/// The bytes of a phase: those of a dispatch, of a combine, or of both.
MoEBytes bytes_of(MoEPhase phase, const MoEFigures& figures) {
  const MoEBytes both{figures.dispatch.moved + figures.combine.moved,
                      figures.dispatch.entries + figures.combine.entries};
  switch (phase) {
    case MoEPhase::dispatch:
    case MoEPhase::dispatch_kernel:
    case MoEPhase::copy_dispatch:
      return figures.dispatch;
    case MoEPhase::combine:
    case MoEPhase::combine_kernel:
    case MoEPhase::copy_combine:
      return figures.combine;
    case MoEPhase::round_trip:
    case MoEPhase::copy_round_trip:
      return both;
    default:  // a half moves its bytes while the other one waits
      return {};
  }
}

/// Of the copies that a phase is compared with.
const MoETimes* copies_of(MoEPhase phase, const MoEFigures& figures) {
  const auto times = [&](MoEPhase of) { return figures.of(of) ? &*figures.of(of) : nullptr; };
  if (phase == MoEPhase::dispatch) return times(MoEPhase::copy_dispatch);
  if (phase == MoEPhase::combine) return times(MoEPhase::copy_combine);
  return phase == MoEPhase::round_trip ? times(MoEPhase::copy_round_trip) : nullptr;
}

class MoETable final : public MoEReport {
 public:
  explicit MoETable(const MoERun& run) : run_(run) {}

  void begin(const MoEPlan& plan, int ranks) override {
    const MoEConfig& config = plan.config;
    const std::string scales =
        config.scale_bytes == 0 ? "" : fmt::format(" with {} bytes of scales", config.scale_bytes);
    const std::string groups = config.group_size == 1 ? "" : fmt::format(", groups of {}", config.group_size);
    const std::string nodes =
        config.ranks_per_node == 0 ? "" : fmt::format(", {} on a node", config.ranks_per_node);
    fmt::print("# {} ranks as {}{}{}, {} experts, top {}, rows of {} {}{}, sums in {}\n", ranks, run_.how,
               groups, nodes, config.experts, config.top_k, config.hidden, dtype_name(config.dtype), scales,
               dtype_name(config.combine_dtype));
    constexpr std::string_view compared[] = {"nothing compared",
                                             "all rows and sums of the first and the last "
                                             "round compared",
                                             "all rows and sums of each round compared"};
    fmt::print("# times of the slowest rank in us, on {}{}, {}\n", plan.device,
               plan.graph ? ", replays of graphs" : "", compared[static_cast<std::size_t>(plan.checks)]);
    std::fflush(stdout);
  }

  Result<void> figures(const MoEFigures& figures) override {
    fmt::print("#\n# {} tokens, {}, {} rounds\n", figures.tokens, expert_choice_name(figures.choice),
               figures.rounds);
    fmt::print("#{:<17}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}{:>14}\n", "", "mean", "p1", "p50", "p99", "host",
               "GB/s moved", "GB/s entries");
    for (std::size_t i = 0; i < moe_phases; ++i) line(phase_at(i), figures);
    std::fflush(stdout);
    return {};
  }

 private:
  static void line(MoEPhase phase, const MoEFigures& figures) {
    const auto& times = figures.of(phase);
    if (!times) return;
    const auto us = [](double seconds) { return seconds * 1e6; };
    const auto rate = [&](double bytes) {
      return bytes == 0 ? std::string("-") : fmt::format("{:.2f}", bytes / times->p50 / 1e9);
    };
    const MoEBytes bytes = bytes_of(phase, figures);
    fmt::print(" {:<17}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>12}{:>14}\n", moe_phase_name(phase),
               us(times->mean), us(times->p1), us(times->p50), us(times->p99), us(times->host),
               rate(bytes.moved), rate(bytes.entries));
  }

  const MoERun run_;
};

class MoEJson final : public MoEReport {
 public:
  using Write = std::function<Result<void>(const std::string& line)>;
  MoEJson(const MoERun& run, Write write)
      : rows_(run.command_line), how_(run.how), write_(std::move(write)) {}

  void begin(const MoEPlan& plan, int) override {
    const MoEConfig& config = plan.config;
    shape_ = fmt::format("x{}/{}/{}/{}-{}", config.hidden, config.experts, config.top_k,
                         dtype_name(config.dtype), dtype_name(config.combine_dtype));
    if (plan.device != "cpu") how_ += "/" + plan.device;
    if (plan.graph) how_ += "/graph";
    if (config.ranks_per_node != 0) how_ += fmt::format("/nodes-of-{}", config.ranks_per_node);
  }
  Result<void> figures(const MoEFigures& figures) override {
    for (std::size_t i = 0; i < moe_phases; ++i)
      if (figures.times[i]) HEADRACE_CLI_CHECK(lines(phase_at(i), figures, *figures.times[i]));
    return {};
  }

 private:
  Result<void> lines(MoEPhase phase, const MoEFigures& figures, const MoETimes& times) {
    const std::string name = fmt::format("{}/{}{}/{}/{}/{}", moe_phase_name(phase), figures.tokens, shape_,
                                         expert_choice_name(figures.choice), figures.ranks, how_);
    const auto line = [&](const char* metric, const char* unit, double value,
                          const Comparison* against = nullptr) {
      return write_(rows_.line({"moe", name, metric, unit, value, figures.checked, against}));
    };
    const auto us = [](double seconds) { return seconds * 1e6; };
    std::optional<Comparison> against;
    if (const MoETimes* const copies = copies_of(phase, figures))
      against = Comparison{"memcpy of the same rows", us(copies->p50), copies->p50 / times.p50};
    HEADRACE_CLI_CHECK(line("mean_us", "us", us(times.mean)));
    HEADRACE_CLI_CHECK(line("p1_us", "us", us(times.p1)));
    HEADRACE_CLI_CHECK(line("p50_us", "us", us(times.p50), against ? &*against : nullptr));
    HEADRACE_CLI_CHECK(line("p99_us", "us", us(times.p99)));
    HEADRACE_CLI_CHECK(line("host_us", "us", us(times.host)));
    const MoEBytes bytes = bytes_of(phase, figures);
    if (bytes.moved > 0) HEADRACE_CLI_CHECK(line("moved", "GB/s", bytes.moved / times.p50 / 1e9));
    if (bytes.entries > 0) HEADRACE_CLI_CHECK(line("entries", "GB/s", bytes.entries / times.p50 / 1e9));
    return {};
  }

  const RowWriter rows_;
  std::string how_;  // and what else the case has in its name
  const Write write_;
  std::string shape_;
};

/// Tells two reports.
class BothReports final : public MoEReport {
 public:
  BothReports(std::unique_ptr<MoEReport> first, std::unique_ptr<MoEReport> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void begin(const MoEPlan& plan, int ranks) override {
    first_->begin(plan, ranks);
    second_->begin(plan, ranks);
  }
  Result<void> figures(const MoEFigures& figures) override {
    HEADRACE_CLI_CHECK(first_->figures(figures));
    return second_->figures(figures);
  }

 private:
  std::unique_ptr<MoEReport> first_, second_;
};

}  // namespace

std::unique_ptr<MoEReport> moe_table(const MoERun& run) { return std::make_unique<MoETable>(run); }

std::unique_ptr<MoEReport> moe_rows(const MoERun& run) {
  return std::make_unique<MoEJson>(run, [](const std::string& line) -> Result<void> {
    fmt::print("{}\n", line);
    std::fflush(stdout);
    return {};
  });
}

Result<std::unique_ptr<MoEReport>> moe_rows_in_file(const MoERun& run, const std::string& path,
                                                    std::unique_ptr<MoEReport> beside) {
  auto file = std::make_shared<std::ofstream>(path);
  const auto failed = [path] { return fail(Code::invalid_argument, "--output {}: {}", path, system_text()); };
  if (!*file) return failed();
  auto rows = std::make_unique<MoEJson>(run, [file, failed](const std::string& line) -> Result<void> {
    if (!(*file << line << '\n').flush()) return failed();  // a row that is told is written
    return {};
  });
  std::unique_ptr<MoEReport> both = std::make_unique<BothReports>(std::move(beside), std::move(rows));
  return both;
}

}  // namespace headrace::cli
