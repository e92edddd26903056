// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_fabric.hpp"

#include "cli/bench/fabric_figures.hpp"
#include "cli/bench/fabric_server.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/progress_bar.hpp"
#include "cli/common/text.hpp"

#include <algorithm>
#include <memory>
#include <sstream>

namespace headrace::cli {
namespace {

constexpr std::uint64_t immediates_at_once = 1000;
constexpr const char* round_trip = "round-trip";

/// The command line.
struct FabricArguments {
  FabricSideOptions side;
  std::string server;
  std::string listen;
  std::string ops, sizes, pages, counts;
  double seconds = 0, idle = 0;  // 0: not given
  std::optional<unsigned> iterations, in_flight;
  bool json = false;

  [[nodiscard]] bool measures() const {
    return !ops.empty() || !sizes.empty() || !pages.empty() || !counts.empty() || seconds > 0 || idle > 0 ||
           iterations || in_flight;
  }
};

// --- the cases

constexpr FabricKind kinds[] = {FabricKind::write,      FabricKind::read,    FabricKind::write_pages,
                                FabricKind::read_pages, FabricKind::scatter, FabricKind::immediate};

struct FabricPlan {
  std::vector<FabricCase> cases;
  bool round_trips = false;
};

bool is_paged(FabricKind kind) {
  return kind == FabricKind::write_pages || kind == FabricKind::read_pages || kind == FabricKind::scatter;
}

std::string names_of_ops() {
  std::string names;
  for (const FabricKind kind : kinds) names.append(fabric_kind_name(kind)).append(", ");
  return names + round_trip;
}

Result<std::vector<std::uint64_t>> sizes_of(const std::string& option, const std::string& text) {
  HEADRACE_CLI_TRY(sizes, parse_sizes(text));
  for (const std::uint64_t size : sizes)
    if (size == 0 || size % 8 != 0)
      return fail(Code::invalid_argument, "{} {}: each is a multiple of 8 bytes", option, text);
  return sizes;
}

Result<std::vector<std::uint64_t>> counts_of(const std::string& text) {
  constexpr std::uint64_t most_pages = 1'000'000;
  std::vector<std::uint64_t> counts;
  std::istringstream stream(text);
  for (std::string number; std::getline(stream, number, ',');) {
    if (!is_number_within(number, std::uint64_t{1}, most_pages))
      return fail(Code::invalid_argument, "--count {}: each is a whole number from 1 to {}", text,
                  most_pages);
    counts.push_back(std::stoull(number));
  }
  return counts;
}

Result<FabricPlan> plan_of(const FabricArguments& wanted) {
  const auto given = [](const std::string& text, const char* usual) { return text.empty() ? usual : text; };
  HEADRACE_CLI_TRY(sizes, sizes_of("--size", given(wanted.sizes, "1K,4K,16K,64K,256K,1M,4M,16M,64M")));
  HEADRACE_CLI_TRY(pages, sizes_of("--page", given(wanted.pages, "1K,2K,4K,8K,16K,32K,64K")));
  HEADRACE_CLI_TRY(counts, counts_of(given(wanted.counts, "100,10000")));
  FabricPlan plan;
  std::istringstream names(given(wanted.ops, "write,read,write-pages,read-pages,immediate,round-trip"));
  for (std::string name; std::getline(names, name, ',');) {
    if (name == round_trip) {
      plan.round_trips = true;
      continue;
    }
    const auto kind = std::ranges::find(kinds, name, fabric_kind_name);
    if (kind == std::end(kinds))
      return fail(Code::invalid_argument, "--ops: there is no \"{}\"; there are {}", name, names_of_ops());
    if (*kind == FabricKind::immediate) plan.cases.push_back({*kind, 0, immediates_at_once});
    if (is_paged(*kind)) {
      for (const std::uint64_t count : counts)
        for (const std::uint64_t page : pages) plan.cases.push_back({*kind, page, count});
    } else if (*kind != FabricKind::immediate) {
      for (const std::uint64_t size : sizes) plan.cases.push_back({*kind, size, 1});
    }
  }
  for (FabricCase& each : plan.cases)
    if (each.kind != FabricKind::immediate) each.posts = wanted.in_flight.value_or(1);
  return plan;
}

// --- the client

/// Each kind once, and the barrier. Returns their names.
Result<std::string> verify_all(FabricClient& client) {
  constexpr std::uint64_t page_bytes = 4096, pages = 64, size = 256 << 10;
  for (const FabricKind kind : kinds) {
    const FabricCase verified = kind == FabricKind::immediate ? FabricCase{kind, 0, pages}
                                : is_paged(kind)              ? FabricCase{kind, page_bytes, pages}
                                                              : FabricCase{kind, size, 1};
    if (auto done = client.verify(verified); !done)
      return std::move(done).error().within(fabric_kind_name(kind));
  }
  if (auto done = client.verify_barrier(); !done) return std::move(done).error().within("barrier");
  std::string names;
  for (const FabricKind kind : kinds) names.append(fabric_kind_name(kind)).append(", ");
  return names + "barrier";
}

Result<FabricFigure> measure(FabricClient& client, const FabricCase& wanted, FabricClient::Effort effort) {
  if (wanted.page_bytes == 0) return client.measure(wanted, effort);
  std::optional<ProgressBar> bar;
  const std::string name = fmt::format("{} {}", fabric_kind_name(wanted.kind), size_text(wanted.page_bytes));
  const std::uint64_t bytes = wanted.page_bytes * wanted.count * wanted.posts;
  effort.progress = [&](std::uint64_t done, std::uint64_t all) {
    if (!bar) bar.emplace(wanted.count == 1 ? name : fmt::format("{} x {}", name, wanted.count), all * bytes);
    bar->show(done * bytes);
  };
  return client.measure(wanted, effort);
}

Result<void> run_client(const FabricArguments& wanted, const Invocation& invocation) {
  HEADRACE_CLI_TRY(plan, plan_of(wanted));
  FabricClient::Effort effort;
  if (wanted.seconds > 0) effort.seconds = wanted.seconds;
  effort.iterations = wanted.iterations;
  HEADRACE_CLI_TRY(client, FabricClient::open(wanted.side, wanted.server));
  const auto report = wanted.json ? fabric_rows(invocation.command_line) : fabric_table();
  report->begin(*client);
  HEADRACE_CLI_TRY(names, verify_all(*client));
  report->verified(names);
  for (const FabricCase& each : plan.cases) {
    HEADRACE_CLI_TRY(figure, measure(*client, each, effort));
    report->figure(each, figure);
  }
  if (plan.round_trips) {
    HEADRACE_CLI_TRY(figure, client->round_trips(effort));
    report->round_trips(figure, client->both_spin());
  }
  if (wanted.idle > 0) {
    HEADRACE_CLI_TRY(idle, client->idle(wanted.idle));
    report->idle(idle, wanted.idle);
  }
  return {};
}

Result<void> run_fabric(FabricArguments wanted, const Invocation& invocation) {
  wanted.side.options = invocation.options;
  if (!wanted.server.empty() && !wanted.listen.empty())
    return fail(Code::invalid_argument, "--listen is for the server: leave it out, or the server's address");
  if (!wanted.server.empty()) return run_client(wanted, invocation);
  if (wanted.measures())
    return fail(Code::invalid_argument,
                "without the address of a server this is the server, and what to measure is said to the "
                "client: give GPUS, NICS and the address, as in - 0 192.0.2.1:4711");
  return serve_fabric_bench({wanted.side, wanted.listen, wanted.json});
}

// --- the command line

void add_side_options(const Command& fabric, FabricArguments& wanted) {
  fabric.add_option("GPUS", wanted.side.gpus, "GPUs of this side, as in 0,1; -: host memory")
      .type_name("")
      .show_default();
  fabric.add_option("NICS", wanted.side.nics_per_group, "Network cards for each GPU; 0: all that are near it")
      .type_name("")
      .check(whole_number(0, 64))
      .show_default();
  fabric.add_option("SERVER", wanted.server, "Address that the server has printed; none: this is the server")
      .type_name("");
  fabric
      .add_option("--nics", wanted.side.nics,
                  "Network cards by hand: names, local addresses or \"this host\", as in eth0,eth1; once for "
                  "each GPU")
      .type_name("NAME[,NAME...]")
      .one_value_a_time();
  fabric.add_flag("--spin", wanted.side.spin, "Threads of this side never sleep: a core for each");
  fabric
      .add_option("--listen", wanted.listen,
                  "Where the server waits for clients; default: at its first network card")
      .type_name("HOST:PORT");
}

void add_measured_options(const Command& fabric, FabricArguments& wanted) {
  fabric.add_option("--ops", wanted.ops, "Measure only these: " + names_of_ops()).type_name("NAME[,NAME...]");
  fabric.add_option("--size", wanted.sizes, "Bytes of single writes and reads; default: 1K to 64M")
      .type_name("SIZE[,SIZE...]");
  fabric.add_option("--page", wanted.pages, "Bytes of pages; default: 1K to 64K").type_name("SIZE[,SIZE...]");
  fabric.add_option("--count", wanted.counts, "Pages of one write or read; default: 100,10000")
      .type_name("N[,N...]");
  fabric.add_option("--in-flight", wanted.in_flight, "Posts at once; default: 1")
      .type_name("N")
      .check(whole_number(1, 1024));
  fabric.add_option("--seconds", wanted.seconds, "Time for each figure; default: 0.5")
      .type_name("S")
      .check(real_number(0.001, 3600));
  fabric.add_option("--iterations", wanted.iterations, "Samples of each figure, instead of --seconds")
      .type_name("N")
      .check(whole_number(2, 10'000'000));
  fabric
      .add_option("--idle", wanted.idle,
                  "Then measure for S seconds which share of a core an idle side takes")
      .type_name("S")
      .check(real_number(0.1, 86400));
  fabric.add_flag("--json", wanted.json,
                  "Server: print the address as JSON. Client: one line of JSON for each figure");
}

}  // namespace

void add_bench_fabric(const Command& bench, Invocation& invocation) {
  auto wanted = std::make_shared<FabricArguments>();
  const Command fabric = bench.add_subcommand(
      "fabric", "Measure writes and reads over all network cards, between two processes or machines");
  add_side_options(fabric, *wanted);
  add_measured_options(fabric, *wanted);
  fabric.footer(
      "Start the server first; it prints its address. Both sides must be the same version of Headrace, with "
      "as many GPUs.\n"
      "Anybody who reaches the address can use the server: start it in a network that you trust.\n"
      "Each kind of operation moves random bytes first, and every byte is compared; so before and after each "
      "figure.\n"
      "  mean, deviation, p50, p99  from the first post of --in-flight to the last end; what stands beside "
      "is "
      "by the mean\n"
      "  line                       share of the speed of the network cards that carried; -: it is not "
      "known\n"
      "  op/s                       pages a second; of writes and reads, posts; of immediates, immediates\n"
      "  at counter                 the same mean by the server's counter of immediates; reads have none\n"
      "  eth0, eth1                 below a figure: what each network card carried\n"
      "--json: `headrace bench pages --help` explains the fields. The table is fabric, the case OP/BYTES, "
      "OP/BYTESxPAGES.\n"
      "Examples:\n"
      "  headrace bench fabric                                        the server, on host memory\n"
      "  headrace bench fabric - 0 192.0.2.1:40213                    the client\n"
      "  headrace bench fabric 0,1 2 192.0.2.1:40213                  two GPUs with two network cards each\n"
      "  headrace bench fabric - 0 192.0.2.1:40213 --ops write-pages --page 4K --count 100\n"
      "  headrace bench fabric --nics eth0,eth1                       a server with two network cards by "
      "name");
  fabric.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return run_fabric(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
