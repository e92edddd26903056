// SPDX-License-Identifier: Apache-2.0
#include "collectives/window_memory.hpp"

#include "base/errors.hpp"
#include "base/signal_text.hpp"
#include "collectives/window_words.hpp"

#include <cstdint>

namespace headrace::collectives {
std::string text_of(const std::optional<SignalCondition>& condition) {
  if (!condition) return condition_text(HEADRACE_COMM_TAKE, 0);
  return condition_text(static_cast<std::int32_t>(condition->comparison), condition->value);
}

Result<void> check_memory(const WindowMemory& memory) {
  const Elements& elements = memory.elements;
  if (static_cast<std::size_t>(elements.dtype) >= dtype_count)
    return make_error(Code::invalid_argument, "element type {} does not exist",
                      static_cast<int>(elements.dtype));
  if (elements.count > PTRDIFF_MAX / element_bytes(elements.dtype))
    return make_error(Code::invalid_argument, "{} elements are more than any memory", elements.count);
  if (!memory.allocate && elements.data == nullptr && elements.count != 0)
    return make_error(Code::invalid_argument, "{} elements at a null address", elements.count);
  return {};
}

Result<void> check_window_rank(int rank, int size) {
  if (rank >= 0 && rank < size) return {};
  return make_error(Code::invalid_argument, "there is no rank {}; there are {} ranks, from 0", rank, size);
}

Result<void> check_window_range(const ConstElements& elements, std::size_t at, const WindowPart& part) {
  if (elements.dtype != part.dtype)
    return make_error(Code::invalid_argument, "the elements are {}, those of the window are {}",
                      dtype_name(elements.dtype), dtype_name(part.dtype));
  if (elements.data == nullptr && elements.count != 0)
    return make_error(Code::invalid_argument, "{} elements at a null address", elements.count);
  if (at <= part.count && elements.count <= part.count - at) return {};
  return make_error(Code::invalid_argument, "{} elements from element {} on: rank {} has {}", elements.count,
                    at, part.rank, part.count);
}

Result<void> check_window_atomic(std::size_t at, const WindowPart& part, std::uint64_t address) {
  if (!has_atomic_add(part.dtype))
    return make_error(Code::invalid_argument,
                      "the window is {}: atomic_add takes int32, uint32, int64 and uint64",
                      dtype_name(part.dtype));
  if (at >= part.count)
    return make_error(Code::invalid_argument, "element {}: rank {} has {}", at, part.rank, part.count);
  const std::size_t width = element_bytes(part.dtype);
  if (address % width == 0) return {};
  return make_error(Code::invalid_argument,
                    "the elements of rank {} do not begin at a multiple of {} bytes: register aligned memory",
                    part.rank, width);
}

Result<void> check_window_signal(const Signal& signal) {
  if (signal.kind == Signal::Kind::add || signal.kind == Signal::Kind::set) return {};
  return make_error(Code::invalid_argument, "a signal of kind {}: add is 0, set is 1",
                    static_cast<int>(signal.kind));
}

Result<void> check_window_condition(const std::optional<SignalCondition>& condition) {
  if (!condition || static_cast<std::size_t>(condition->comparison) < comparison_signs.size()) return {};
  return make_error(Code::invalid_argument, "comparison {} does not exist",
                    static_cast<int>(condition->comparison));
}

}  // namespace headrace::collectives
