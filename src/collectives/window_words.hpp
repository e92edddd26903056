// SPDX-License-Identifier: Apache-2.0
// The words of a window that several ranks change at once. Every rank changes them by atomic instructions on
// the same memory, its owner for those that have not mapped it. So no change is lost.
#pragma once

#include <headrace/comm_window.hpp>

#include "collectives/box.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headrace::collectives {

/// What a rank tells another one by signals.
struct alignas(cache_line) SignalWord {
  std::atomic<std::uint64_t> value;
};

inline void apply(const Signal& signal, SignalWord& word) {
  // Pairs with the load of the rank that waits: it sees what was put before. Sequential, as its bell asks.
  if (signal.kind == Signal::Kind::set)
    word.value.store(signal.value, std::memory_order_seq_cst);
  else
    word.value.fetch_add(signal.value, std::memory_order_seq_cst);
}

[[nodiscard]] constexpr bool holds(const SignalCondition& condition, std::uint64_t seen) {
  switch (condition.comparison) {
    case Comparison::eq:
      return seen == condition.value;
    case Comparison::ne:
      return seen != condition.value;
    case Comparison::lt:
      return seen < condition.value;
    case Comparison::le:
      return seen <= condition.value;
    case Comparison::gt:
      return seen > condition.value;
    case Comparison::ge:
      return seen >= condition.value;
  }
  return false;
}

[[nodiscard]] constexpr bool has_atomic_add(DType dtype) {
  return dtype == DType::int32 || dtype == DType::uint32 || dtype == DType::int64 || dtype == DType::uint64;
}

template <class T>
std::int64_t add_to(std::byte* element, std::int64_t value) {
  static_assert(std::atomic_ref<T>::is_always_lock_free);
  std::atomic_ref<T> word(*reinterpret_cast<T*>(element));
  return static_cast<std::int64_t>(word.fetch_add(static_cast<T>(value)));
}

/// Adds to an element whose type has it, at an address that is a multiple of its width.
inline std::int64_t atomic_add(std::byte* element, DType dtype, std::int64_t value) {
  switch (dtype) {
    case DType::int32:
      return add_to<std::int32_t>(element, value);
    case DType::uint32:
      return add_to<std::uint32_t>(element, value);
    case DType::int64:
      return add_to<std::int64_t>(element, value);
    default:
      return add_to<std::uint64_t>(element, value);
  }
}

}  // namespace headrace::collectives
