// SPDX-License-Identifier: Apache-2.0
#include "oneccl/operation.hpp"

#include "base/comm_calls.hpp"

#include <headrace/comm_call.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

namespace headrace::oneccl {
namespace {

using Elements = headrace_comm_elements_v1;

std::size_t bytes_of(const Elements& elements) {
  return elements.count * element_bytes(static_cast<DType>(elements.dtype));
}

// --- what oneCCL has

std::optional<DataType> number_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::complex64:
      return DataType::float32;
    case DType::float64:
    case DType::complex128:
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
    case DType::boolean:
      return DataType::uint8;
    case DType::uint32:
      return DataType::uint32;
    case DType::uint64:
      return DataType::uint64;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> op_of_numbers(std::int32_t reduction) {
  switch (reduction) {
    case HEADRACE_COMM_SUM:
      return ReduceOp::sum;
    case HEADRACE_COMM_PRODUCT:
      return ReduceOp::product;
    case HEADRACE_COMM_MIN:
      return ReduceOp::min;
    case HEADRACE_COMM_MAX:
      return ReduceOp::max;
    default:
      return std::nullopt;
  }
}

/// Complex numbers are pairs of numbers, of which only sums are sums.
std::optional<ReduceOp> op_of(DType dtype, std::int32_t reduction) {
  if (dtype == DType::boolean) {
    const auto of_bytes = comm_border::reduction_of_bytes(reduction);
    return of_bytes ? op_of_numbers(*of_bytes) : std::nullopt;
  }
  const bool is_pair = dtype == DType::complex64 || dtype == DType::complex128;
  if (is_pair && reduction != HEADRACE_COMM_SUM) return std::nullopt;
  return op_of_numbers(reduction);
}

Result<Reduction> reduction_of(const Elements& elements, std::int32_t reduction) {
  if (elements.dtype < 0 || static_cast<std::size_t>(elements.dtype) >= dtype_count ||
      reduction < HEADRACE_COMM_SUM || reduction > HEADRACE_COMM_PREMUL_SUM)
    return make_error(Code::invalid_argument, "there is no type {}, or no reduction {}", elements.dtype,
                      reduction);
  const auto dtype = static_cast<DType>(elements.dtype);
  const auto type = number_type(dtype);
  const auto op = op_of(dtype, reduction);
  if (!type || !op)
    return make_error(Code::not_supported,
                      "oneCCL has no {} of {}: use backend host, or convert the elements",
                      reduce_op_name(static_cast<headrace::ReduceOp::Kind>(reduction)), dtype_name(dtype));
  const bool is_pair = dtype == DType::complex64 || dtype == DType::complex128;
  return Reduction{*type, is_pair ? 2U : 1U, *op};
}

bool all_same(std::span<const std::size_t> counts) {
  return std::ranges::adjacent_find(counts, std::not_equal_to{}) == counts.end();
}

std::size_t sum_of(std::span<const Elements> list) {
  std::size_t bytes = 0;
  for (const Elements& elements : list) bytes += bytes_of(elements);
  return bytes;
}

}  // namespace

Result<Reduction> check_call(const headrace_comm_call_v1& call) {
  if (call.operation < HEADRACE_COMM_ALL_REDUCE || call.operation > HEADRACE_COMM_RECV)
    return make_error(Code::not_supported, "oneCCL has no {}",
                      comm_operation_name(static_cast<CommOperation>(call.operation)));
  if (call.hint_count != 0)
    return make_error(Code::invalid_argument, "its calls have no hints, and {} is given", call.hints[0].name);
  if (is_message(static_cast<CommOperation>(call.operation)))
    HEADRACE_TRY_VOID(comm_border::check_message(call, "oneCCL"));
  if (!comm_border::reduces(call.operation)) return Reduction{};
  return reduction_of(call.input_count != 0 ? call.inputs[0] : call.outputs[0], call.reduction);
}

StagedCall::StagedCall(const headrace_comm_call_v1& call, const Reduction& reduction, const Place& place)
    : operation_(call.operation),
      peer_(call.peer),
      place_(place),
      reduction_(reduction),
      outputs_(call.outputs, call.outputs + call.output_count) {
  take_inputs(call);
  to_bytes_ = sum_of(outputs_);
  to_ = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(to_bytes_, 1));
  count_bytes(call);
  // On other ranks the library makes nothing.
  const bool only_at_root = operation_ == HEADRACE_COMM_REDUCE || operation_ == HEADRACE_COMM_GATHER_SINGLE;
  if (only_at_root && !is_root()) outputs_.clear();
}

void StagedCall::take_inputs(const headrace_comm_call_v1& call) {
  const std::span inputs(call.inputs, static_cast<std::size_t>(call.input_count));
  from_bytes_ = sum_of(inputs);
  from_ = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(from_bytes_, 1));
  from_[0] = {};
  std::size_t at = 0;
  for (const Elements& elements : inputs) {
    if (elements.count != 0) std::memcpy(from_.get() + at, elements.data, bytes_of(elements));
    at += bytes_of(elements);
  }
  if (!inputs.empty()) width_ = element_bytes(static_cast<DType>(inputs.front().dtype)) / reduction_.parts;
}

