// SPDX-License-Identifier: Apache-2.0
// Calls of the kernel family collectives as tests make them: what each rank gives, and what it must get.
#pragma once

#include "kernels/collectives/element.cuh"

#include <headrace/plugin/kernels/collectives_v1.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace headrace::kernels::collectives {

using Bytes = std::vector<unsigned char>;

/// An operation whose parts have `count` elements each. Elements of all ranks lie in one row.
struct TestCall {
  std::int32_t operation = HEADRACE_COMM_ALL_REDUCE;
  std::uint64_t count = 0;
  std::int32_t dtype = HEADRACE_FLOAT32;
  std::int32_t reduction = HEADRACE_COMM_SUM;
  unsigned root = 0;
  double factor = 1;
  std::int64_t timeout_ns = -1;

  [[nodiscard]] bool reduces() const {
    return operation == HEADRACE_COMM_ALL_REDUCE || operation == HEADRACE_COMM_REDUCE ||
           operation == HEADRACE_COMM_REDUCE_SCATTER_SINGLE;
  }
  [[nodiscard]] std::uint64_t part_bytes() const { return count * width_of(dtype); }
  /// Whether input or output has a part for each rank.
  [[nodiscard]] bool has_row_of_inputs() const {
    return operation == HEADRACE_COMM_REDUCE_SCATTER_SINGLE || operation == HEADRACE_COMM_ALL_TO_ALL_SINGLE ||
           operation == HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE || operation == HEADRACE_COMM_SCATTER;
  }
  [[nodiscard]] bool has_row_of_outputs() const {
    return operation == HEADRACE_COMM_ALL_GATHER_SINGLE || operation == HEADRACE_COMM_ALL_TO_ALL_SINGLE ||
           operation == HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE || operation == HEADRACE_COMM_GATHER_SINGLE;
  }
  /// Whether other ranks than the root get nothing.
  [[nodiscard]] bool goes_to_root() const {
    return operation == HEADRACE_COMM_REDUCE || operation == HEADRACE_COMM_GATHER_SINGLE;
  }
  [[nodiscard]] std::uint64_t input_bytes(unsigned ranks) const {
    return operation == HEADRACE_COMM_BARRIER ? 0 : part_bytes() * (has_row_of_inputs() ? ranks : 1);
  }
  [[nodiscard]] std::uint64_t output_bytes(unsigned ranks) const {
    return operation == HEADRACE_COMM_BARRIER ? 0 : part_bytes() * (has_row_of_outputs() ? ranks : 1);
  }
};

/// The C call of one rank, with its lists.
class RankCall {
 public:
  ///   splits  where equal shares of the row are, for the operation that reads them
  RankCall(const TestCall& test, unsigned rank, unsigned ranks, std::uint64_t input, std::uint64_t output,
           std::uint64_t splits = 0) {
    const auto elements = [&](std::uint64_t address, std::uint64_t bytes) {
      return headrace_comm_elements_v1{reinterpret_cast<void*>(address), bytes / width_of(test.dtype),
                                       test.dtype};
    };
    const bool is_root = rank == test.root;
    if (test.operation == HEADRACE_COMM_SCATTER) {
      for (unsigned to = 0; is_root && to < ranks; ++to)
        inputs_.push_back(elements(input + to * test.part_bytes(), test.part_bytes()));
    } else if (test.operation != HEADRACE_COMM_BARRIER) {
      inputs_.push_back(elements(input, test.input_bytes(ranks)));
    }
    if (test.operation == HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE)
      inputs_.insert(inputs_.end(), 2, {reinterpret_cast<void*>(splits), ranks, HEADRACE_INT64});
    if (test.operation != HEADRACE_COMM_BARRIER && (is_root || test.operation != HEADRACE_COMM_GATHER_SINGLE))
      outputs_.push_back(elements(output, test.output_bytes(ranks)));
    call_.struct_size = sizeof call_;
    call_.operation = test.operation;
    call_.inputs = inputs_.data(), call_.input_count = inputs_.size();
    call_.outputs = outputs_.data(), call_.output_count = outputs_.size();
    call_.reduction = test.reduction;
    call_.peer = static_cast<std::int32_t>(test.root);
    call_.factor = test.factor;
    call_.timeout_ns = test.timeout_ns;
  }
  RankCall(const RankCall&) = delete;
  RankCall& operator=(const RankCall&) = delete;

  [[nodiscard]] const headrace_comm_call_v1* get() const { return &call_; }

 private:
  std::vector<headrace_comm_elements_v1> inputs_, outputs_;
  headrace_comm_call_v1 call_{};
};

/// The reduction of so many bytes of all ranks, from `at` on.
inline Bytes reduced_bytes(const TestCall& call, const std::vector<Bytes>& inputs, std::uint64_t at) {
  const unsigned width = width_of(call.dtype), ranks = static_cast<unsigned>(inputs.size());
  const Reduction how{call.dtype, call.reduction,
                      call.reduction == HEADRACE_COMM_PREMUL_SUM ? call.factor : 1,
                      call.reduction == HEADRACE_COMM_AVG ? static_cast<double>(ranks) : 1};
  Bytes result(call.part_bytes());
  for (std::uint64_t i = 0; i < result.size(); i += width) {
    const Raw raw = reduced(how, ranks, [&](unsigned rank) {
      Raw of_rank{};
      std::memcpy(&of_rank, &inputs[rank][at + i], width);
      return of_rank;
    });
    std::memcpy(&result[i], &raw, width);
  }
  return result;
}

