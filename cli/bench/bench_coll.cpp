// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_coll.hpp"

#include "cli/bench/bench_row.hpp"
#include "cli/bench/coll_bench.hpp"
#include "cli/bench/coll_choices.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>

namespace headrace::cli {
namespace {

constexpr int most_threads_as_ranks = 64;

/// The command line.
struct CollArguments {
  std::string ops = "all_reduce";
  std::string bytes = "8-16M";
  unsigned factor = 8;
  std::string types = "float32";
  std::string reductions = "sum";
  int root = 0;
  std::optional<unsigned> ranks;
  bool processes = false;
  std::string backend;
  std::string device = "cpu";
  std::vector<std::string> hints;
  std::string meeting;
  std::optional<unsigned> iterations;
  double seconds = 0.2;
  bool no_check = false;
  bool graph = false;
  bool registered = false;
  bool json = false;
  std::optional<unsigned> rank;  // of a process that --processes has started
};

// --- reading the command line

Result<std::map<std::string, std::string>> hints_of(const std::vector<std::string>& settings) {
  std::map<std::string, std::string> hints;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos)
      return fail(Code::invalid_argument,
                  "--hint {}: write it as name=value, for example --hint lane_bytes=4MiB", setting);
    hints[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return hints;
}

Result<CollPlan> plan_of(const CollArguments& wanted) {
  CollPlan plan;
  HEADRACE_CLI_TRY(operations, chosen_operations(wanted.ops));
  HEADRACE_CLI_TRY(sizes, chosen_sizes(wanted.bytes, wanted.factor));
  HEADRACE_CLI_TRY(types, chosen_types(wanted.types));
  HEADRACE_CLI_TRY(reductions, chosen_reductions(wanted.reductions));
  HEADRACE_CLI_TRY(hints, hints_of(wanted.hints));
  HEADRACE_CLI_TRY(device, device_from_text(wanted.device));
  const bool gpu = device.kind != Device::Kind::cpu;
  if (wanted.graph && !gpu)
    return fail(Code::invalid_argument, "--graph measures graphs of a GPU: give --device cuda");
  plan.operations = std::move(operations);
  plan.bytes = std::move(sizes);
  plan.types = std::move(types);
  plan.reductions = std::move(reductions);
  plan.hints = std::move(hints);
  plan.root = wanted.root;
  plan.device = wanted.device;
  plan.backend = !wanted.backend.empty() ? wanted.backend : gpu ? "nccl" : "host";
  plan.iterations = wanted.iterations;
  plan.seconds = wanted.seconds;
  plan.check = !wanted.no_check && plan.backend != "fake";  // which moves nothing
  plan.graph = wanted.graph;
  plan.registered = wanted.registered;
  return plan;
}

// --- what rank 0 prints

std::string_view reduction_text(const CollRow& row) {
  return row.operation.reduces ? reduce_op_name(row.reduction) : "none";
}

/// Lines in the form of nccl-tests, each as soon as it is measured.
class CollTable final : public CollReport {
 public:
  CollTable(const CollPlan& plan, std::string how) : plan_(plan), how_(std::move(how)) {}

  void begin(const Comm& comm) override {
    fmt::print("# {} ranks {}, backend {} {} on {}{}{}\n# times of the slowest rank, {}\n", comm.size(), how_,
               comm.backend(), comm.backend_version(), device_text(comm.device()),
               plan_.registered ? ", registered memory" : "", plan_.graph ? ", replays of graphs" : "",
               plan_.check ? "all data compared before and after" : "no data compared");
    fmt::print("#\n#{:>75}{:>33}\n", "out-of-place", "in-place");
    fmt::print("#{:>10}{:>11}{:>14}{:>11}{:>5}", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; ++i) fmt::print("{:>10}{:>8}{:>8}{:>7}", "time", "algbw", "busbw", "#wrong");
    fmt::print("\n#{:>10}{:>11}{:>40}{:>8}{:>8}{:>17}{:>8}{:>8}\n", "(B)", "(elements)", "(us)", "(GB/s)",
               "(GB/s)", "(us)", "(GB/s)", "(GB/s)");
    std::fflush(stdout);
  }

