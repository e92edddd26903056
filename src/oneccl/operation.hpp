// SPDX-License-Identifier: Apache-2.0
// One call of a communicator as calls of oneCCL, on memory of its own.
#pragma once

#include "vendor/oneccl/library.hpp"

#include <headrace/plugin/comm_v1.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace headrace::oneccl {

/// How elements are reduced.
struct Reduction {
  DataType type = DataType::int8;
  std::size_t parts = 1;  // numbers of an element
  ReduceOp op = ReduceOp::sum;
};

/// Checks a call, and says how its elements are reduced.
///   errors  not_supported (oneCCL has no such operation, reduction or type; a tag, a recv from any source),
///           invalid_argument (a hint)
[[nodiscard]] Result<Reduction> check_call(const headrace_comm_call_v1& call);

/// What a call needs until it has ended. The library cannot be stopped, and may still use memory after the
/// caller has it back, so it gets copies: of the inputs now, of the outputs when it has ended.
class StagedCall {
 public:
  /// Where a call runs.
  struct Place {
    int rank;
    int size;
  };

  StagedCall(const headrace_comm_call_v1& call, const Reduction& reduction, const Place& place);
  StagedCall(const StagedCall&) = delete;
  StagedCall& operator=(const StagedCall&) = delete;

  /// Returns when the library has ended it, which may be never.
  [[nodiscard]] Outcome run(const Table& table, Comm comm);
  /// Writes what run has made to the elements of the caller.
  void give_back() const;

 private:
  using Counts = std::vector<std::size_t>;
  using Memory = std::unique_ptr<std::byte[]>;

  void take_inputs(const headrace_comm_call_v1& call);
  void count_bytes(const headrace_comm_call_v1& call);
  [[nodiscard]] bool is_root() const { return peer_ == place_.rank; }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(place_.size); }
  [[nodiscard]] Outcome gather_each(const Table& table, Comm comm);
  [[nodiscard]] Outcome reduce_each(const Table& table, Comm comm);

  const int operation_, peer_;
  const Place place_;
  const Reduction reduction_;
  std::size_t width_ = 1;  // bytes of a number that is reduced
  Memory from_, to_;       // all inputs in a row, all outputs
  std::size_t from_bytes_ = 0, to_bytes_ = 0;
  Counts sent_, received_;  // bytes to and from each rank, of operations in which they may differ
  std::vector<headrace_comm_elements_v1> outputs_;
};

}  // namespace headrace::oneccl
