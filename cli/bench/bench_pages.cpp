// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_pages.hpp"

#include "cli/bench/bench_row.hpp"
#include "cli/bench/page_bench.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/progress_bar.hpp"
#include "cli/common/table.hpp"
#include "cli/common/text.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

namespace headrace::cli {
namespace {

constexpr std::uint64_t most_pages = 16384;

/// The command line.
struct BenchArguments {
  std::string backend = "auto";
  std::string kinds = "dram-dram";
  std::vector<int> devices;
  bool allocated = false;
  std::string pages;
  std::string total = "256M";
  std::optional<std::uint64_t> count;
  std::string op = "read";
  unsigned threads = 1;
  unsigned in_flight = 1;
  unsigned posts = 1;
  bool random = false;  // the default; the flag only states it
  bool sequential = false;
  std::optional<unsigned> iterations;
  unsigned warm_up = 3;
  bool new_requests = false;
  bool single = false;
  bool notifications = false;
  std::optional<unsigned> streams;
  bool explain = false;
  bool json = false;

  [[nodiscard]] std::vector<Op> ops() const {
    if (op == "both") return {Op::read, Op::write};
    return {op == "read" ? Op::read : Op::write};
  }
};

std::string_view op_name(Op op) { return op == Op::read ? "read" : "write"; }

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); }
std::string microseconds(double seconds) { return fmt::format("{:.2f} us", seconds * 1e6); }

class Runner {
 public:
  Runner(const BenchArguments& wanted, const Invocation& invocation)
      : wanted_(wanted), options_(invocation.options), rows_(invocation.command_line) {}

  Result<void> run() {
    HEADRACE_CLI_TRY(setup, set_up());
    const BenchSetup there = far_side(setup);
    if (wanted_.allocated && !setup.allocated && !there.allocated)
      return fail(Code::invalid_argument, "--allocated needs dram on one side: memory of GPUs is registered");
    if (wanted_.notifications) {
      HEADRACE_CLI_TRY(bench, PageBench::open(setup, there));
      return round_trips(bench);
    }
    const std::string sizes = !wanted_.pages.empty() ? wanted_.pages
                              : wanted_.single       ? "64,4K"
                                                     : "4K,16K,64K,256K,1M,16M";
    HEADRACE_CLI_TRY(pages, parse_sizes(sizes));
    // A default size that is larger than --total is left out.
    if (wanted_.pages.empty())
      std::erase_if(pages, [&](std::uint64_t page) { return page > setup.buffer_bytes; });
    for (const std::uint64_t page : pages)
      if (page == 0 || page % 8 != 0 || page > setup.buffer_bytes)
        return fail(Code::invalid_argument,
                    "--page {}: a page must be a multiple of 8 bytes and at most --total ({} bytes)", page,
                    setup.buffer_bytes);
    HEADRACE_CLI_TRY(bench, PageBench::open(setup, there));
    if (wanted_.single) return singles(bench, pages);
    return many(bench, pages);
  }

 private:
  Result<BenchSetup> set_up() {
    BenchSetup setup;
    setup.options = options_;
    setup.kind = here();
    setup.allocated = wanted_.allocated && setup.kind == MemoryKind::dram;
    if (!wanted_.devices.empty()) setup.device = wanted_.devices.front();
    if (wanted_.backend != "auto") setup.backends = {wanted_.backend};
    if (wanted_.streams) setup.options["tcp.sockets"] = std::to_string(*wanted_.streams);
    HEADRACE_CLI_TRY(total, parse_size(wanted_.total));
    setup.buffer_bytes = wanted_.notifications ? 4096 : total / 8 * 8;
    if (setup.buffer_bytes == 0)
      return fail(Code::invalid_argument, "--total {}: it must be at least 8 bytes", wanted_.total);
    return setup;
  }

  [[nodiscard]] BenchSetup far_side(BenchSetup setup) const {
    setup.kind = there();
    setup.allocated = wanted_.allocated && setup.kind == MemoryKind::dram;
    setup.device = wanted_.devices.size() > 1 ? wanted_.devices[1] : -1;
    return setup;
  }

