// SPDX-License-Identifier: Apache-2.0
#include "contract/cases.hpp"

#include "base/options.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string_view>

namespace headrace::contract {
namespace {

/// A file that is there wherever the suite runs.
std::map<std::string, std::uint64_t> this_program() {
  const std::string path = "/proc/self/exe";
  return {{path, std::filesystem::file_size(path)}};
}

constexpr std::uint32_t to_peers = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_GRID | HEADRACE_COUNT;
constexpr std::uint32_t of_local = HEADRACE_LOCAL | HEADRACE_GRID;
constexpr std::uint32_t of_local_gpu = of_local | HEADRACE_STREAM | HEADRACE_CAPTURE;
constexpr std::uint32_t of_fake =
    to_peers | HEADRACE_LOCAL | HEADRACE_MAP | HEADRACE_REVOKE_SAFE | HEADRACE_QUERY;
constexpr std::uint32_t of_posix = HEADRACE_LOCAL | HEADRACE_QUERY | HEADRACE_GRID;
constexpr std::uint32_t of_tcp = to_peers | HEADRACE_REVOKE_SAFE;
constexpr std::uint32_t of_minimal =
    HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_REVOKE_SAFE | HEADRACE_COUNT;
constexpr std::uint32_t of_cuda_ipc =
    to_peers | HEADRACE_MAP | HEADRACE_NEEDS_VRAM | HEADRACE_STREAM | HEADRACE_CAPTURE;

/// A script for `fake` by which every third post or message meets the fault, and the two after it do not.
std::string every_third(std::string_view fault) {
  std::string script;
  for (int nth = 1; nth < 1500; nth += 3) script += fmt::format("{}{}@{}", nth > 1 ? "," : "", fault, nth);
  return script;
}

/// A row of `fake` in which this goes wrong.
BackendCase faulty_fake(const char* variant, const char* completion, std::string faults,
                        CarriedOut carried_out = CarriedOut::elsewhere) {
  return {.backend = "fake",
          .variant = variant,
          .settings = {{"completion", completion}, {"faults", std::move(faults)}},
          .between_processes = false,
          .abilities = of_fake,
          .carried_out = carried_out};
}

/// One whose posts do not all succeed.
BackendCase failing_fake(const char* variant, const char* completion, std::string faults) {
  BackendCase row = faulty_fake(variant, completion, std::move(faults));
  row.posts_succeed = row.whole_suite = false;
  return row;
}

constexpr const char* shorter_calls = "short_reads=20000,short_writes=20000,eagain=10,eintr=10";

const std::vector<BackendCase>& rows() {
  static const std::vector<BackendCase> all = {
      {.backend = "fake",
       .variant = "inline",
       .settings = {{"completion", "inline"}, {"objects", "weights=4096, kv/7=1, a=b=3, empty=0"}},
       .between_processes = false,
       .objects = {{"weights", 4096}, {"kv/7", 1}, {"a=b", 3}, {"empty", 0}},
       .abilities = of_fake,
       .carried_out = CarriedOut::inside_calls},
      {.backend = "fake",
       .variant = "progress",
       .settings = {{"completion", "progress"}},
       .between_processes = false,
       .abilities = of_fake,
       .carried_out = CarriedOut::in_progress},
      {.backend = "fake",
       .variant = "thread",
       .settings = {{"completion", "thread"}},
       .between_processes = false,
       .abilities = of_fake},
      faulty_fake("delay", "progress", every_third("delay:200us")),
      faulty_fake("duplicate", "inline", "duplicate", CarriedOut::inside_calls),
      faulty_fake("reorder", "progress", every_third("reorder"), CarriedOut::in_progress),
      failing_fake("drop", "progress", every_third("drop")),
      failing_fake("kill", "thread", "kill:7@4"),
      failing_fake("partial", "progress", every_third("partial:1000")),
      {.backend = "posix",
       .variant = "",
       .settings = {},
       .kept_kind = HEADRACE_FILE,
       .objects = this_program(),
       .abilities = of_posix},
      {.backend = "posix",
       .variant = "small_pieces",
       .settings = {{"piece_bytes", "64KiB"}, {"threads", "3"}},
       .kept_kind = HEADRACE_FILE,
       .abilities = of_posix},
      {.backend = "local", .variant = "", .settings = {}, .linked_in = true, .abilities = of_local},
      {.backend = "local",
       .variant = "small_chunks",
       .settings =
           {{"inline_bytes", "0"}, {"chunk_bytes", "16KiB"}, {"stream_bytes", "64KiB"}, {"threads", "3"}},
       .linked_in = true,
       .abilities = of_local},
      {.backend = "local_gpu",
       .variant = "",
       .settings = {},
       .vram = true,
       .linked_in = true,
       .abilities = of_local_gpu,
       .local_posts_run_to_their_end = true},
      {.backend = "local_gpu",
       .variant = "courier",
       .settings = {{"courier", "on"}},
       .vram = true,
       .linked_in = true,
       .abilities = of_local_gpu,
       .local_posts_run_to_their_end = true},
      {.backend = "shm", .variant = "", .settings = {}, .abilities = to_peers | HEADRACE_MAP},
      {.backend = "shm",
       .variant = "relay",
       .settings = {{"relay_bytes", "0"}, {"inline_bytes", "0"}, {"map", "off"}},
       .abilities = to_peers},
      {.backend = "tcp", .variant = "", .settings = {}, .abilities = of_tcp},
      {.backend = "cuda_ipc",
       .variant = "",
       .settings = {},
       .vram = true,
       .linked_in = true,
       .abilities = of_cuda_ipc},
      {.backend = "cuda_ipc",
       .variant = "courier",
       .settings = {{"courier", "on"}},
       .vram = true,
       .linked_in = true,
       .abilities = of_cuda_ipc},
      {.backend = "tcp_gpu",
       .variant = "",
       .settings = {},
       .vram = true,
       .linked_in = true,
       .abilities = of_tcp},
      {.backend = "tcp_gpu",
       .variant = "small_ring",
       .settings = {{"gpu_chunk_bytes", "32KiB"}, {"gpu_ring_bytes", "64KiB"}, {"sockets", "3"}},
       .vram = true,
       .linked_in = true,
       .abilities = of_tcp},
      {.backend = "tcp_gpu",
       .variant = "faulty",
       .settings = {{"faults", shorter_calls}, {"sockets", "4"}, {"threads", "2"}},
       .vram = true,
       .linked_in = true,
       .faulty_sockets = true,
       .abilities = of_tcp},
      {.backend = "tcp",
       .variant = "faulty",
       .settings = {{"faults", shorter_calls}, {"sockets", "4"}, {"threads", "2"}},
       .linked_in = true,
       .faulty_sockets = true,
       .abilities = of_tcp},
      // A few bytes a call cut every header at every place; 64 MiB would take them minutes.
      {.backend = "tcp",
       .variant = "byte_by_byte",
       .settings = {{"faults", "short_reads=11,short_writes=11,eagain=20,eintr=10"}, {"sockets", "2"}},
       .linked_in = true,
       .faulty_sockets = true,
       .abilities = of_tcp,
       .whole_suite = false},
      {.backend = "tcp",
       .variant = "reset",
       .settings = {{"faults", "short_reads=3000,short_writes=3000,reset_after=25000"}, {"sockets", "2"}},
       .linked_in = true,
       .faulty_sockets = true,
       .abilities = of_tcp,
       .posts_succeed = false,
       .whole_suite = false},
      {.backend = HEADRACE_TEST_BIN_DIR "/plugins/examples/headrace_backend_minimal.so",
       .variant = "",
       .settings = {},
       .abilities = of_minimal},
  };
  return all;
}

/// What instances of a row can do; none if that is unknown and there is no instance to ask.
std::optional<std::uint32_t> abilities_of(const BackendCase& which) {
  if (which.abilities) return which.abilities;
  static std::map<std::string, std::optional<std::uint32_t>> known;
  const auto [found, is_new] = known.try_emplace(which.name());
  if (is_new) {
    try {
      test::World world;
      const test::Instance instance(world, test::load_plugin(which.plugin()), which.settings, {});
      found->second = instance.info().abilities;
    } catch (const std::exception& e) {
      std::cerr << "contract: " << which.name() << ": " << e.what() << '\n';
    }
  }
  return found->second;
}

/// Of a path, what stands for <name> in headrace_backend_<name>.so.
std::string backend_name(const BackendCase& which) {
  if (which.backend.find('/') == std::string::npos) return which.backend;
  std::string text = std::filesystem::path(which.backend).stem();
  constexpr std::string_view prefix = "headrace_backend_";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

std::string& flag() {
  static std::string text;
  return text;
}

}  // namespace

std::string BackendCase::name() const {
  std::string text = backend_name(*this);
  if (!variant.empty()) text += "_" + variant;
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}

std::ostream& operator<<(std::ostream& out, const BackendCase& which) { return out << which.name(); }

void read_backends_flag(int& argc, char** argv) {
  constexpr std::string_view name = "--backends=";
  const auto is_flag = [&](const char* argument) { return std::string_view(argument).starts_with(name); };
  const auto found = std::find_if(argv + 1, argv + argc, is_flag);
  if (found == argv + argc) return;
  flag() = *found + name.size();
  std::copy(found + 1, argv + argc + 1, found);  // the closing null pointer as well
  --argc;
}

std::vector<BackendCase> backend_cases() {
  std::string wanted = flag();
  if (wanted.empty()) wanted = environment_variable("HEADRACE_CONTRACT_BACKENDS").value_or("");
  std::vector<BackendCase> cases;
  if (wanted.empty()) {
    for (const BackendCase& row : rows()) {
      if (row.linked_in || std::filesystem::exists(test::plugin_file(row.backend)))
        cases.push_back(row);
      else
        std::cerr << "contract: " << row.name() << " is left out: " << test::plugin_file(row.backend)
                  << " has not been built\n";
    }
    return cases;
  }
  for (const std::string_view name : split_list(wanted)) {
    const std::size_t before = cases.size();
    for (const BackendCase& row : rows())
      if (backend_name(row) == name) cases.push_back(row);
    if (cases.size() == before)
      cases.push_back(
          {.backend = std::string(name), .variant = "", .settings = {}, .carried_out = CarriedOut::unknown});
  }
  return cases;
}

std::vector<BackendCase> cases_with(std::uint32_t abilities) {
  std::vector<BackendCase> cases = backend_cases();
  std::erase_if(cases, [&](const BackendCase& which) {
    if (!which.whole_suite) return true;
    const auto has = abilities_of(which);
    return has && (*has & abilities) != abilities;
  });
  return cases;
}

std::vector<BackendCase> cases_without(std::uint32_t ability) {
  std::vector<BackendCase> cases = cases_with(0);
  std::erase_if(cases,
                [&](const BackendCase& which) { return (abilities_of(which).value_or(0) & ability) != 0; });
  return cases;
}

std::vector<BackendCase> fault_cases() {
  std::vector<BackendCase> cases = backend_cases();
  std::erase_if(cases, [](const BackendCase& which) { return !which.settings.contains("faults"); });
  return cases;
}

std::vector<BackendCase> process_cases(std::uint32_t abilities) {
  std::vector<BackendCase> cases = cases_with(abilities);
  std::erase_if(cases, [](const BackendCase& which) { return !which.between_processes; });
  return cases;
}

}  // namespace headrace::contract