  void row(const CollRow& row) override {
    heading(row);
    fmt::print(" {:>10}{:>11}{:>14}{:>11}{:>5}", row.bytes, row.count, dtype_name(row.dtype),
               reduction_text(row), row.operation.rooted ? row.root : -1);
    for (const auto& figure : {row.apart, row.same}) {
      if (!figure)
        fmt::print("{:>10}{:>8}{:>8}{:>7}", "-", "-", "-", "-");
      else
        fmt::print("{:>10.2f}{:>8.2f}{:>8.2f}{:>7}", figure->seconds * 1e6, row.algorithm_bandwidth(*figure),
                   row.bus_bandwidth(*figure), figure->wrong ? std::to_string(*figure->wrong) : "N/A");
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

  void refused(const CollRow& row, const std::string& why) override {
    heading(row);
    fmt::print("{}\n", wrap(fmt::format("#   not run with {}: {}", dtype_name(row.dtype), why), 4));
    std::fflush(stdout);
  }

 private:
  void heading(const CollRow& row) {
    if (std::exchange(last_, &row.operation) != &row.operation) fmt::print("# {}\n", row.operation.name);
  }

  const CollPlan& plan_;
  const std::string how_;
  const CollOperation* last_ = nullptr;
};

/// The rows of bench/results.
class CollJson final : public CollReport {
 public:
  CollJson(const std::string& command, std::string how) : rows_(command), how_(std::move(how)) {}

  void begin(const Comm& comm) override { backend_ = std::string(comm.backend()); }
  void row(const CollRow& row) override {
    figures(row, row.apart, "");
    figures(row, row.same, "/in-place");
  }
  void refused(const CollRow&, const std::string&) override {}

 private:
  void figures(const CollRow& row, const std::optional<CollFigure>& figure, const char* place) const {
    if (!figure) return;
    const std::string name =
        fmt::format("{}/{}/{}/{}/{}/{}/{}{}", backend_, row.operation.name, dtype_name(row.dtype),
                    reduction_text(row), row.bytes, row.ranks, how_, place);
    const bool checked = figure->wrong == 0U;
    line({"coll-command", name, "time", "us", figure->seconds * 1e6, checked});
    if (row.bytes == 0) return;
    line({"coll-command", name, "algbw", "GB/s", row.algorithm_bandwidth(*figure), checked});
    line({"coll-command", name, "busbw", "GB/s", row.bus_bandwidth(*figure), checked});
  }
  void line(const BenchRow& row) const {
    fmt::print("{}\n", rows_.line(row));
    std::fflush(stdout);
  }

  const RowWriter rows_;
  const std::string how_;  // and what else the case has in its name
  std::string backend_;
};

std::unique_ptr<CollReport> make_coll_report(const CollArguments& wanted, const CollPlan& plan,
                                             const Invocation& invocation, const char* how) {
  if (wanted.json)
    return std::make_unique<CollJson>(
        invocation.command_line,
        fmt::format("{}{}{}", how, wanted.graph ? "/graph" : "", wanted.registered ? "/registered" : ""));
  return std::make_unique<CollTable>(plan, fmt::format("as {}", how));
}

// --- the ranks

/// This process is one of several.
Result<void> run_as_one(const CollArguments& wanted, const Invocation& invocation, const CollPlan& plan,
                        const RankPlace& place) {
  if (plan.root >= place.ranks)
    return fail(Code::invalid_argument, "--root {}: there are {} ranks, from 0", plan.root, place.ranks);
  const auto report = make_coll_report(wanted, plan, invocation, "processes");
  return run_coll_rank(plan, place, *report);
}

Result<void> run_coll(const CollArguments& wanted, const Invocation& invocation) {
  if (!invocation.options.empty())
    return fail(Code::invalid_argument,
                "--option sets options of an agent, and a communicator takes hints: give --hint NAME=VALUE");
  HEADRACE_CLI_TRY(plan, plan_of(wanted));
  const int ranks = static_cast<int>(wanted.ranks.value_or(2));
  if (wanted.rank)
    return run_as_one(wanted, invocation, plan, {static_cast<int>(*wanted.rank), ranks, wanted.meeting});
  if (!wanted.ranks && !wanted.processes) {
    HEADRACE_CLI_TRY(launched, launched_rank(wanted.meeting));
    if (launched) return run_as_one(wanted, invocation, plan, *launched);
  }
  if (!wanted.meeting.empty())
    return fail(Code::invalid_argument,
                "--meeting is for ranks of a launcher, and none has started this "
                "process: leave it out");
  if (plan.root >= ranks)
    return fail(Code::invalid_argument, "--root {}: there are {} ranks, from 0", plan.root, ranks);
  if (wanted.processes) return run_as_processes(ranks);
  const auto report = make_coll_report(wanted, plan, invocation, "threads");
  return run_as_threads(ranks, [&](const RankPlace& place) { return run_coll_rank(plan, place, *report); });
}

std::string operation_names() {
  std::string names;
  for (const CollOperation& operation : coll_operations())
    names.append(names.empty() ? "" : ", ").append(operation.name);
  return wrap("Operations: " + names + ".", 2);
}

void add_case_options(const Command& coll, CollArguments& wanted) {
  coll.add_option("--ops", wanted.ops, "Operations, separated by commas; all: every one")
      .type_name("NAME[,NAME...]")
      .show_default();
  coll.add_option("--bytes", wanted.bytes,
                  "Sizes, as in 8-64M or 8,4K,1M: bytes of the larger one of a rank's input and output")
      .type_name("SIZES")
      .show_default();
  coll.add_option("--factor", wanted.factor, "In a range of sizes each is so many times the one before")
      .type_name("N")
      .check(whole_number(2, 1024))
      .show_default();
  coll.add_option("--type", wanted.types, "Element types, separated by commas; all: every one")
      .type_name("NAME[,NAME...]")
      .show_default();
  coll.add_option("--redop", wanted.reductions, "Reductions, separated by commas; all: every one")
      .type_name("NAME[,NAME...]")
      .show_default();
  coll.add_option("--root", wanted.root, "Root of the operations that have one")
      .type_name("RANK")
      .check(whole_number(0, 4095))
      .show_default();
}

void add_rank_options(const Command& coll, CollArguments& wanted) {
  coll.add_option("--ranks", wanted.ranks, "Ranks that this command runs; default: 2, or those of a launcher")
      .type_name("N")
      .check(whole_number(1, most_threads_as_ranks));
  coll.add_flag("--processes", wanted.processes, "Each rank is a process; default: a thread");
  coll.add_option("--backend", wanted.backend, "What moves the elements; default: host, or nccl on GPUs")
      .type_name("NAME");
  coll.add_option("--device", wanted.device,
                  "Where the elements lie: cpu, or cuda: the ranks take the GPUs in turn")
      .type_name("DEVICE")
      .show_default();
  coll.add_option("--hint", wanted.hints, "Set a hint of the communicator; repeatable")
      .type_name("NAME=VALUE")
      .one_value_a_time();
  coll.add_option("--meeting", wanted.meeting, "Where ranks of a launcher meet, as in file:///tmp/meeting")
      .type_name("PLACE")
      .take_last();
  coll.add_option("--rank", wanted.rank).hide();
}

void add_measuring_options(const Command& coll, CollArguments& wanted) {
  coll.add_option("--iterations", wanted.iterations,
                  "Runs that are timed; default: as many as --seconds allow")
      .type_name("N")
      .check(whole_number(1, 100'000'000));
  coll.add_option("--seconds", wanted.seconds, "Time for each figure")
      .type_name("S")
      .check(real_number(0.001, 3600))
      .show_default();
  coll.add_flag("--no-check", wanted.no_check, "Compare no data");
  coll.add_flag("--graph", wanted.graph, "On GPUs: measure replays of CUDA graphs of the calls");
  coll.add_flag("--registered", wanted.registered,
                "Register the memory of each case: on GPUs backends may then move it without a copy");
  coll.add_flag("--json", wanted.json, "Print one line of JSON for each figure: the rows of bench/results");
}

}  // namespace

void add_bench_coll(const Command& bench, Invocation& invocation) {
  auto wanted = std::make_shared<CollArguments>();
  const Command coll =
      bench.add_subcommand("coll", "Measure operations of communicators, with the columns of nccl-tests");
  add_case_options(coll, *wanted);
  add_rank_options(coll, *wanted);
  add_measuring_options(coll, *wanted);
  coll.footer(
      operation_names() +
      "\nTime: the median over rounds of many calls, on the slowest rank. algbw: size by time. busbw: algbw "
      "times the share\n"
      "of the bytes that a rank must send, as nccl-tests define it. #wrong: elements that differ, in a call "
      "before the\n"
      "measurement and one after it, each on fresh random data. It is a failure (exit code 1) if there is "
      "one.\n"
      "Under torchrun, mpirun and other launchers every process is a rank, and rank 0 prints.\n"
      "--json prints one object a line for each figure: `headrace bench pages --help` explains the fields. "
      "The case is\n"
      "BACKEND/OPERATION/TYPE/REDOP/BYTES/RANKS/threads, or processes, then what else was chosen.\n"
      "Examples:\n"
      "  headrace bench coll                                           all_reduce between two threads\n"
      "  headrace bench coll --ops all --bytes 8,64K,1M --processes    every operation between processes\n"
      "  headrace bench coll --type bfloat16,float8_e4m3fn --redop all --ranks 3\n"
      "  headrace bench coll --device cuda --ranks 2 --graph           NCCL on two GPUs, in graphs\n"
      "  torchrun --nproc-per-node 2 --no-python headrace bench coll --meeting file:///tmp/meeting");
  coll.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return run_coll(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