  [[nodiscard]] MemoryKind here() const { return kind_of(wanted_.kinds.substr(0, wanted_.kinds.find('-'))); }
  [[nodiscard]] MemoryKind there() const {
    return kind_of(wanted_.kinds.substr(wanted_.kinds.find('-') + 1));
  }
  static MemoryKind kind_of(std::string_view name) {
    return name == "vram" ? MemoryKind::vram : MemoryKind::dram;
  }

  /// The table of bench/results that a case belongs to.
  [[nodiscard]] std::string table_name(const std::string& path) const {
    const int gpus = (here() == MemoryKind::vram ? 1 : 0) + (there() == MemoryKind::vram ? 1 : 0);
    if (path == "tcp") return gpus > 0 ? "tcp-gpu" : "tcp-cpu";
    return gpus == 0 ? "pages-cpu" : gpus == 2 ? "pages-gpu" : "pages-host";
  }

  [[nodiscard]] PageCase plan(Op op, std::uint64_t page) const {
    return {.op = op,
            .page_bytes = page,
            .count = 1,
            .scattered = !wanted_.sequential,
            .threads = wanted_.threads,
            .in_flight = wanted_.in_flight,
            .posts = wanted_.posts,
            .new_requests = wanted_.new_requests,
            .warm_up = wanted_.warm_up,
            .iterations = wanted_.iterations.value_or(wanted_.single ? 4096 : 15)};
  }

  /// "vram<-dram".
  [[nodiscard]] std::string direction(Op op) const {
    return fmt::format("{}{}{}", kind_name(here()), op == Op::read ? "<-" : "->", kind_name(there()));
  }

  /// The beginning of the case's name, as the tables of bench/results spell it: "allocated/read/",
  /// "vram<-dram/".
  [[nodiscard]] std::string prefix(Op op) const {
    if (here() != there()) return fmt::format("{}{}/", wanted_.allocated ? "allocated/" : "", direction(op));
    return fmt::format("{}{}/", wanted_.allocated ? "allocated/" : "", op_name(op));
  }

  Result<void> many(PageBench& bench, const std::vector<std::uint64_t>& pages) {
    Table table({{"op"},
                 {"page", Table::Align::right},
                 {"pages", Table::Align::right},
                 {"moved", Table::Align::right},
                 {"median", Table::Align::right},
                 {"mean", Table::Align::right},
                 {"min", Table::Align::right},
                 {"GB/s", Table::Align::right},
                 {"make", Table::Align::right},
                 {"path"}});
    std::string explanations;
    for (const Op op : wanted_.ops()) {
      for (const std::uint64_t page : pages) {
        PageCase wanted = plan(op, page);
        HEADRACE_CLI_TRY(total, parse_size(wanted_.total));
        wanted.count = wanted_.count.value_or(std::min(total / page, most_pages));
        const std::uint64_t bytes = wanted.count * page * wanted.posts;
        ProgressBar bar(fmt::format("{} {} x {}", op_name(op), size_text(page), wanted.count),
                        (wanted.warm_up + wanted.iterations) * bytes);
        HEADRACE_CLI_TRY(
            samples, bench.pages(wanted, [&](std::uint64_t done, std::uint64_t) { bar.show(done * bytes); }));
        bar.clear();
        const Summary time(std::move(samples.seconds)), make(std::move(samples.make_seconds));
        const double rate = static_cast<double>(bytes) / time.median() / 1e9;
        table.add({std::string(op_name(op)), size_text(page), std::to_string(wanted.count),
                   amount_text(bytes), milliseconds(time.median()), milliseconds(time.mean),
                   milliseconds(time.least), fmt::format("{:.2f}", rate), microseconds(make.median()),
                   samples.path});
        explanations +=
            fmt::format("{} {} x {}: {}\n", op_name(op), size_text(page), wanted.count, samples.explanation);
        if (wanted_.json) {
          const bool tcp = samples.path == "tcp" && wanted_.streams;
          const std::string where = table_name(samples.path);
          std::string name =
              !tcp ? fmt::format("{}{}x{}", prefix(op), page, wanted.count)
              : where == "tcp-gpu"
                  ? fmt::format("{}/{}/{}", direction(op), page, *wanted_.streams)
                  : fmt::format("{}{}/{}", op == Op::read ? "" : "write/", page, *wanted_.streams);
          if (wanted.posts > 1) name += fmt::format("/{}-posts", wanted.posts);
          row({where, name, "GB/s", "GB/s", rate, samples.checked()});
          row({where, name, "make_us", "us", make.median() * 1e6, false});  // nothing moves in this time
        }
      }
    }
    const BenchArguments& w = wanted_;
    return finish(
        table, explanations,
        fmt::format(
            "{} memory, {} a side, {} pages, {} thread{}, {} request{} in flight, {}{}; {} iterations, all "
            "data compared after each",
            w.allocated ? "allocated" : "registered", w.total, w.sequential ? "sequential" : "scattered",
            w.threads, w.threads == 1 ? "" : "s", w.in_flight, w.in_flight == 1 ? "" : "s",
            w.new_requests ? "new each time" : "posted again each time",
            w.posts == 1 ? "" : fmt::format(", {} times in a row", w.posts), plan(Op::read, 8).iterations));
  }

