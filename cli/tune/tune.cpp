// SPDX-License-Identifier: Apache-2.0
// `headrace tune`: measures the backends between which `auto` chooses, and writes its table.
#include <headrace/comm_tuning.hpp>

#include "cli/bench/coll_choices.hpp"
#include "cli/command.hpp"
#include "cli/common/gpu_count.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/text.hpp"
#include "cli/common/tuning_report.hpp"
#include "cli/tune/tune_bench.hpp"
#include "gpu/device.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

namespace headrace::cli {
namespace {

using TuneJson = nlohmann::ordered_json;

constexpr int most_ranks_to_tune = 16;  // p2p has no more

/// The command line.
struct TuneArguments {
  std::string backends = "p2p,nccl";
  std::string ops = "all";
  std::string bytes = "1K-16M";
  unsigned factor = 4;
  std::string types = "float32";
  std::optional<unsigned> ranks;
  bool processes = false;
  double seconds = 0.05;
  std::string output;
  bool dry_run = false;
  bool json = false;
  std::string meeting;
  std::optional<unsigned> rank;  // of a process that --processes has started
};

// --- reading the command line

Result<std::vector<std::string>> chosen_backends(const std::string& list) {
  const std::vector<std::string> all{"p2p", "nccl"};
  std::vector<std::string> chosen;
  for (const std::string& word : words_of(list)) {
    if (std::ranges::find(all, word) == all.end())
      return fail(Code::invalid_argument, "--backends: auto does not choose \"{}\"; it chooses between {}",
                  word, fmt::join(all, ", "));
    chosen.push_back(word);
  }
  return chosen;
}

Result<std::vector<const CollOperation*>> operations_to_tune(const std::string& list) {
  HEADRACE_CLI_TRY(named, chosen_operations(list));
  std::vector<const CollOperation*> operations;
  for (const CollOperation* const operation : named) {
    if (tuned_operation(operation->name))
      operations.push_back(operation);
    else if (list != "all")
      return fail(Code::invalid_argument,
                  "--ops: auto does not choose by a table for {}: leave it out, or give --ops all",
                  operation->name);
  }
  return operations;
}

Result<TunePlan> tune_plan(const TuneArguments& wanted, int ranks) {
  HEADRACE_CLI_TRY(backends, chosen_backends(wanted.backends));
  HEADRACE_CLI_TRY(operations, operations_to_tune(wanted.ops));
  HEADRACE_CLI_TRY(sizes, chosen_sizes(wanted.bytes, wanted.factor));
  HEADRACE_CLI_TRY(types, chosen_types(wanted.types));
  std::ranges::sort(sizes);
  return TunePlan{std::move(backends), std::move(operations), std::move(sizes),
                  std::move(types),    wanted.seconds,        ranks};
}

// --- what rank 0 prints

/// Lines, those of an operation as soon as all backends have been measured.
class TunePrinter {
 public:
  TunePrinter(const TunePlan& plan, const CommTuningEntry& common, bool quiet) : plan_(plan), quiet_(quiet) {
    if (quiet_) return;
    fmt::print("# {} ranks on {}{}: us of the slowest rank, all data compared\n", plan_.ranks, common.gpu,
               *common.sharing ? ", which share GPUs" : "");
    fmt::print("{:<24}{:>8}{:>12}", "operation", "element", "bytes");
    for (const std::string& backend : plan_.backends) fmt::print("{:>12}", backend);
    fmt::print("{:>12}\n", "fastest");
  }
  void show(const Tuned& tuned) {
    for (; !quiet_ && shown_ < tuned.rows.size(); ++shown_) {
      const TunedRow& row = tuned.rows[shown_];
      fmt::print("{:<24}{:>8}{:>12}", comm_operation_name(row.operation), row.dtype_bytes, row.bytes);
      for (const std::string& backend : plan_.backends) {
        const auto at = row.seconds.find(backend);
        fmt::print("{:>12}", at == row.seconds.end() ? "-" : fmt::format("{:.2f}", at->second * 1e6));
      }
      fmt::print("{:>12}\n", fastest_in(row).value_or("-"));
    }
    std::fflush(stdout);
  }

