// SPDX-License-Identifier: Apache-2.0
// The memory of a window on one rank, and what is refused in every window alike before anything is sent.
#pragma once

#include <headrace/comm_window.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace headrace::collectives {

/// The elements of this rank.
struct WindowMemory {
  Elements elements = {};
  bool allocate = false;                   ///< the window makes them, and sets address and owner
  std::shared_ptr<const void> owner = {};  ///< held until no rank uses them
};

/// The elements of a rank.
struct WindowPart {
  int rank;
  std::uint64_t count;
  DType dtype;  ///< of the window
};

// Errors are invalid_argument, with the values.

/// Refuses a type that does not exist, more than any memory, and a null address.
[[nodiscard]] Result<void> check_memory(const WindowMemory& memory);
[[nodiscard]] Result<void> check_window_rank(int rank, int size);
[[nodiscard]] Result<void> check_window_range(const ConstElements& elements, std::size_t at,
                                              const WindowPart& part);
/// `address`: of the part.
[[nodiscard]] Result<void> check_window_atomic(std::size_t at, const WindowPart& part, std::uint64_t address);
[[nodiscard]] Result<void> check_window_signal(const Signal& signal);
[[nodiscard]] Result<void> check_window_condition(const std::optional<SignalCondition>& condition);

/// "> 0", or ">= 3". Nullopt: the wait takes 1.
[[nodiscard]] std::string text_of(const std::optional<SignalCondition>& condition);

}  // namespace headrace::collectives