  Result<void> singles(PageBench& bench, const std::vector<std::uint64_t>& pages) {
    Table table({{"op"},
                 {"page", Table::Align::right},
                 {"p50", Table::Align::right},
                 {"p99", Table::Align::right},
                 {"mean", Table::Align::right},
                 {"min", Table::Align::right},
                 {"first", Table::Align::right},
                 {"make", Table::Align::right},
                 {"path"}});
    std::string explanations;
    for (const Op op : wanted_.ops()) {
      for (const std::uint64_t page : pages) {
        const PageCase wanted = plan(op, page);
        ProgressBar bar(fmt::format("{} one {}", op_name(op), size_text(page)), wanted.iterations * page);
        HEADRACE_CLI_TRY(
            samples, bench.single(wanted, [&](std::uint64_t done, std::uint64_t) { bar.show(done * page); }));
        bar.clear();
        const Summary time(std::move(samples.seconds)), first(std::move(samples.first_seconds)),
            make(std::move(samples.make_seconds));
        table.add({std::string(op_name(op)), size_text(page), microseconds(time.median()),
                   microseconds(time.percentile(99)), microseconds(time.mean), microseconds(time.least),
                   microseconds(first.median()), microseconds(make.median()), samples.path});
        explanations += fmt::format("{} one {}: {}\n", op_name(op), size_text(page), samples.explanation);
        if (wanted_.json) {
          const std::string where = table_name(samples.path);
          const std::string kinds = here() != there() ? wanted_.kinds + "/" : "";
          const std::string of = where == "tcp-gpu" && here() == there() ? "vram/" : "";
          const std::string name = fmt::format("{}{}single/{}{}{}", wanted_.allocated ? "allocated/" : "",
                                               kinds, of, op == Op::read ? "" : "write/", page);
          row({where, name, "p50_us", "us", time.median() * 1e6, samples.checked()});
          row({where, name, "p99_us", "us", time.percentile(99) * 1e6, samples.checked()});
          row({where, name, "first_p50_us", "us", first.median() * 1e6, samples.checked()});
          row({where, name, "make_us", "us", make.median() * 1e6, false});
        }
      }
    }
    const bool gpus = here() == MemoryKind::vram || there() == MemoryKind::vram;
    return finish(
        table, explanations,
        fmt::format(
            "{} memory, one page a request, one request at a time, {} times: rounds of 256 requests, eight "
            "rounds between two fillings of the memory, all data compared before and after them{}. Column "
            "first: the round right after a filling, when no page is in a cache{}",
            wanted_.allocated ? "allocated" : "registered", plan(Op::read, 8).iterations,
            gpus ? "; before them the GPUs are kept busy for 100 ms" : "",
            gpus ? " and the GPUs have been idle" : ""));
  }

