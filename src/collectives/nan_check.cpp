// SPDX-License-Identifier: Apache-2.0
#include <headrace/nan_check.hpp>

#include "base/errors.hpp"
#include "base/names.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace headrace {
namespace {

/// The first value whose bits without the sign exceed `Largest`, which are those of infinity, or of the
/// largest number of a type without infinities. A loop without branches over each block is vector code.
template <class Bits, Bits Largest>
std::optional<std::size_t> first_above(const void* data, std::size_t count) {
  constexpr std::size_t block = 4096;
  const auto* values = static_cast<const std::byte*>(data);
  const auto is_nan = [values](std::size_t index) {
    constexpr Bits magnitude = static_cast<Bits>(~Bits{0}) >> 1;
    Bits bits;  // the caller's memory may have any alignment
    std::memcpy(&bits, values + index * sizeof(Bits), sizeof bits);
    return (bits & magnitude) > Largest;
  };
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t end = std::min(count, begin + block);
    bool any = false;
    for (std::size_t index = begin; index < end; ++index) any |= is_nan(index);
    if (!any) continue;
    while (!is_nan(begin)) ++begin;
    return begin;
  }
  return std::nullopt;
}

std::optional<std::size_t> first_nan(DType dtype, const void* data, std::size_t count) {
  switch (dtype) {
    case DType::float64:
      return first_above<std::uint64_t, 0x7ff0'0000'0000'0000>(data, count);
    case DType::float32:
      return first_above<std::uint32_t, 0x7f80'0000>(data, count);
    case DType::float16:
      return first_above<std::uint16_t, 0x7c00>(data, count);
    case DType::bfloat16:
      return first_above<std::uint16_t, 0x7f80>(data, count);
    case DType::float8_e4m3fn:
      return first_above<std::uint8_t, 0x7e>(data, count);
    case DType::float8_e5m2:
      return first_above<std::uint8_t, 0x7c>(data, count);
    default:
      return std::nullopt;
  }
}

std::optional<std::size_t> first_nan(const ConstElements& elements) {
  const bool complex = elements.dtype == DType::complex64 || elements.dtype == DType::complex128;
  if (!complex) return first_nan(elements.dtype, elements.data, elements.count);
  const DType part = elements.dtype == DType::complex64 ? DType::float32 : DType::float64;
  const auto found = first_nan(part, elements.data, 2 * elements.count);
  return found ? std::optional(*found / 2) : std::nullopt;
}

/// Other ranks of a broadcast have the memory among their inputs, and only write it.
bool reads_inputs(const CommCall& call, int rank) {
  return call.operation != CommOperation::broadcast || call.peer == rank;
}

}  // namespace

CommHooks nan_check(const Comm& comm) {
  CommHooks hooks;
  if (comm.device().kind != Device::Kind::cpu) return hooks;
  hooks.before = [rank = comm.rank(), name = comm.name()](const CommCall& call) -> Result<void> {
    if (!reads_inputs(call, rank)) return {};
    for (std::size_t index = 0; index < call.inputs.size(); ++index) {
      const ConstElements& input = call.inputs[index];
      const auto nan = first_nan(input);
      if (!nan) continue;
      return make_error(Code::invalid_argument,
                        "rank {}, {} of {}: element {} of {} in input {} ({}) is NaN: correct what computes "
                        "it, or remove the NaN check",
                        rank, comm_operation_name(call.operation), name_text(name), *nan, input.count, index,
                        dtype_name(input.dtype));
    }
    return {};
  };
  return hooks;
}

}  // namespace headrace