 private:
  const TunePlan& plan_;
  const bool quiet_;
  std::size_t shown_ = 0;
};

TuneJson json_of(const Tuned& tuned, std::span<const CommTuningEntry> entries, const std::string& path) {
  TuneJson json{{"file", path.empty() ? TuneJson() : TuneJson(path)}, {"rows", TuneJson::array()}};
  for (const TunedRow& row : tuned.rows) {
    TuneJson microseconds = TuneJson::object();
    for (const auto& [backend, seconds] : row.seconds) microseconds[backend] = seconds * 1e6;
    json["rows"].push_back({{"operation", comm_operation_name(row.operation)},
                            {"dtype_bytes", row.dtype_bytes},
                            {"bytes", row.bytes},
                            {"us", std::move(microseconds)},
                            {"fastest", fastest_in(row).value_or("")}});
  }
  json["entries"] = TuneJson::array();
  for (const CommTuningEntry& entry : entries) json["entries"].push_back(tuning_entry_json(entry));
  json["refusals"] = tuned.refusals;
  return json;
}

void print_result(const TuneArguments& wanted, const Tuned& tuned, std::span<const CommTuningEntry> entries,
                  const std::string& path) {
  if (wanted.json) {
    fmt::print("{}\n", json_of(tuned, entries, path).dump(2, ' ', false, TuneJson::error_handler_t::replace));
    return;
  }
  for (const std::string& refusal : tuned.refusals) fmt::print("{}\n", wrap("# not run: " + refusal, 4));
  fmt::print("\n{}\n{}\n", tuning_table(entries).text(),
             path.empty() ? "not written: --dry-run" : fmt::format("written to {}", path));
}

// --- the command

Result<std::string> path_of(const TuneArguments& wanted) {
  return wanted.output.empty() ? comm_tuning_path() : Result<std::string>(wanted.output);
}

/// The entries of the file that is written again.
Result<std::vector<CommTuningEntry>> entries_before(const std::string& path) {
  struct stat entry {};
  if (::stat(path.c_str(), &entry) != 0 && errno == ENOENT) return std::vector<CommTuningEntry>();
  auto old = read_comm_tuning(path);
  if (old) return std::move(old->entries);
  Error error = std::move(old).error();
  error.message += "; or give another --output";
  return error;
}

/// What all entries have: this machine's GPUs and the ranks.
Result<CommTuningEntry> common_entry(const TunePlan& plan) {
  HEADRACE_CLI_TRY(driver, cuda::load_driver());
  HEADRACE_CLI_TRY(devices, gpu::list_devices(driver));
  CommTuningEntry common;
  common.gpu = devices.front().name;
  common.ranks = plan.ranks;
  common.sharing = static_cast<std::size_t>(plan.ranks) > devices.size();
  common.registered = false;
  return common;
}

/// Measures as one rank. Rank 0 prints and writes.
Result<void> tune_rank(const TuneArguments& wanted, const TunePlan& plan, const RankPlace& place) {
  HEADRACE_CLI_TRY(common, common_entry(plan));
  HEADRACE_CLI_TRY(path, path_of(wanted));
  const bool leads = place.rank == 0;
  HEADRACE_CLI_TRY(old,
                   leads && !wanted.dry_run ? entries_before(path) : Result(std::vector<CommTuningEntry>()));
  TunePrinter printer(plan, common, wanted.json || !leads);
  Tuned tuned;
  for (const CollOperation* const operation : plan.operations)
    for (const DType type : plan.types) {
      measure_operation(plan, place, *operation, type, tuned);
      printer.show(tuned);
      if (operation->elements(1, plan.ranks) == 0) break;  // it has no elements
    }
  if (!leads) return {};
  if (tuned.wrong) return std::move(*tuned.wrong).within("nothing was written: a backend does not work here");
  const auto fresh = entries_of(tuned.rows, common, plan.types.size() > 1);
  if (fresh.empty())
    return fail(Code::not_supported, "no backend could be measured: {}", fmt::join(tuned.refusals, "; "));
  const auto entries = merged(fresh, old);
  std::string written;
  if (!wanted.dry_run) {
    HEADRACE_CLI_TRY(file, write_comm_tuning({"", entries}, path));
    written = file;
  }
  print_result(wanted, tuned, entries, written);
  return {};
}

Result<void> run_tune(const TuneArguments& wanted, const Invocation& invocation) {
  if (!invocation.options.empty())
    return fail(Code::invalid_argument,
                "--option sets options of an agent, and tune opens communicators: leave it out");
  const int gpus = count_gpus();
  HEADRACE_CLI_TRY(plan, tune_plan(wanted, static_cast<int>(wanted.ranks.value_or(static_cast<unsigned>(
                                               std::clamp(gpus, 2, most_ranks_to_tune))))));
  if (gpus == 0)
    return fail(
        Code::not_supported,
        "there is no GPU here, and so nothing to choose between: tune measures p2p and nccl between GPUs of "
        "NVIDIA, and needs their driver (libcuda.so.1), a GPU for each rank if possible, and for nccl its "
        "library. On the CPU backend auto is host and reads no table");
  if (!wanted.dry_run) {
    HEADRACE_CLI_TRY(path, path_of(wanted));
    HEADRACE_CLI_CHECK(entries_before(path));  // before other ranks wait for one that fails
  }
  if (wanted.rank)
    return tune_rank(wanted, plan, {static_cast<int>(*wanted.rank), plan.ranks, wanted.meeting});
  if (wanted.processes) return run_as_processes(plan.ranks);
  return run_as_threads(plan.ranks, [&](const RankPlace& place) { return tune_rank(wanted, plan, place); });
}

void add_tune_options(const Command& tune, TuneArguments& wanted) {
  tune.add_option("--backends", wanted.backends, "Backends that are measured")
      .type_name("NAME[,NAME...]")
      .show_default();
  tune.add_option("--ops", wanted.ops, "Operations, separated by commas; all: every one that a table has")
      .type_name("NAME[,NAME...]")
      .show_default();
  tune.add_option("--bytes", wanted.bytes, "Sizes, as in 1K-16M or 8,4K,1M: bytes from one rank to another")
      .type_name("SIZES")
      .show_default();
  tune.add_option("--factor", wanted.factor, "In a range of sizes each is so many times the one before")
      .type_name("N")
      .check(whole_number(2, 1024))
      .show_default();
  tune.add_option("--type", wanted.types, "Element types; of several widths each gets its entries")
      .type_name("NAME[,NAME...]")
      .show_default();
  tune.add_option("--ranks", wanted.ranks,
                  "Ranks, which take the GPUs in turn; default: as many as GPUs, 2 to 16")
      .type_name("N")
      .check(whole_number(1, most_ranks_to_tune));
  tune.add_flag("--processes", wanted.processes, "Each rank is a process; default: a thread");
  tune.add_option("--seconds", wanted.seconds, "Time for each figure")
      .type_name("S")
      .check(real_number(0.001, 3600))
      .show_default();
  tune.add_option("--output", wanted.output, "File to write; default: that which auto reads")
      .type_name("FILE");
  tune.add_flag("--dry-run", wanted.dry_run, "Measure and print, and write nothing");
  tune.add_flag("--json", wanted.json, "Print JSON: rows, entries and the path of the file");
  tune.add_option("--rank", wanted.rank).hide();
  tune.add_option("--meeting", wanted.meeting).hide();
}

}  // namespace

void add_tune(const Command& app, Invocation& invocation) {
  auto wanted = std::make_shared<TuneArguments>();
  const Command tune =
      app.add_subcommand("tune", "Measure on GPUs which backend is faster, and write the table of auto");
  add_tune_options(tune, *wanted);
  tune.footer(
      "Each operation is measured as `headrace bench coll` does it, and all data is compared. Entries of the "
      "file for\n"
      "other GPUs, numbers of ranks and operations stay. A new file is read by communicators that open "
      "later.\n"
      "`headrace doctor --collectives` prints the table.\n"
      "Examples:\n"
      "  headrace tune                                 all operations between all GPUs of this machine\n"
      "  headrace tune --ops all_reduce --ranks 2 --dry-run\n"
      "  headrace tune --processes --output table.json and then HEADRACE_COMM_TUNE=table.json\n"
      "  headrace tune --json --dry-run");
  tune.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return run_tune(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