  struct Asleep {
    Summary notification, eventfd;
    bool checked;
  };
  /// Measures both in turn, so that load and clock rates of the machine are the same for both.
  static Result<Asleep> asleep(PageBench& bench, PageBench::Cores cores, unsigned rounds) {
    HEADRACE_CLI_CHECK(bench.place(cores));
    std::vector<double> ours, bare;
    bool checked = true;
    constexpr unsigned turns = 8;
    for (unsigned turn = 0; turn < turns; ++turn) {
      HEADRACE_CLI_TRY(eventfds, bench.eventfds(rounds / turns + 1));
      HEADRACE_CLI_TRY(sleeping, bench.notifications(rounds / turns + 1, false));
      bare.insert(bare.end(), eventfds.seconds.begin(), eventfds.seconds.end());
      ours.insert(ours.end(), sleeping.seconds.begin(), sleeping.seconds.end());
      checked = checked && sleeping.checked();
    }
    return Asleep{Summary(std::move(ours)), Summary(std::move(bare)), checked};
  }

  Result<void> round_trips(PageBench& bench) {
    const unsigned rounds = wanted_.iterations.value_or(4096);
    HEADRACE_CLI_TRY(spinning, bench.notifications(rounds, true));
    const Summary spin(spinning.seconds);
    Table table({{"round trip"},
                 {"p50", Table::Align::right},
                 {"p99", Table::Align::right},
                 {"mean", Table::Align::right},
                 {"min", Table::Align::right}});
    const auto add = [&](const std::string& name, const Summary& time) {
      table.add({name, microseconds(time.median()), microseconds(time.percentile(99)),
                 microseconds(time.mean), microseconds(time.least)});
    };
    add("notification, both processes poll", spin);
    if (wanted_.json) {
      row({"misc", "notification/spinning", "p50_us", "us", spin.median() * 1e6, spinning.checked()});
      row({"misc", "notification/spinning", "p99_us", "us", spin.percentile(99) * 1e6, spinning.checked()});
    }
    for (const auto& [cores, where] :
         {std::pair(PageBench::Cores::one, "one core"), std::pair(PageBench::Cores::two, "two cores")}) {
      auto slept = asleep(bench, cores, rounds);
      if (!slept && slept.code() == Code::not_supported) continue;  // the machine has one core
      if (!slept) return std::move(slept).error();
      add(fmt::format("notification, both processes wait, on {}", where), slept->notification);
      add(fmt::format("eventfd alone, both processes sleep, on {}", where), slept->eventfd);
      if (!wanted_.json) continue;
      const double ours = slept->notification.median(), bare = slept->eventfd.median();
      const Comparison against{"eventfd ping-pong", bare * 1e6, bare / ours};
      const std::string name =
          cores == PageBench::Cores::one ? "notification/asleep_one_core" : "notification/asleep_two_cores";
      row({"misc", name, "p50_us", "us", ours * 1e6, slept->checked, &against});
      row({"misc", name, "p99_us", "us", slept->notification.percentile(99) * 1e6, slept->checked});
    }
    return finish(table, {}, fmt::format("two processes, {} round trips, payloads compared", rounds));
  }

  void row(const BenchRow& row) const { fmt::print("{}\n", rows_.line(row)); }

  Result<void> finish(const Table& table, const std::string& explanations, const std::string& how) const {
    if (wanted_.json) return {};
    fmt::print("{}\n{}", wrap(how), table.text());
    if (wanted_.explain) fmt::print("\n{}", wrap(explanations));
    return {};
  }

  const BenchArguments& wanted_;
  const std::map<std::string, std::string> options_;
  const RowWriter rows_;
};

}  // namespace

