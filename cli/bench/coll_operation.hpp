// SPDX-License-Identifier: Apache-2.0
// The operations that `headrace bench coll` measures: rows of one table.
#pragma once

#include <headrace/comm.hpp>
#include <headrace/comm_window.hpp>

#include "cli/bench/coll_elements.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace headrace::cli {

/// How many elements a rank's input or output has: none, `count`, or `count` for each rank.
enum class Extent { none, one, row };
/// Whether input and output are the same memory.
enum class Place { apart, same, both };
/// Where memory of a window is.
enum class WindowSide { none, input, output };

/// One rank's call, made once and run any number of times.
struct CollCall {
  Comm& comm;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  ConstElements input = {};
  Elements output = {};
  Window* window = nullptr;
  OpOptions options = {};
  ConstElements split_elements = {};  ///< equal shares, where the operation's elements are
  // Made by prepare.
  std::vector<ConstElements> input_parts = {};
  std::vector<Elements> output_parts = {};
  std::vector<std::size_t> splits = {};
  std::optional<AllGatherHandle> handle = {};  ///< made by the first call that needs it

  [[nodiscard]] int next() const { return (comm.rank() + 1) % comm.size(); }
  [[nodiscard]] int previous() const { return (comm.rank() + comm.size() - 1) % comm.size(); }
  [[nodiscard]] bool is_root() const { return comm.rank() == root; }
  /// Cuts what has one part for each rank.
  void prepare();
};

/// Who a rank is, for what it must get.
struct CollRank {
  int rank, ranks, root;
};

struct CollOperation {
  std::string_view name;
  Extent input = Extent::none, output = Extent::none;
  Place place = Place::apart;
  bool reduces = false;
  bool rooted = false;
  /// Needs another rank.
  bool between_ranks = false;
  WindowSide window = WindowSide::none;
  /// The parts of a rank's output; `count` elements each.
  std::vector<ExpectedPart> (*expected)(const CollRank& rank, std::size_t count) = nullptr;
  /// What the bandwidth of the bus is, relative to size by time: the bytes that each rank must send or get.
  double (*bus_factor)(double ranks) = nullptr;
  /// Null: abort, which ends its communicator.
  Result<void> (*run)(CollCall& call) = nullptr;

  /// Whether it can be measured with these elements.
  [[nodiscard]] bool takes(DType dtype, ReduceOp::Kind op) const;
  /// Of the larger one of input and output, as nccl-tests count it.
  [[nodiscard]] std::size_t elements(std::size_t count, int ranks) const;
};

[[nodiscard]] std::span<const CollOperation> coll_operations();

}  // namespace headrace::cli
