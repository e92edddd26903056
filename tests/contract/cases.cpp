// SPDX-License-Identifier: Apache-2.0
#include "contract/cases.hpp"

#include "base/options.hpp"
#include "base/text.hpp"

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

std::vector<BackendCase> rows() {
  return {
      {.backend = "fake",
       .variant = "inline",
       .settings = {{"completion", "inline"}, {"objects", "weights=4096, kv/7=1, a=b=3, empty=0"}},
       .between_processes = false,
       .objects = {{"weights", 4096}, {"kv/7", 1}, {"a=b", 3}, {"empty", 0}}},
      {.backend = "fake",
       .variant = "progress",
       .settings = {{"completion", "progress"}},
       .between_processes = false},
      {.backend = "fake",
       .variant = "thread",
       .settings = {{"completion", "thread"}},
       .between_processes = false},
      {.backend = "posix",
       .variant = "",
       .settings = {},
       .kept_kind = HEADRACE_FILE,
       .objects = this_program()},
      {.backend = "posix",
       .variant = "small_pieces",
       .settings = {{"piece_bytes", "64KiB"}, {"threads", "3"}},
       .kept_kind = HEADRACE_FILE},
      {.backend = "shm", .variant = "", .settings = {}},
      {.backend = "shm",
       .variant = "relay",
       .settings = {{"relay_bytes", "0"}, {"inline_bytes", "0"}, {"map", "off"}}},
      {.backend = "tcp", .variant = "", .settings = {{"zero_copy", "no"}}},
      {.backend = "cuda_ipc", .variant = "", .settings = {}, .vram = true},
      {.backend = "cuda_ipc", .variant = "courier", .settings = {{"courier", "on"}}, .vram = true},
      {.backend = "tcp_gpu", .variant = "", .settings = {}, .vram = true},
      {.backend = "tcp_gpu", .variant = "courier", .settings = {{"courier", "on"}}, .vram = true},
      {.backend = "tcp_gpu",
       .variant = "small_ring",
       .settings = {{"gpu_chunk_bytes", "32KiB"}, {"gpu_ring_bytes", "64KiB"}, {"sockets", "3"}},
       .vram = true},
      {.backend = "tcp_gpu",
       .variant = "faulty",
       .settings = {{"faults", "short_reads=20000,short_writes=20000,eagain=10,eintr=10"},
                    {"sockets", "4"},
                    {"threads", "2"}},
       .vram = true},
      {.backend = "tcp",
       .variant = "faulty",
       .settings = {{"faults", "short_reads=20000,short_writes=20000,eagain=10,eintr=10"},
                    {"sockets", "4"},
                    {"threads", "2"},
                    {"zero_copy", "yes"}}},
  };
}

/// What an instance says that it can do; none if there is no instance to ask.
std::optional<std::uint32_t> abilities_of(const BackendCase& which) {
  static std::map<std::string, std::optional<std::uint32_t>> known;
  const auto [found, is_new] = known.try_emplace(which.name());
  if (is_new) {
    try {
      test::World world;
      const test::Instance instance(world, test::load_plugin(which.backend), which.settings, {});
      found->second = instance.info().abilities;
    } catch (const std::exception& e) {
      std::cerr << "contract: " << which.name() << ": " << e.what() << '\n';
    }
  }
  return found->second;
}

std::string& flag() {
  static std::string text;
  return text;
}

}  // namespace

std::string BackendCase::name() const {
  std::string text = backend.substr(backend.rfind('/') + 1);
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
    for (BackendCase& row : rows()) {
      if (row.vram || std::filesystem::exists(test::plugin_file(row.backend)))
        cases.push_back(std::move(row));
      else
        std::cerr << "contract: " << row.name() << " is left out: " << test::plugin_file(row.backend)
                  << " has not been built\n";
    }
    return cases;
  }
  for (const std::string_view name : split_list(wanted)) {
    const std::size_t before = cases.size();
    for (BackendCase& row : rows())
      if (row.backend == name) cases.push_back(std::move(row));
    if (cases.size() == before)
      cases.push_back({.backend = std::string(name), .variant = "", .settings = {}});
  }
  return cases;
}

std::vector<BackendCase> cases_with(std::uint32_t abilities) {
  std::vector<BackendCase> cases = backend_cases();
  std::erase_if(cases, [&](const BackendCase& which) {
    const auto has = abilities_of(which);
    return has && (*has & abilities) != abilities;
  });
  return cases;
}

std::vector<BackendCase> process_cases(std::uint32_t abilities) {
  std::vector<BackendCase> cases = cases_with(abilities);
  std::erase_if(cases, [](const BackendCase& which) { return !which.between_processes; });
  return cases;
}

}  // namespace headrace::contract
