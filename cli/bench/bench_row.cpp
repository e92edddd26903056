// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_row.hpp"

#include "cli/bench/usable_cores.hpp"

#include <headrace/version.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <numeric>

namespace headrace::cli {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name"))
      if (const std::size_t at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  }
  utsname names{};
  ::uname(&names);
  return names.machine;
}

/// The commit of the working tree in the current folder; the version if the folder is in no tree.
std::string commit() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      // NOLINTNEXTLINE(bugprone-command-processor): nothing of this command comes from outside
      ::popen("git describe --always --dirty=+ --abbrev=12 2>/dev/null", "r"), ::pclose);
  std::string text;
  for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe.get())) != EOF && c != '\n';)
    text += static_cast<char>(c);
  return text.empty() ? HEADRACE_VERSION : text;
}

}  // namespace

std::string machine_text() {
  const std::size_t cores = std::max<std::size_t>(usable_cores().size(), 1);
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1ULL << 30);
  utsname names{};
  ::uname(&names);
  const std::string kernel(names.release);
  return fmt::format("{}, {} cores, {:.0f} GiB, Linux {}", processor(), cores, memory,
                     kernel.substr(0, kernel.find('-')));
}

RowWriter::RowWriter(std::string command)
    : command_(std::move(command)),
      date_(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))),
      commit_(commit()),
      machine_(machine_text()) {}

std::string RowWriter::line(const BenchRow& row) const {
  nlohmann::ordered_json json{
      {"date", date_},          {"commit", commit_}, {"machine", machine_},   {"command", command_},
      {"table", row.table},     {"case", row.name},  {"metric", row.metric},  {"unit", row.unit},
      {"value", row.value},     {"peer", nullptr},   {"peer_value", nullptr}, {"ratio", nullptr},
      {"checked", row.checked},
  };
  if (row.against != nullptr) {
    json["peer"] = row.against->peer;
    json["peer_value"] = row.against->value;
    json["ratio"] = row.against->ratio;
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Summary::Summary(std::vector<double> samples) : sorted_(std::move(samples)) {
  std::sort(sorted_.begin(), sorted_.end());
  mean = std::accumulate(sorted_.begin(), sorted_.end(), 0.0) / static_cast<double>(sorted_.size());
  least = sorted_.front();
}

double Summary::percentile(double percent) const {
  const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(sorted_.size())));
  return sorted_[std::clamp<std::size_t>(rank, 1, sorted_.size()) - 1];
}

}  // namespace headrace::cli
