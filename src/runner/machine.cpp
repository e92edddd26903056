// SPDX-License-Identifier: Apache-2.0
#include "runner/machine.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

namespace headrace {
namespace {

/// What code compiled for an instruction set may use, in the kernel's words.
struct IsaRow {
  std::string_view isa;
  std::array<std::string_view, 6> features;
};
constexpr std::array<IsaRow, 11> rows{{
    {"AVX2", {"avx2", "fma", "f16c"}},
    {"AVX512", {"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"}},
    {"AVX512_VNNI", {"avx512_vnni"}},
    {"AVX512_BF16", {"avx512_bf16"}},
    {"AVX512_FP16", {"avx512_fp16"}},
    {"AVX_VNNI", {"avx_vnni"}},
    {"AMX_TILE", {"amx_tile", "amx_bf16", "amx_int8"}},
    {"AMX_FP16", {"amx_fp16"}},
    {"ASIMD", {"asimd"}},
    {"NEON", {"asimd"}},
    {"SVE", {"sve"}},
}};
constexpr std::array<std::string_view, 2> nothing_special{"INVALID_VEC_ISA", "DEFAULT"};

/// The first paragraph of /proc/cpuinfo: the kernel writes it anew at every reading, CPU by CPU, and some
/// have hundreds.
std::string first_cpu() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(file, line) && !line.empty();) text.append(line).push_back('\n');
  return text;
}

Machine read_machine() {
  Machine machine;
  utsname system{};
  if (::uname(&system) == 0) {
    machine.platform = system.sysname;
    std::ranges::transform(machine.platform, machine.platform.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    machine.architecture = system.machine;
  }
  machine.cpu_features = cpu_features(first_cpu());
  return machine;
}

}  // namespace

const Machine& this_machine() {
  static const Machine machine = read_machine();
  return machine;
}

std::set<std::string, std::less<>> cpu_features(std::string_view cpuinfo) {
  std::istringstream lines{std::string(cpuinfo)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !(line.starts_with("flags") || line.starts_with("Features"))) continue;
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string, std::less<>> features;
    for (std::string word; words >> word;) features.insert(word);
    return features;
  }
  return {};
}

IsaCheck check_isa(std::string_view cpu_isa, const Machine& machine) {
  IsaCheck check;
  std::istringstream words{std::string(cpu_isa)};
  for (std::string word; words >> word;) {
    std::ranges::transform(word, word.begin(), [](char c) {
      return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
    if (std::ranges::count(nothing_special, word) > 0) continue;
    const auto row = std::ranges::find(rows, word, &IsaRow::isa);
    if (row == rows.end()) {
      check.unknown.push_back(word);
      continue;
    }
    for (const std::string_view feature : row->features)
      if (!feature.empty() && !machine.cpu_features.contains(feature) &&
          std::ranges::count(check.missing, feature) == 0)
        check.missing.emplace_back(feature);
  }
  return check;
}

}  // namespace headrace