/// Fills sent_ and received_.
void StagedCall::count_bytes(const headrace_comm_call_v1& call) {
  const auto list = [](const Elements* elements, std::uint64_t count) {
    Counts bytes;
    for (std::uint64_t index = 0; index < count; ++index) bytes.push_back(bytes_of(elements[index]));
    return bytes;
  };
  const auto only_root = [this](std::size_t bytes) {
    Counts counts(ranks(), 0);
    counts[static_cast<std::size_t>(peer_)] = bytes;
    return counts;
  };
  switch (operation_) {
    case HEADRACE_COMM_ALL_GATHER:
    case HEADRACE_COMM_ALL_GATHER_V:
      received_ = list(call.outputs, call.output_count);
      return;
    case HEADRACE_COMM_REDUCE_SCATTER:
    case HEADRACE_COMM_REDUCE_SCATTER_V:
      sent_ = list(call.inputs, call.input_count);
      return;
    case HEADRACE_COMM_ALL_TO_ALL:
      sent_ = list(call.inputs, call.input_count);
      received_ = list(call.outputs, call.output_count);
      return;
    case HEADRACE_COMM_ALL_TO_ALL_V_SINGLE:
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        sent_.push_back(call.input_splits[rank] * width_);
        received_.push_back(call.output_splits[rank] * width_);
      }
      return;
    case HEADRACE_COMM_GATHER:
    case HEADRACE_COMM_GATHER_SINGLE:
      sent_ = only_root(from_bytes_);
      received_ = Counts(ranks(), is_root() ? from_bytes_ : 0);
      if (is_root() && operation_ == HEADRACE_COMM_GATHER) received_ = list(call.outputs, call.output_count);
      return;
    case HEADRACE_COMM_SCATTER:
      sent_ = is_root() ? list(call.inputs, call.input_count) : Counts(ranks(), 0);
      received_ = only_root(to_bytes_);
      return;
    default:
      return;
  }
}

/// Counts differ, and they do so alike on all ranks.
Outcome StagedCall::gather_each(const Table& table, Comm comm) {
  std::byte* part = to_.get();
  for (int rank = 0; rank < place_.size; ++rank) {
    const std::size_t bytes = received_[static_cast<std::size_t>(rank)];
    const void* const from = rank == place_.rank ? from_.get() : part;
    const Outcome outcome = table.broadcast(from, part, bytes, DataType::int8, rank, comm, nullptr);
    if (outcome != Outcome::success) return outcome;
    part += bytes;
  }
  return Outcome::success;
}

Outcome StagedCall::reduce_each(const Table& table, Comm comm) {
  const Memory unused = std::make_unique_for_overwrite<std::byte[]>(std::ranges::max(sent_) + 1);
  const std::byte* part = from_.get();
  for (int rank = 0; rank < place_.size; ++rank) {
    const std::size_t bytes = sent_[static_cast<std::size_t>(rank)];
    void* const to = rank == place_.rank ? to_.get() : unused.get();
    const Outcome outcome =
        table.reduce(part, to, bytes / width_, reduction_.type, reduction_.op, rank, comm, nullptr);
    if (outcome != Outcome::success) return outcome;
    part += bytes;
  }
  return Outcome::success;
}

Outcome StagedCall::run(const Table& table, Comm comm) {
  std::byte* const from = from_.get();
  std::byte* const to = to_.get();
  const std::size_t numbers = from_bytes_ / width_;
  const DataType type = reduction_.type;
  const ReduceOp op = reduction_.op;
  switch (operation_) {
    case HEADRACE_COMM_ALL_REDUCE:
      return table.all_reduce(from, to, numbers, type, op, comm, nullptr);
    case HEADRACE_COMM_BROADCAST:
      return table.broadcast(from, to, to_bytes_, DataType::int8, peer_, comm, nullptr);
    case HEADRACE_COMM_REDUCE:
      return table.reduce(from, to, numbers, type, op, peer_, comm, nullptr);
    case HEADRACE_COMM_ALL_GATHER:
    case HEADRACE_COMM_ALL_GATHER_V:
      if (!all_same(received_)) return gather_each(table, comm);
      [[fallthrough]];
    case HEADRACE_COMM_ALL_GATHER_SINGLE:
      return table.all_gather(from, to, from_bytes_, DataType::int8, comm, nullptr);
    case HEADRACE_COMM_REDUCE_SCATTER:
    case HEADRACE_COMM_REDUCE_SCATTER_V:
      if (!all_same(sent_)) return reduce_each(table, comm);
      [[fallthrough]];
    case HEADRACE_COMM_REDUCE_SCATTER_SINGLE:
      return table.reduce_scatter(from, to, to_bytes_ / width_, type, op, comm, nullptr);
    case HEADRACE_COMM_ALL_TO_ALL_SINGLE:
      return table.all_to_all(from, to, from_bytes_ / ranks(), DataType::int8, comm, nullptr);
    case HEADRACE_COMM_BARRIER:
      return table.all_reduce(from, to, 1, DataType::uint8, ReduceOp::max, comm, nullptr);
    case HEADRACE_COMM_SEND:
      if (from_bytes_ == 0) return Outcome::success;
      return table.send(from, from_bytes_, DataType::int8, peer_, comm, nullptr);
    case HEADRACE_COMM_RECV:
      if (to_bytes_ == 0) return Outcome::success;
      return table.recv(to, to_bytes_, DataType::int8, peer_, comm, nullptr);
    default:  // all_to_all, gather, scatter: each rank has its own counts
      return table.all_to_all_v(from, sent_.data(), to, received_.data(), DataType::int8, comm, nullptr);
  }
}

void StagedCall::give_back() const {
  const std::byte* at = to_.get();
  for (const Elements& elements : outputs_) {
    if (elements.count != 0) std::memcpy(elements.data, at, bytes_of(elements));
    at += bytes_of(elements);
  }
}

}  // namespace headrace::oneccl
