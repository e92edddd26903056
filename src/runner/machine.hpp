// SPDX-License-Identifier: Apache-2.0
// Whether this machine can run the code of a package. Checked before the code is loaded: an instruction that
// the CPU lacks ends the process with SIGILL in the middle of a run.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct Machine {
  std::string platform;      ///< "linux"
  std::string architecture;  ///< "x86_64", "aarch64"
  /// The kernel's names: "avx2", "avx512f", "asimd". On x86 only those that compiled code may need.
  std::set<std::string, std::less<>> cpu_features;
};

/// This machine, read once.
[[nodiscard]] const Machine& this_machine();
/// The features in the text of /proc/cpuinfo: those of its first CPU.
[[nodiscard]] std::set<std::string, std::less<>> cpu_features(std::string_view cpuinfo);

struct IsaCheck {
  std::vector<std::string> missing;  ///< features that the code uses and the CPU lacks
  std::vector<std::string> unknown;  ///< unknown words of the instruction set, which are not checked
};
/// Checks an instruction set in AOTInductor's notation, "AVX512 AVX512_VNNI".
[[nodiscard]] IsaCheck check_isa(std::string_view cpu_isa, const Machine& machine);

}  // namespace headrace
