// SPDX-License-Identifier: Apache-2.0
#include "base/instructions.hpp"

namespace headrace {

Instructions best_instructions() noexcept {
#if defined(__x86_64__)
  static const Instructions best = [] {
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (wide) return Instructions::avx512;
    return __builtin_cpu_supports("avx2") ? Instructions::avx2 : Instructions::plain;
  }();
  return best;
#else
  return Instructions::plain;
#endif
}

}  // namespace headrace