inline bool is_nan_element(std::int32_t dtype, Raw raw) {
  const auto wide = [](auto value) { return is_nan(value.real) || is_nan(value.imaginary); };
  switch (dtype) {
    case HEADRACE_FLOAT32:
    case HEADRACE_FLOAT16:
    case HEADRACE_BFLOAT16:
    case HEADRACE_FLOAT8_E4M3FN:
    case HEADRACE_FLOAT8_E5M2:
      return is_nan(Real{dtype}.load(raw));
    case HEADRACE_FLOAT64:
      return is_nan(Double{}.load(raw));
    case HEADRACE_COMPLEX64:
      return wide(Complex64{}.load(raw));
    case HEADRACE_COMPLEX128:
      return wide(Complex128{}.load(raw));
    default:
      return false;
  }
}
/// The number of the first byte that differs, but for the bits of NaNs; `bytes`: all are the same.
inline std::uint64_t first_difference(std::int32_t dtype, const void* a, const void* b, std::uint64_t bytes) {
  const auto *const left = static_cast<const unsigned char*>(a), *const right =
                                                                     static_cast<const unsigned char*>(b);
  const unsigned width = width_of(dtype);
  for (std::uint64_t i = 0; i < bytes; i += width) {
    if (std::memcmp(left + i, right + i, width) == 0) continue;
    Raw one{}, other{};
    std::memcpy(&one, left + i, width);
    std::memcpy(&other, right + i, width);
    if (!is_nan_element(dtype, one) || !is_nan_element(dtype, other)) return i;
  }
  return bytes;
}

/// What a rank must get; empty: nothing.
inline Bytes expected_output(const TestCall& call, const std::vector<Bytes>& inputs, unsigned rank) {
  const unsigned ranks = static_cast<unsigned>(inputs.size());
  const std::uint64_t part = call.part_bytes();
  const auto part_of = [&](unsigned from, unsigned number) {
    const auto begin = inputs[from].begin() + static_cast<std::ptrdiff_t>(number * part);
    return Bytes(begin, begin + static_cast<std::ptrdiff_t>(part));
  };
  if (call.operation == HEADRACE_COMM_BARRIER || (call.goes_to_root() && rank != call.root)) return {};
  if (call.reduces()) return reduced_bytes(call, inputs, call.has_row_of_inputs() ? rank * part : 0);
  if (call.operation == HEADRACE_COMM_BROADCAST) return inputs[call.root];
  if (call.operation == HEADRACE_COMM_SCATTER) return part_of(call.root, rank);
  Bytes row;
  for (unsigned from = 0; from < ranks; ++from) {
    const Bytes next = part_of(from, call.has_row_of_inputs() ? rank : 0);
    row.insert(row.end(), next.begin(), next.end());
  }
  return row;
}

/// Random elements: floats of modest size, so that sums and products are numbers.
inline Bytes random_elements(std::mt19937& random, std::int32_t dtype, std::uint64_t bytes) {
  Bytes made(bytes);
  const auto fill = [&](auto sample, const auto& next) {
    for (std::uint64_t i = 0; i < bytes; i += sizeof sample) {
      sample = next();
      std::memcpy(&made[i], &sample, sizeof sample);
    }
  };
  std::uniform_real_distribution<float> number(-2, 2);
  const auto small = [&] { return Real{dtype}.store(number(random)).low; };
  switch (dtype) {
    case HEADRACE_FLOAT32:
    case HEADRACE_COMPLEX64:
      fill(float{}, [&] { return number(random); });
      break;
    case HEADRACE_FLOAT64:
    case HEADRACE_COMPLEX128:
      fill(double{}, [&] { return static_cast<double>(number(random)) * 1.000000001; });
      break;
    case HEADRACE_FLOAT16:
    case HEADRACE_BFLOAT16:
      fill(std::uint16_t{}, [&] { return static_cast<std::uint16_t>(small()); });
      break;
    case HEADRACE_FLOAT8_E4M3FN:
    case HEADRACE_FLOAT8_E5M2:
      fill(std::uint8_t{}, [&] { return static_cast<std::uint8_t>(small()); });
      break;
    default:
      fill(std::uint8_t{}, [&] { return static_cast<std::uint8_t>(random()); });
  }
  return made;
}

inline constexpr std::int32_t every_operation[] = {HEADRACE_COMM_ALL_REDUCE,
                                                   HEADRACE_COMM_BROADCAST,
                                                   HEADRACE_COMM_REDUCE,
                                                   HEADRACE_COMM_ALL_GATHER_SINGLE,
                                                   HEADRACE_COMM_REDUCE_SCATTER_SINGLE,
                                                   HEADRACE_COMM_ALL_TO_ALL_SINGLE,
                                                   HEADRACE_COMM_GATHER_SINGLE,
                                                   HEADRACE_COMM_SCATTER,
                                                   HEADRACE_COMM_BARRIER};
inline constexpr std::int32_t last_dtype = HEADRACE_FLOAT8_E5M2, last_reduction = HEADRACE_COMM_PREMUL_SUM;

}  // namespace headrace::kernels::collectives
