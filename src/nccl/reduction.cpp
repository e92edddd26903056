// SPDX-License-Identifier: Apache-2.0
#include "nccl/reduction.hpp"

#include "base/comm_calls.hpp"

#include "base/small_float.hpp"

#include <headrace/comm_call.hpp>

#include <cstring>
#include <optional>

namespace headrace::nccl {
namespace {

/// The type that NCCL has for an element, if it has one.
std::optional<DataType> number_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return DataType::float32;
    case DType::float64:
      return DataType::float64;
    case DType::float16:
      return DataType::float16;
    case DType::bfloat16:
      return DataType::bfloat16;
    case DType::int8:
      return DataType::int8;
    case DType::int32:
      return DataType::int32;
    case DType::int64:
      return DataType::int64;
    case DType::uint8:
      return DataType::uint8;
    case DType::uint32:
      return DataType::uint32;
    case DType::uint64:
      return DataType::uint64;
    case DType::float8_e4m3fn:
      return DataType::float8_e4m3;
    case DType::float8_e5m2:
      return DataType::float8_e5m2;
    default:
      return std::nullopt;
  }
}

Error lacks(DType dtype, std::int32_t reduction) {
  return make_error(Code::not_supported, "NCCL has no {} of {}: reduce on the host, or convert the elements",
                    reduce_op_name(static_cast<headrace::ReduceOp::Kind>(reduction)), dtype_name(dtype));
}

std::optional<ReduceOp> plain_op(std::int32_t reduction) {
  switch (reduction) {
    case HEADRACE_COMM_SUM:
    case HEADRACE_COMM_PREMUL_SUM:
      return ReduceOp::sum;
    case HEADRACE_COMM_PRODUCT:
      return ReduceOp::product;
    case HEADRACE_COMM_MIN:
      return ReduceOp::min;
    case HEADRACE_COMM_MAX:
      return ReduceOp::max;
    case HEADRACE_COMM_AVG:
      return ReduceOp::avg;
    default:
      return std::nullopt;
  }
}

/// Pairs of numbers, of which only sums are sums of complex numbers.
Result<Reduction> of_complex(DType dtype, std::int32_t reduction) {
  const bool sums = reduction == HEADRACE_COMM_SUM || reduction == HEADRACE_COMM_AVG ||
                    reduction == HEADRACE_COMM_PREMUL_SUM;
  if (!sums) return lacks(dtype, reduction);
  return Reduction{dtype == DType::complex64 ? DataType::float32 : DataType::float64, 2, *plain_op(reduction),
                   reduction == HEADRACE_COMM_PREMUL_SUM};
}

template <class Number>
std::array<std::byte, 8> bytes_of(Number number) {
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

}  // namespace

Result<Reduction> reduction_of(const Library& library, std::int32_t dtype, std::int32_t reduction) {
  if (dtype < 0 || static_cast<std::size_t>(dtype) >= dtype_count || reduction < HEADRACE_COMM_SUM ||
      reduction > HEADRACE_COMM_PREMUL_SUM)
    return make_error(Code::invalid_argument, "there is no type {}, or no reduction {}", dtype, reduction);
  const auto type = static_cast<DType>(dtype);
  if (type == DType::complex64 || type == DType::complex128) return of_complex(type, reduction);
  if (type == DType::boolean) {
    if (const auto op = comm_border::reduction_of_bytes(reduction))
      return Reduction{DataType::uint8, 1, *plain_op(*op), false};
    return lacks(type, reduction);
  }
  const auto number = number_type(type);
  const auto op = plain_op(reduction);
  if (!number || !op) return lacks(type, reduction);
  if (*number >= DataType::float8_e4m3 && library.version < version_of_float8)
    return needs_version(library, fmt::format("reducing {}", dtype_name(type)), version_of_float8);
  return Reduction{*number, 1, *op, reduction == HEADRACE_COMM_PREMUL_SUM};
}

std::array<std::byte, 8> scalar_of(DataType type, double value) {
  switch (type) {
    case DataType::int8:
      return bytes_of(static_cast<std::int8_t>(value));
    case DataType::uint8:
      return bytes_of(static_cast<std::uint8_t>(value));
    case DataType::int32:
      return bytes_of(static_cast<std::int32_t>(value));
    case DataType::uint32:
      return bytes_of(static_cast<std::uint32_t>(value));
    case DataType::int64:
      return bytes_of(static_cast<std::int64_t>(value));
    case DataType::uint64:
      return bytes_of(static_cast<std::uint64_t>(value));
    case DataType::float16:
      return bytes_of(Float16::store(static_cast<float>(value)));
    case DataType::float32:
      return bytes_of(static_cast<float>(value));
    case DataType::float64:
      return bytes_of(value);
    case DataType::bfloat16:
      return bytes_of(BFloat16::store(static_cast<float>(value)));
    case DataType::float8_e4m3:
      return bytes_of(Float8E4M3::store(static_cast<float>(value)));
    case DataType::float8_e5m2:
      return bytes_of(Float8E5M2::store(static_cast<float>(value)));
  }
  return {};
}

}  // namespace headrace::nccl
