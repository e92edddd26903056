// SPDX-License-Identifier: Apache-2.0
// One call of an operation of a communicator: what it reads and writes, and how. Hooks and backends get it.
#pragma once

#include <headrace/request.hpp>
#include <headrace/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace headrace {

/// The element type of a C++ type. float16, bfloat16, float8 and bool have none: name them.
template <class T>
inline constexpr std::optional<DType> dtype_of = std::nullopt;
template <>
inline constexpr std::optional<DType> dtype_of<float> = DType::float32;
template <>
inline constexpr std::optional<DType> dtype_of<double> = DType::float64;
template <>
inline constexpr std::optional<DType> dtype_of<std::int8_t> = DType::int8;
template <>
inline constexpr std::optional<DType> dtype_of<std::int16_t> = DType::int16;
template <>
inline constexpr std::optional<DType> dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr std::optional<DType> dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint8_t> = DType::uint8;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint16_t> = DType::uint16;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint32_t> = DType::uint32;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint64_t> = DType::uint64;

/// Contiguous elements of the caller that an operation writes, in memory of the communicator's device. They
/// stay the caller's, in place, until the operation has ended.
struct Elements {
  void* data = nullptr;  ///< may be null if there are none
  std::size_t count = 0;
  DType dtype = DType::float32;

  Elements() = default;
  Elements(void* first, std::size_t number, DType type) : data(first), count(number), dtype(type) {}
  template <class T, std::size_t N>
    requires(dtype_of<T>.has_value())
  Elements(std::span<T, N> elements) : Elements(elements.data(), elements.size(), *dtype_of<T>) {}
  template <class T>
    requires(dtype_of<T>.has_value())
  Elements(std::vector<T>& elements) : Elements(std::span<T>(elements)) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return count * element_bytes(dtype); }
};

/// Contiguous elements of the caller that an operation reads.
struct ConstElements {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::float32;

  ConstElements() = default;
  ConstElements(const void* first, std::size_t number, DType type)
      : data(first), count(number), dtype(type) {}
  ConstElements(const Elements& elements) : ConstElements(elements.data, elements.count, elements.dtype) {}
  template <class T, std::size_t N>
    requires(dtype_of<std::remove_const_t<T>>.has_value())
  ConstElements(std::span<T, N> elements)
      : ConstElements(elements.data(), elements.size(), *dtype_of<std::remove_const_t<T>>) {}
  template <class T>
    requires(dtype_of<T>.has_value())
  ConstElements(const std::vector<T>& elements) : ConstElements(std::span<const T>(elements)) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return count * element_bytes(dtype); }
};

/// How the elements of all ranks become one. float16, bfloat16 and float8 are added in float32 and rounded
/// once.
///
/// Floats have all but the bit operations; min and max of a NaN are NaN. Complex numbers have sum, product,
/// avg and premul_sum. Integers have all: sums wrap around, avg drops the fraction, the factor of premul_sum
/// is whole. Of bool, sum, max and bor are "or", product, min and band are "and", bxor is "xor".
struct ReduceOp {
  enum Kind : std::int32_t {
    sum = 0,
    product = 1,
    min = 2,
    max = 3,
    avg = 4,  ///< the sum divided by the number of ranks
    band = 5,
    bor = 6,
    bxor = 7,
    premul_sum = 8,  ///< the sum of each rank's elements times `factor`, the same on every rank
  };
  Kind kind = sum;
  double factor = 1;

  constexpr ReduceOp(Kind which, double by = 1) noexcept : kind(which), factor(by) {}
};

/// The name of an operation as in ReduceOp: "sum".
HEADRACE_API std::string_view reduce_op_name(ReduceOp::Kind kind) noexcept;

/// The operations of Comm, those that open and split one, and those of windows, from 32 on. Values are never
/// changed.
enum class CommOperation : std::int32_t {
  open = 0,
  split = 1,
  all_reduce = 2,
  broadcast = 3,
  reduce = 4,
  all_gather = 5,
  all_gather_v = 6,
  all_gather_single = 7,
  reduce_scatter = 8,
  reduce_scatter_v = 9,
  reduce_scatter_single = 10,
  all_to_all = 11,
  all_to_all_single = 12,
  all_to_all_v_single = 13,
  gather = 14,
  gather_single = 15,
  scatter = 16,
  barrier = 17,
  send = 18,
  recv = 19,
  monitored_barrier = 20,
  batch = 21,      ///< sends and receives that are issued together
  coalesced = 22,  ///< the calls between start_coalescing and end_coalescing
  reduce_scatter_quantized = 23,
  device_all_to_all_v_single = 24,
  suspend = 25,
  resume = 26,
  tensor_register = 32,  ///< Window::allocate, too
  tensor_deregister = 33,
  put = 34,
  get = 35,
  signal = 36,
  wait_signal = 37,
  atomic_add = 38,
  flush = 39,
};
/// The name of an operation as in CommOperation: "all_reduce".
HEADRACE_API std::string_view comm_operation_name(CommOperation operation) noexcept;
/// Whether it is send or recv, which are apart from the order of the others and have numbers of their own.
[[nodiscard]] constexpr bool is_message(CommOperation operation) noexcept {
  return operation == CommOperation::send || operation == CommOperation::recv;
}
/// Whether it is one of a window that no other rank takes part in. They have numbers of their own.
[[nodiscard]] constexpr bool is_one_sided(CommOperation operation) noexcept {
  return operation >= CommOperation::put;
}

/// An operation by its number, as in CommCall.
struct CommCallId {
  CommOperation operation = CommOperation::barrier;
  std::uint64_t number = 0;
};

/// One call, with arguments that have been checked. It points to what the caller gave, which is in place
/// until the call returns; the elements are in place until the operation has ended.
struct CommCall {
  CommOperation operation = CommOperation::barrier;
  /// Of the communicator's collectives, the same on all ranks; of this rank's messages; of its one-sided
  /// operations; or of its batches and coalesced calls. From 1; 0: the call has none yet.
  std::uint64_t number = 0;
  /// What it reads and writes, as it was given: lists have an entry for each rank. The memory of broadcast
  /// and reduce is in both; gather and scatter have no list on ranks other than the root. The inputs of
  /// device_all_to_all_v_single are its elements, the output splits and the input splits.
  std::span<const ConstElements> inputs = {};
  std::span<const Elements> outputs = {};
  /// Of all_to_all_v_single: elements for each rank.
  std::span<const std::size_t> input_splits = {}, output_splits = {};
  ReduceOp op = ReduceOp::sum;  ///< of reductions
  int peer = -1;  ///< the root, or the other rank of a message or of a window; -1: none, or any_source
  std::uint32_t tag = 0;  ///< of messages
  bool async = false;
  /// Of the operation: nullopt is the communicator's until the call has a number, and no limit then.
  Timeout timeout = {};
  const std::map<std::string, std::string>* hints = nullptr;
  bool wait_all_ranks = false;  ///< of monitored_barrier
  std::uint64_t seed = 0;       ///< of reduce_scatter_quantized
  CommCallId group = {};        ///< the batch or coalesced calls that it belongs to; number 0: none
  void* stream = nullptr;       ///< of a communicator on a GPU, as in OpOptions
};

}  // namespace headrace
