// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/path_survey.hpp"

#include "cli/bench/bench_row.hpp"
#include "cli/bench/page_bench.hpp"
#include "cli/command.hpp"
#include "cli/common/gpu_count.hpp"
#include "cli/common/progress_bar.hpp"
#include "cli/common/table.hpp"

#include <cstdio>
#include <string>
#include <vector>

namespace headrace::cli {
namespace {

constexpr std::uint64_t buffer_bytes = 32 << 20;
constexpr PageCase many{.page_bytes = 64 << 10, .count = 256, .warm_up = 1, .iterations = 5};
constexpr PageCase one{.page_bytes = 4 << 10, .iterations = 512};

struct Sort {
  const char* name;
  MemoryKind kind;
  bool allocated;
};

struct Path {
  std::string here, there, backend, explanation;
  double bytes_per_second = 0;
  double page_seconds = 0;
};

std::vector<Sort> sorts() {
  std::vector<Sort> found{{"dram", MemoryKind::dram, false}, {"dram from allocate", MemoryKind::dram, true}};
  if (count_gpus() > 0) found.push_back({"vram", MemoryKind::vram, false});
  return found;
}

BenchSetup setup_of(const Sort& sort, const Invocation& invocation, int device) {
  BenchSetup setup;
  setup.options = invocation.options;
  setup.buffer_bytes = buffer_bytes;
  setup.kind = sort.kind;
  setup.allocated = sort.allocated;
  setup.device = device;
  return setup;
}

/// Measures reads from the peer's memory into this process's.
Result<void> measure(PageBench& bench, Path& path) {
  const auto silent = [](std::uint64_t, std::uint64_t) {};
  HEADRACE_CLI_TRY(pages, bench.pages(many, silent));
  HEADRACE_CLI_TRY(singles, bench.single(one, silent));
  path.backend = pages.path;
  path.explanation = pages.explanation;
  path.bytes_per_second =
      static_cast<double>(many.count * many.page_bytes) / Summary(std::move(pages.seconds)).median();
  path.page_seconds = Summary(std::move(singles.seconds)).median();
  return {};
}

Result<Path> try_pair(const Sort& here, const Sort& there, const Invocation& invocation) {
  HEADRACE_CLI_TRY(bench, PageBench::open(setup_of(here, invocation, 0), setup_of(there, invocation, -1)));
  Path path{here.name, there.name, {}, {}};
  if (auto measured = measure(bench, path); !measured) {
    if (measured.code() == Code::corrupt) return std::move(measured).error();
    path.explanation = measured.error().message;
  }
  return path;
}

void print_paths_json(const std::vector<Path>& paths) {
  Json report{{"paths", Json::array()}};
  for (const Path& path : paths) {
    Json line{{"here", path.here}, {"there", path.there}, {"path", nullptr}};
    if (!path.backend.empty()) {
      line["path"] = path.backend;
      line["gb_per_second"] = path.bytes_per_second / 1e9;
      line["page_us"] = path.page_seconds * 1e6;
    }
    line["explanation"] = path.explanation;
    report["paths"].push_back(std::move(line));
  }
  fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_table(const std::vector<Path>& paths) {
  Table table({{"here"},
               {"there"},
               {"path"},
               {"GB/s", Table::Align::right},
               {"one page", Table::Align::right},
               {"why"}});
  for (const Path& path : paths) {
    const bool found = !path.backend.empty();
    table.add({path.here, path.there, found ? path.backend : "none",
               found ? fmt::format("{:.2f}", path.bytes_per_second / 1e9) : "",
               found ? fmt::format("{:.2f} us", path.page_seconds * 1e6) : "", path.explanation});
  }
  fmt::print(
      "Reads from another process of this machine: GB/s of 256 scattered pages of 64 KiB, and the median "
      "time of one page\n"
      "of 4 KiB. All data was compared.\n\n"
      "{}",
      table.text());
}

}  // namespace

Result<void> survey_paths(const Invocation& invocation, bool json) {
  const std::vector<Sort> all = sorts();
  std::vector<Path> paths;
  constexpr std::uint64_t bytes_a_pair = (many.warm_up + many.iterations) * many.count * many.page_bytes;
  ProgressBar bar("trying paths", all.size() * all.size() * bytes_a_pair);
  for (const Sort& here : all) {
    for (const Sort& there : all) {
      bar.show(paths.size() * bytes_a_pair);
      HEADRACE_CLI_TRY(path, try_pair(here, there, invocation));
      paths.push_back(std::move(path));
    }
  }
  bar.clear();
  json ? print_paths_json(paths) : print_table(paths);
  return {};
}

}  // namespace headrace::cli
