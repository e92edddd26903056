// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_moe.hpp"

#include "cli/bench/coll_choices.hpp"
#include "cli/bench/moe_bench.hpp"
#include "cli/bench/moe_report.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/text.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

namespace headrace::cli {
namespace {

/// The command line. Defaults are those of pplx-garden's bench_all_to_all.
struct MoEArguments {
  // ranks
  std::optional<unsigned> ranks, local_ranks, node_rank, nets_per_gpu;
  unsigned ranks_per_node = 0;
  std::string nics;
  bool processes = false;
  std::string meeting;
  unsigned group_size = 1;
  std::optional<unsigned> rank;  // of a process that --processes has started
  // shape
  unsigned experts = 256, top_k = 8;
  std::int64_t hidden = 7168;
  std::optional<unsigned> scales;
  std::string tokens = "128";
  std::optional<unsigned> private_tokens;
  std::string type = "float8_e4m3fn", scale_type = "float32", combine_type = "bfloat16";
  std::string routing = "uniform";
  // measuring
  unsigned warm_up = 10'000, repeats = 10'000;
  double seconds = 10;
  bool check = false, no_check = false;
  bool copies = false;
  std::string device = "cpu";
  unsigned blocks = 0;
  bool graph = false;
  std::string output;
  bool json = false;
};

// --- reading the command line

Result<std::vector<std::int64_t>> token_counts(const std::string& list) {
  std::vector<std::int64_t> counts;
  for (const std::string& word : words_of(list)) {
    if (!is_number_within(word, std::int64_t{1}, moe_most_tokens))
      return fail(Code::invalid_argument, "--tokens {}: each is a whole number from 1 to {}", list,
                  moe_most_tokens);
    counts.push_back(std::stoll(word));
  }
  return counts;
}

Result<DType> type_of(const char* option, const std::string& name) {
  auto type = dtype_from_name(name);
  if (!type) return std::move(type).error().within(option);
  return type;
}

/// What pplx-garden's benchmark can be told, and MoE cannot.
Result<void> refuse_what_is_not_there(const MoEArguments& wanted) {
  if (wanted.nets_per_gpu)
    return fail(
        Code::not_supported,
        "--nets-per-gpu {}: MoE takes network cards by name, as in --nics eth0,eth1, or all that are near: "
        "leave it out",
        *wanted.nets_per_gpu);
  return {};
}

/// All tokens of a MoE are private, which is pplx-garden's word for those that have a slot of their own.
Result<void> check_private_tokens(const MoEArguments& wanted, std::int64_t most_tokens) {
  if (!wanted.private_tokens || *wanted.private_tokens >= most_tokens) return {};
  return fail(Code::not_supported,
              "--private-tokens {}: each token of a rank has a slot, so all {} leave before their ranks know "
              "the routing, and none waits for it: give {} or more, or leave it out",
              *wanted.private_tokens, most_tokens, most_tokens);
}

/// A scale for each 128 elements of 8 bits.
unsigned usual_scales(const MoEArguments& wanted, DType type) {
  return element_bytes(type) == 1 ? static_cast<unsigned>((wanted.hidden + 127) / 128) : 0;
}

Result<MoEPlan> plan_of(const MoEArguments& wanted, const Invocation& invocation, int ranks) {
  HEADRACE_CLI_CHECK(refuse_what_is_not_there(wanted));
  if (wanted.check && wanted.no_check)
    return fail(Code::invalid_argument, "--check and --no-check are given: leave one out");
  MoEPlan plan;
  HEADRACE_CLI_TRY(tokens, token_counts(wanted.tokens));
  HEADRACE_CLI_TRY(choices, chosen_expert_choices(wanted.routing));
  HEADRACE_CLI_TRY(type, type_of("--type", wanted.type));
  HEADRACE_CLI_TRY(scale_type, type_of("--scale-type", wanted.scale_type));
  HEADRACE_CLI_TRY(combine_type, type_of("--combine-type", wanted.combine_type));
  HEADRACE_CLI_TRY(device, device_from_text(wanted.device));
  const bool is_gpu = device.kind != Device::Kind::cpu;
  if (wanted.graph && !is_gpu)
    return fail(Code::invalid_argument, "--graph measures graphs of a GPU: give --device cuda");
  if (wanted.copies && is_gpu)
    return fail(Code::invalid_argument, "--copies is for host memory: leave it out, or --device");
  MoEConfig& config = plan.config;
  config.ranks = ranks;
  config.group_size = static_cast<int>(wanted.group_size);
  config.ranks_per_node = static_cast<int>(wanted.ranks_per_node);
  if (!wanted.nics.empty()) config.nics = words_of(wanted.nics);
  config.experts = static_cast<int>(wanted.experts);
  config.top_k = static_cast<int>(wanted.top_k);
  config.hidden = wanted.hidden;
  config.dtype = type;
  config.combine_dtype = combine_type;
  config.scale_bytes = static_cast<std::int64_t>(wanted.scales.value_or(usual_scales(wanted, type))) *
                       static_cast<std::int64_t>(element_bytes(scale_type));
  config.max_tokens = *std::ranges::max_element(tokens);
  HEADRACE_CLI_CHECK(check_private_tokens(wanted, config.max_tokens));
  config.device = is_gpu ? 0 : -1;  // each rank sets its own
  config.blocks = static_cast<int>(wanted.blocks);
  config.wait_limit = std::chrono::seconds(60);
  HEADRACE_CLI_CHECK(config.check());
  plan.tokens = std::move(tokens);
  plan.choices = std::move(choices);
  plan.warm_up = wanted.warm_up, plan.repeats = wanted.repeats;
  plan.seconds = wanted.seconds;
  plan.checks = wanted.check ? MoEChecks::all : wanted.no_check ? MoEChecks::none : MoEChecks::first_and_last;
  plan.device = wanted.device;
  plan.graph = wanted.graph;
  plan.copies = wanted.copies;
  plan.options = invocation.options;
  return plan;
}

// --- the ranks

struct MoEPlace {
  enum class How : std::uint8_t { threads, processes, one_process, launched } how = How::threads;
  RankPlace first;  ///< that this process runs
  int count = 1;    ///< so many of them
};

/// Which ranks this process runs.
Result<MoEPlace> place_of(const MoEArguments& wanted) {
  const int ranks = static_cast<int>(wanted.ranks.value_or(2));
  if (wanted.rank)
    return MoEPlace{MoEPlace::How::one_process, {static_cast<int>(*wanted.rank), ranks, wanted.meeting}, 1};
  if (wanted.processes) {
    if (wanted.node_rank || wanted.local_ranks)
      return fail(Code::invalid_argument,
                  "--processes runs all ranks here: leave --node-rank and --local-ranks out");
    return MoEPlace{MoEPlace::How::processes, {0, ranks, {}}, ranks};
  }
  if (wanted.local_ranks || wanted.node_rank) {
    if (!wanted.ranks || !wanted.local_ranks || wanted.meeting.empty())
      return fail(
          Code::invalid_argument,
          "--node-rank and --local-ranks say which ranks this command runs, others run elsewhere: give "
          "--ranks, --local-ranks and --init-method, too");
    const int local = static_cast<int>(*wanted.local_ranks);
    const int first = static_cast<int>(wanted.node_rank.value_or(0)) * local;
    if (first + local > ranks)
      return fail(Code::invalid_argument,
                  "--node-rank {} with --local-ranks {} has ranks {} to {}, and there are {}",
                  wanted.node_rank.value_or(0), local, first, first + local - 1, ranks);
    return MoEPlace{MoEPlace::How::threads, {first, ranks, wanted.meeting}, local};
  }
  if (!wanted.ranks) {
    HEADRACE_CLI_TRY(launched, launched_rank(wanted.meeting));
    if (launched) return MoEPlace{MoEPlace::How::launched, *launched, 1};
  }
  if (!wanted.meeting.empty())
    return fail(
        Code::invalid_argument,
        "--init-method is for ranks of several commands: give --local-ranks and --node-rank, too, or leave "
        "it out");
  return MoEPlace{MoEPlace::How::threads, {0, ranks, {}}, ranks};
}

Result<std::unique_ptr<MoEReport>> report_of(const MoEArguments& wanted, const Invocation& invocation,
                                             const MoEPlace& place) {
  const bool is_threads = place.how == MoEPlace::How::threads;
  const MoERun run{is_threads ? "threads" : "processes", invocation.command_line};
  auto report = wanted.json ? moe_rows(run) : moe_table(run);
  if (wanted.output.empty() || place.first.rank != 0) return report;
  return moe_rows_in_file(run, wanted.output, std::move(report));
}

Result<void> run_moe(const MoEArguments& wanted, const Invocation& invocation) {
  HEADRACE_CLI_TRY(place, place_of(wanted));
  HEADRACE_CLI_TRY(plan, plan_of(wanted, invocation, place.first.ranks));
  const bool all_are_threads = place.how == MoEPlace::How::threads && place.count == place.first.ranks;
  if (plan.copies && !all_are_threads)
    return fail(
        Code::invalid_argument,
        "--copies: a thread copies to the memory of all ranks, so all ranks must be threads of this process");
  if (place.how == MoEPlace::How::processes) return run_as_processes(place.count);
  HEADRACE_CLI_TRY(report, report_of(wanted, invocation, place));
  const auto run = [&](const RankPlace& of_rank) { return run_moe_rank(plan, of_rank, *report); };
  if (place.how != MoEPlace::How::threads) return run(place.first);
  return all_are_threads ? run_as_threads(place.count, run) : run_as_threads(place.first, place.count, run);
}

// --- the command line

void add_rank_options(const Command& moe, MoEArguments& wanted) {
  moe.add_option("--ranks,--world-size", wanted.ranks, "Ranks in all; default: 2, or those of a launcher")
      .type_name("N")
      .check(whole_number(1, moe_most_ranks));
  moe.add_flag("--processes", wanted.processes, "Each rank is a process; default: a thread");
  moe.add_option("--local-ranks", wanted.local_ranks, "Ranks that this command runs, others run elsewhere")
      .type_name("N")
      .check(whole_number(1, moe_most_ranks));
  moe.add_option("--node-rank", wanted.node_rank, "The number of this command among those, from 0")
      .type_name("N")
      .check(whole_number(0, moe_most_ranks - 1));
  moe.add_option("--meeting,--init-method", wanted.meeting,
                 "Where ranks of several commands meet, as in tcp://HOST:PORT of rank 0")
      .type_name("PLACE")
      .take_last();
  moe.add_option("--ranks-per-node,--nvlink", wanted.ranks_per_node,
                 "So many ranks in a row map each other's memory, others are reached by network; 0: all")
      .type_name("N")
      .check(whole_number(0, moe_most_ranks))
      .show_default();
  moe.add_option("--nics", wanted.nics, "Network cards of each rank; default: those near its CPU")
      .type_name("NAME[,NAME...]");
  moe.add_option("--nets-per-gpu", wanted.nets_per_gpu, "Network cards by number")
      .type_name("N")
      .check(whole_number(1, 64));
  moe.add_option("--group-size,--dp-size", wanted.group_size, "So many ranks in a row hold the same tokens")
      .type_name("N")
      .check(whole_number(1, moe_most_ranks))
      .show_default();
  moe.add_option("--rank", wanted.rank).hide();
}

void add_shape_options(const Command& moe, MoEArguments& wanted) {
  moe.add_option("--tokens,--max-num-tokens", wanted.tokens, "Tokens of a rank, separated by commas")
      .type_name("N[,N...]")
      .show_default();
  moe.add_option("--private-tokens,--max-private-tokens", wanted.private_tokens,
                 "Tokens of a rank that leave before the routing is known: all of them, so no fewer")
      .type_name("N")
      .check(whole_number(0, moe_most_tokens));
  moe.add_option("--experts,--num-experts", wanted.experts, "Experts of all ranks")
      .type_name("N")
      .check(whole_number(1, moe_most_experts))
      .show_default();
  moe.add_option("--top-k,--num-experts-per-token", wanted.top_k, "Experts of a token")
      .type_name("N")
      .check(whole_number(1, moe_most_top_k))
      .show_default();
  moe.add_option("--hidden,--hidden-dim", wanted.hidden, "Elements of a row")
      .type_name("N")
      .check(whole_number(1, 1 << 24))
      .show_default();
  moe.add_option("--scales,--hidden-dim-scale", wanted.scales,
                 "Scales of a row; default: one for each 128 elements of 8 bits")
      .type_name("N")
      .check(whole_number(0, 1 << 24));
  moe.add_option("--type,--in-dtype", wanted.type, "Type of dispatched rows")
      .type_name("NAME")
      .show_default();
  moe.add_option("--scale-type,--scale-dtype", wanted.scale_type, "Type of scales")
      .type_name("NAME")
      .show_default();
  moe.add_option("--combine-type,--out-dtype", wanted.combine_type, "Type of results and sums")
      .type_name("NAME")
      .show_default();
  moe.add_option("--routing", wanted.routing,
                 "How tokens choose experts, separated by commas; all: every way")
      .type_name("NAME[,NAME...]")
      .show_default();
}

void add_measuring_options(const Command& moe, MoEArguments& wanted) {
  moe.add_option("--warm-up,--num-warmup", wanted.warm_up, "Rounds before those that are measured, at most")
      .type_name("N")
      .check(whole_number(0, 100'000'000))
      .show_default();
  moe.add_option("--repeats,--num-repeats", wanted.repeats, "Rounds that are measured, at most")
      .type_name("N")
      .check(whole_number(1, 100'000'000))
      .show_default();
  moe.add_option("--seconds", wanted.seconds,
                 "Time for the rounds of one case, a tenth of it for those before; 0: no limit")
      .type_name("S")
      .check(real_number(0, 86400))
      .show_default();
  moe.add_flag("--check", wanted.check, "Compare the rows and sums of every round; default: of two");
  moe.add_flag("--no-check", wanted.no_check, "Compare nothing");
  moe.add_flag("--copies", wanted.copies, "Measure plain copies of the same rows in turn");
  moe.add_option("--device", wanted.device,
                 "Where the rows lie: cpu, or cuda: the ranks take the GPUs in turn")
      .type_name("DEVICE")
      .show_default();
  moe.add_option("--blocks", wanted.blocks, "On GPUs: multiprocessors of a launch; 0: as the library chooses")
      .type_name("N")
      .check(whole_number(0, 1024))
      .show_default();
  moe.add_flag("--graph", wanted.graph, "On GPUs: measure replays of CUDA graphs of the calls");
  moe.add_option("--output", wanted.output, "Write the lines of --json to a file, too").type_name("FILE");
  moe.add_flag("--json", wanted.json, "Print one line of JSON for each figure: the rows of bench/results");
}

}  // namespace

void add_bench_moe(const Command& bench, Invocation& invocation) {
  auto wanted = std::make_shared<MoEArguments>();
  const Command moe = bench.add_subcommand("moe", "Measure dispatch and combine of a mixture of experts");
  add_rank_options(moe, *wanted);
  add_shape_options(moe, *wanted);
  add_measuring_options(moe, *wanted);
  moe.footer(
      "Each round has another routing; its ranks begin each operation together, and the slowest one counts.\n"
      "  dispatch, combine           the whole operation, and its halves: send, receive\n"
      "  round-trip                  a dispatch and a combine\n"
      "  dispatch-kernel, ...        on GPUs: what they need for calls that were queued before\n"
      "  host                        CPU time of the calling thread in a call, the mean\n"
      "  GB/s moved                  rows that leave a rank, once for each other rank, by p50\n"
      "  GB/s entries                a row for each entry of a token, its own rank's too, by p50\n"
      "  copy-dispatch, -combine     --copies: the same rows by memcpy, which makes no route and no sum\n"
      "--routing: uniform; zipf: the n-th expert with a chance of 1 / n; k-hot: nine of ten entries go to an "
      "eighth "
      "of\n"
      "the experts; masked: three of ten entries are none.\n"
      "Wrong rows or sums are a failure (exit code 1) that names the first one.\n"
      "The second names of options, and the defaults, are those of pplx-garden's bench_all_to_all.\n"
      "--json: `headrace bench pages --help` explains the fields. The table is moe, the case\n"
      "OPERATION/TOKENSxHIDDEN/EXPERTS/TOP_K/TYPES/ROUTING/RANKS/threads, or processes.\n"
      "Examples:\n"
      "  headrace bench moe                                          two threads, 128 tokens each\n"
      "  headrace bench moe --tokens 1,128,4096 --copies             beside plain copies\n"
      "  headrace bench moe --ranks 4 --processes --routing all\n"
      "  headrace bench moe --nvlink 1 --nics 127.0.0.1              all rows over TCP\n"
      "  headrace bench moe --device cuda --ranks 4 --graph          ranks on GPUs, in graphs\n"
      "  headrace bench moe --world-size 4 --local-ranks 2 --node-rank 1 --init-method tcp://192.0.2.1:4711");
  moe.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return run_moe(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