void add_bench_pages(const Command& bench, Invocation& invocation) {
  auto wanted = std::make_shared<BenchArguments>();
  const Command pages =
      bench.add_subcommand("pages", "Measure how fast pages move between two processes of this machine");
  pages.add_option("--backend", wanted->backend, "Backend to use; auto: the best that is available")
      .type_name("NAME")
      .show_default();
  pages
      .add_option("--kinds", wanted->kinds,
                  "Kinds of memory in this process and in the other one, as in vram-dram")
      .type_name("KINDS")
      .check(one_of({"dram-dram", "vram-vram", "vram-dram", "dram-vram"}))
      .show_default();
  pages
      .add_option("--devices", wanted->devices,
                  "GPU of this process and GPU of the other one, as in 0,1; default: the first two")
      .type_name("N[,N]")
      .delimiter(',')
      .expected(1, 2)
      .check(whole_numbers_within(0, 1023));
  pages.add_flag("--allocated", wanted->allocated,
                 "Use memory from `allocate` for dram; default: memory that is registered");
  pages.add_option("--page", wanted->pages, "Page sizes in bytes, as in 4K,64K,1M")
      .type_name("SIZE[,SIZE...]");
  pages.add_option("--total", wanted->total, "Memory of each process that holds the pages, in bytes")
      .type_name("SIZE")
      .show_default();
  pages.add_option("--count", wanted->count, "Pages that one iteration moves; default: all, at most 16384")
      .type_name("N")
      .check(whole_number(1, std::uint64_t{1} << 32));
  pages.add_option("--op", wanted->op, "read (from the other process), write (to it) or both")
      .type_name("OP")
      .check(one_of({"read", "write", "both"}))
      .show_default();
  pages.add_option("--threads", wanted->threads, "Threads that share the pages")
      .type_name("N")
      .check(whole_number(1, 1024))
      .show_default();
  pages.add_option("--in-flight", wanted->in_flight, "Requests that a thread posts before it waits")
      .type_name("N")
      .check(whole_number(1, 65536))
      .show_default();
  pages
      .add_option("--posts", wanted->posts,
                  "Posts of each request in one iteration, each as soon as the one before has ended")
      .type_name("N")
      .check(whole_number(1, 1'000'000))
      .show_default();
  const Argument random =
      pages.add_flag("--random", wanted->random, "Choose pages at random in both processes: the default");
  pages.add_flag("--sequential", wanted->sequential, "Choose pages in order").excludes(random);
  pages
      .add_option("--iterations", wanted->iterations,
                  "Iterations that are timed; default: 15, or 4096 with --single or --notifications")
      .type_name("N")
      .check(whole_number(1, 100'000'000))
      .take_last();
  pages.add_option("--warm-up", wanted->warm_up, "Iterations before those, not timed")
      .type_name("N")
      .check(whole_number(0, 1'000'000))
      .show_default();
  pages.add_flag("--new-request", wanted->new_requests,
                 "Make new requests for each iteration; default: post the same ones again");
  pages.add_flag("--single", wanted->single, "Measure the latency of one page at a time");
  pages.add_flag("--notifications", wanted->notifications,
                 "Measure the round trip of a notification; no pages move");
  pages
      .add_option("--streams", wanted->streams,
                  "Sockets of a link of the tcp backend: the same as --option tcp.sockets")
      .type_name("N")
      .check(whole_number(1, 64));
  pages.add_flag("--explain", wanted->explain, "Print which path was chosen, and why");
  pages.add_flag("--json", wanted->json, "Print one line of JSON for each figure: the rows of bench/results");
  pages.footer(
      "Each iteration moves new data. After it every byte of both buffers is compared. The time runs from "
      "the first post\n"
      "to the end of the last wait; the time to make the requests is measured separately (column make).\n"
      "--json prints one object a line for each figure. Later versions add fields and change none:\n"
      "  date, commit, machine, command    time, commit of the source tree (else the version), machine, "
      "command\n"
      "  table, case, metric, unit, value  the figure; case read/4096x16384 moves 16384 pages of 4096 "
      "bytes\n"
      "  peer, peer_value, ratio           the compared program, its figure, how many times better ours is; "
      "or null\n"
      "  checked                           true: the data that moved was compared afterwards and is right\n"
      "Examples:\n"
      "  headrace bench pages --page 4K,64K,1M --op both            registered memory, the best path\n"
      "  headrace bench pages --allocated --threads 2               memory that the peer maps, two "
      "threads\n"
      "  headrace bench pages --backend tcp --streams 2 --page 64K  over TCP with two sockets\n"
      "  headrace bench pages --in-flight 2 --posts 16              sustained rate: many posts in one "
      "iteration\n"
      "  headrace bench pages --single --page 64,4K                 latency of one page: p50 and p99\n"
      "  headrace bench pages --kinds vram-vram --page 4K,1M        from GPU to GPU\n"
      "  headrace bench pages --notifications                       round trip of a notification");
  pages.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return Runner(*wanted, invocation).run(); };
  });
}

}  // namespace headrace::cli
