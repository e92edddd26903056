// SPDX-License-Identifier: Apache-2.0
// Which vector instructions this CPU has, for loops that are compiled for several.
#pragma once

#include <cstdint>

namespace headrace {

/// Instructions that a loop uses. Its results do not depend on them.
enum class Instructions : std::uint8_t { plain, avx2, avx512 };
/// The best of this CPU.
[[nodiscard]] Instructions best_instructions() noexcept;

#if defined(__x86_64__)
template <class Loop, class... Args>
__attribute__((target("avx2"))) void run_with_avx2(Args... args) noexcept {
  Loop::run(args...);
}
template <class Loop, class... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void run_with_avx512(Args... args) noexcept {
  Loop::run(args...);
}
#endif

/// Calls Loop::run(args...), compiled for these instructions. `run` and all that it calls are inlined by
/// force
/// ([[gnu::always_inline]]); no argument is a vector, which functions of other instructions pass otherwise.
template <class Loop, class... Args>
void run_with([[maybe_unused]] Instructions instructions, Args... args) noexcept {
#if defined(__x86_64__)
  if (instructions == Instructions::avx512) return run_with_avx512<Loop>(args...);
  if (instructions == Instructions::avx2) return run_with_avx2<Loop>(args...);
#endif
  Loop::run(args...);
}

}  // namespace headrace
