// SPDX-License-Identifier: Apache-2.0
#include "runner/machine.hpp"

#include <sys/utsname.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <sstream>

namespace headrace {
namespace {

/// The CPU features that code compiled for an instruction set may use, with the kernel's names.
struct IsaRow {
  std::string_view isa;
  std::array<std::string_view, 6> features;
};
constexpr std::array<IsaRow, 11> isa_rows{{
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

#if defined(__x86_64__)

/// The CPUID bit of a feature, and the registers that the kernel must save for it (Intel's manual, volume 1,
/// chapters 13 and 16; volume 2, CPUID).
struct CpuidRow {
  std::string_view feature;
  unsigned leaf, subleaf, reg, bit;  ///< reg: 0 to 3 for eax, ebx, ecx, edx
  std::uint64_t state;
};
constexpr std::uint64_t ymm = 0x6, zmm = 0xE6, tiles = 0x60000;
constexpr std::array<CpuidRow, 15> cpuid_rows{{
    {"fma", 1, 0, 2, 12, ymm},
    {"f16c", 1, 0, 2, 29, ymm},
    {"avx2", 7, 0, 1, 5, ymm},
    {"avx512f", 7, 0, 1, 16, zmm},
    {"avx512dq", 7, 0, 1, 17, zmm},
    {"avx512bw", 7, 0, 1, 30, zmm},
    {"avx512vl", 7, 0, 1, 31, zmm},
    {"avx512_vnni", 7, 0, 2, 11, zmm},
    {"avx512_fp16", 7, 0, 3, 23, zmm},
    {"avx512_bf16", 7, 1, 0, 5, zmm},
    {"avx_vnni", 7, 1, 0, 4, ymm},
    {"amx_bf16", 7, 0, 3, 22, tiles},
    {"amx_tile", 7, 0, 3, 24, tiles},
    {"amx_int8", 7, 0, 3, 25, tiles},
    {"amx_fp16", 7, 1, 0, 21, tiles},
}};

using Registers = std::array<unsigned, 4>;
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers found{};
  if (__get_cpuid_count(leaf, subleaf, &found[0], &found[1], &found[2], &found[3]) == 0) return {};
  return found;
}

/// The register states that the kernel saves for a thread.
std::uint64_t kept_state(const Registers& first) {
  constexpr unsigned osxsave = 1U << 27;
  if ((first[2] & osxsave) == 0) return 0;
  std::uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

/// Asked of the CPU: reading /proc/cpuinfo takes a tenth of the time of loading a small package.
std::set<std::string, std::less<>> features_here() {
  const Registers first = cpuid(1, 0), seventh = cpuid(7, 0);
  const Registers more = seventh[0] >= 1 ? cpuid(7, 1) : Registers{};
  const std::uint64_t kept = kept_state(first);
  std::set<std::string, std::less<>> features;
  for (const CpuidRow& row : cpuid_rows) {
    const Registers& found = row.leaf == 1 ? first : row.subleaf == 0 ? seventh : more;
    if (((found[row.reg] >> row.bit) & 1) != 0 && (kept & row.state) == row.state)
      features.emplace(row.feature);
  }
  return features;
}

#else

/// The first paragraph of /proc/cpuinfo: the kernel generates the file at every reading, CPU by CPU, and some
/// machines have hundreds.
std::string first_cpu() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(file, line) && !line.empty();) text.append(line).push_back('\n');
  return text;
}

std::set<std::string, std::less<>> features_here() { return cpu_features(first_cpu()); }

#endif

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
  machine.cpu_features = features_here();
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
    const auto row = std::ranges::find(isa_rows, word, &IsaRow::isa);
    if (row == isa_rows.end()) {
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
