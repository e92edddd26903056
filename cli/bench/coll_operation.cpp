// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/coll_operation.hpp"

#include "cli/common/errors.hpp"

#include <array>

namespace headrace::cli {
namespace {

using Parts = std::vector<ExpectedPart>;

// --- what a rank must get

Parts nothing(const CollRank&, std::size_t) { return {}; }
Parts whole_reduction(const CollRank&, std::size_t count) { return {{0, count, reduction_of_all, 0}}; }
Parts own_part_of_reduction(const CollRank& at, std::size_t count) {
  return {{0, count, reduction_of_all, static_cast<std::size_t>(at.rank) * count}};
}
/// Ranks other than the root keep what they have.
Parts reduction_at_root(const CollRank& at, std::size_t count) {
  return {{0, count, at.rank == at.root ? reduction_of_all : at.rank, 0}};
}
Parts all_of_root(const CollRank& at, std::size_t count) { return {{0, count, at.root, 0}}; }
Parts own_part_of_root(const CollRank& at, std::size_t count) {
  return {{0, count, at.root, static_cast<std::size_t>(at.rank) * count}};
}
Parts all_of_previous(const CollRank& at, std::size_t count) {
  return {{0, count, (at.rank + at.ranks - 1) % at.ranks, 0}};
}
Parts all_of_next(const CollRank& at, std::size_t count) { return {{0, count, (at.rank + 1) % at.ranks, 0}}; }

Parts a_part_of_each(const CollRank& at, std::size_t count, std::size_t from) {
  Parts parts;
  for (int rank = 0; rank < at.ranks; ++rank)
    parts.push_back({static_cast<std::size_t>(rank) * count, count, rank, from});
  return parts;
}
Parts all_of_each(const CollRank& at, std::size_t count) { return a_part_of_each(at, count, 0); }
Parts own_part_of_each(const CollRank& at, std::size_t count) {
  return a_part_of_each(at, count, static_cast<std::size_t>(at.rank) * count);
}
Parts all_of_each_at_root(const CollRank& at, std::size_t count) {
  return at.rank == at.root ? all_of_each(at, count) : Parts();
}

// --- factors of nccl-tests

double as_it_is(double) { return 1; }
double all_but_own(double ranks) { return (ranks - 1) / ranks; }
double there_and_back(double ranks) { return 2 * (ranks - 1) / ranks; }

// --- calls

/// Drops the work: the call waits for its end, or the stream does.
Result<void> called(const Result<Work>& work) {
  if (!work) return work.error();
  if (Error error = work->error(); error.code != Code::ok) return error;
  return {};
}

/// A message to the next rank and one from the previous one.
Result<void> issue_batch(CollCall& c) {
  Batch batch = c.comm.batch();
  HEADRACE_CLI_CHECK(batch.send(c.input, c.next()));
  HEADRACE_CLI_CHECK(batch.recv(c.output, c.previous()));
  return called(batch.issue(c.options));
}

Result<void> send_and_receive(CollCall& c) {
  // On a stream a receive would wait behind a send that waits for its receiver.
  if (c.options.stream != nullptr) return issue_batch(c);
  HEADRACE_CLI_TRY(sent, c.comm.send(c.input, c.next(), {.async = true}));
  HEADRACE_CLI_CHECK(c.comm.recv(c.output, c.previous()));
  return sent.wait();
}

Result<void> gather_into_prepared(CollCall& c) {
  if (!c.handle) {
    HEADRACE_CLI_TRY(handle, c.comm.all_gather_p_init(c.output));
    c.handle = std::move(handle);
  }
  return called(c.comm.all_gather_p_exec(*c.handle, c.input, c.options));
}

const std::array coll_rows{
    CollOperation{
        .name = "all_reduce",
        .input = Extent::one,
        .output = Extent::one,
        .place = Place::both,
        .reduces = true,
        .expected = whole_reduction,
        .bus_factor = there_and_back,
        .run = [](CollCall& c) { return called(c.comm.all_reduce(c.input, c.output, c.op, c.options)); }},
    CollOperation{.name = "broadcast",
                  .input = Extent::one,
                  .output = Extent::one,
                  .place = Place::same,
                  .rooted = true,
                  .expected = all_of_root,
                  .bus_factor = as_it_is,
                  .run = [](CollCall& c) { return called(c.comm.broadcast(c.output, c.root, c.options)); }},
    CollOperation{
        .name = "reduce",
        .input = Extent::one,
        .output = Extent::one,
        .place = Place::same,
        .reduces = true,
        .rooted = true,
        .expected = reduction_at_root,
        .bus_factor = as_it_is,
        .run = [](CollCall& c) { return called(c.comm.reduce(c.output, c.root, c.op, c.options)); }},
    CollOperation{
        .name = "all_gather",
        .input = Extent::one,
        .output = Extent::row,
        .expected = all_of_each,
        .bus_factor = all_but_own,
        .run = [](CollCall& c) { return called(c.comm.all_gather(c.output_parts, c.input, c.options)); }},
    CollOperation{
        .name = "all_gather_v",
        .input = Extent::one,
        .output = Extent::row,
        .expected = all_of_each,
        .bus_factor = all_but_own,
        .run = [](CollCall& c) { return called(c.comm.all_gather_v(c.output_parts, c.input, c.options)); }},
    CollOperation{
        .name = "all_gather_single",
        .input = Extent::one,
        .output = Extent::row,
        .expected = all_of_each,
        .bus_factor = all_but_own,
        .run = [](CollCall& c) { return called(c.comm.all_gather_single(c.output, c.input, c.options)); }},
    CollOperation{.name = "all_gather_p",
                  .input = Extent::one,
                  .output = Extent::row,
                  .expected = all_of_each,
                  .bus_factor = all_but_own,
                  .run = gather_into_prepared},
    CollOperation{.name = "reduce_scatter",
                  .input = Extent::row,
                  .output = Extent::one,
                  .reduces = true,
                  .expected = own_part_of_reduction,
                  .bus_factor = all_but_own,
                  .run =
                      [](CollCall& c) {
                        return called(c.comm.reduce_scatter(c.output, c.input_parts, c.op, c.options));
                      }},
    CollOperation{.name = "reduce_scatter_v",
                  .input = Extent::row,
                  .output = Extent::one,
                  .reduces = true,
                  .expected = own_part_of_reduction,
                  .bus_factor = all_but_own,
                  .run =
                      [](CollCall& c) {
                        return called(c.comm.reduce_scatter_v(c.output, c.input_parts, c.op, c.options));
                      }},
    CollOperation{.name = "reduce_scatter_single",
                  .input = Extent::row,
                  .output = Extent::one,
                  .reduces = true,
                  .expected = own_part_of_reduction,
                  .bus_factor = all_but_own,
                  .run =
                      [](CollCall& c) {
                        return called(c.comm.reduce_scatter_single(c.output, c.input, c.op, c.options));
                      }},
    CollOperation{.name = "reduce_scatter_quantized",
                  .input = Extent::row,
                  .output = Extent::one,
                  .reduces = true,
                  .expected = own_part_of_reduction,
                  .bus_factor = all_but_own,
                  .run =
                      [](CollCall& c) {
                        constexpr std::uint64_t seed = 1;
                        return called(
                            c.comm.reduce_scatter_quantized(c.output, c.input, c.op, seed, c.options));
                      }},
    CollOperation{
        .name = "all_to_all",
        .input = Extent::row,
        .output = Extent::row,
        .expected = own_part_of_each,
        .bus_factor = all_but_own,
        .run =
            [](CollCall& c) { return called(c.comm.all_to_all(c.output_parts, c.input_parts, c.options)); }},
    CollOperation{
        .name = "all_to_all_single",
        .input = Extent::row,
        .output = Extent::row,
        .expected = own_part_of_each,
        .bus_factor = all_but_own,
        .run = [](CollCall& c) { return called(c.comm.all_to_all_single(c.output, c.input, c.options)); }},
    CollOperation{.name = "all_to_all_v_single",
                  .input = Extent::row,
                  .output = Extent::row,
                  .expected = own_part_of_each,
                  .bus_factor = all_but_own,
                  .run =
                      [](CollCall& c) {
                        return called(
                            c.comm.all_to_all_v_single(c.output, c.input, c.splits, c.splits, c.options));
                      }},
    CollOperation{.name = "device_all_to_all_v_single",
                  .input = Extent::row,
                  .output = Extent::row,
                  .expected = own_part_of_each,
                  .bus_factor = all_but_own,
                  .run =
                      [](CollCall& c) {
                        return called(c.comm.device_all_to_all_v_single(c.output, c.input, c.split_elements,
                                                                        c.split_elements, c.options));
                      }},
    CollOperation{
        .name = "gather",
        .input = Extent::one,
        .output = Extent::row,
        .rooted = true,
        .expected = all_of_each_at_root,
        .bus_factor = all_but_own,
        .run = [](CollCall& c) { return called(c.comm.gather(c.output_parts, c.input, c.root, c.options)); }},
    CollOperation{
        .name = "gather_single",
        .input = Extent::one,
        .output = Extent::row,
        .rooted = true,
        .expected = all_of_each_at_root,
        .bus_factor = all_but_own,
        .run =
            [](CollCall& c) { return called(c.comm.gather_single(c.output, c.input, c.root, c.options)); }},
    CollOperation{
        .name = "scatter",
        .input = Extent::row,
        .output = Extent::one,
        .rooted = true,
        .expected = own_part_of_root,
        .bus_factor = all_but_own,
        .run =
            [](CollCall& c) { return called(c.comm.scatter(c.output, c.input_parts, c.root, c.options)); }},
    CollOperation{.name = "send_recv",
                  .input = Extent::one,
                  .output = Extent::one,
                  .between_ranks = true,
                  .expected = all_of_previous,
                  .bus_factor = as_it_is,
                  .run = send_and_receive},
    CollOperation{.name = "batch",
                  .input = Extent::one,
                  .output = Extent::one,
                  .between_ranks = true,
                  .expected = all_of_previous,
                  .bus_factor = as_it_is,
                  .run = issue_batch},
    CollOperation{.name = "put",
                  .input = Extent::one,
                  .output = Extent::one,
                  .between_ranks = true,
                  .window = WindowSide::output,
                  .expected = all_of_previous,
                  .bus_factor = as_it_is,
                  .run = [](CollCall& c) { return called(c.window->put(c.input, c.next(), 0)); }},
    CollOperation{.name = "get",
                  .input = Extent::one,
                  .output = Extent::one,
                  .between_ranks = true,
                  .window = WindowSide::input,
                  .expected = all_of_next,
                  .bus_factor = as_it_is,
                  .run = [](CollCall& c) { return called(c.window->get(c.output, c.next(), 0)); }},
    CollOperation{.name = "barrier",
                  .expected = nothing,
                  .bus_factor = as_it_is,
                  .run = [](CollCall& c) { return called(c.comm.barrier(c.options)); }},
    CollOperation{.name = "monitored_barrier",
                  .expected = nothing,
                  .bus_factor = as_it_is,
                  .run = [](CollCall& c) { return c.comm.monitored_barrier(); }},
    CollOperation{.name = "abort", .between_ranks = true, .expected = nothing, .bus_factor = as_it_is}};

template <class List, class Row>
void cut(List& parts, const Row& elements, std::size_t ranks) {
  const std::size_t count = elements.count / ranks, bytes = count * element_bytes(elements.dtype);
  parts.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    auto part = elements;
    part.count = count;
    // Offsets of an address that may be of a GPU.
    part.data =
        reinterpret_cast<decltype(part.data)>(reinterpret_cast<std::uintptr_t>(elements.data) + rank * bytes);
    parts.push_back(part);
  }
}

}  // namespace

void CollCall::prepare() {
  const auto ranks = static_cast<std::size_t>(comm.size());
  if (input.count > 0) cut(input_parts, input, ranks);
  if (output.count > 0) cut(output_parts, output, ranks);
  splits.assign(ranks, input.count / ranks);
}

bool CollOperation::takes(DType dtype, ReduceOp::Kind op) const {
  if (name == "reduce_scatter_quantized")
    return dtype == DType::float32 && (op == ReduceOp::sum || op == ReduceOp::avg);
  return !reduces || cli::reduces(op, dtype);
}

std::size_t CollOperation::elements(std::size_t count, int ranks) const {
  if (input == Extent::none && output == Extent::none) return 0;
  return input == Extent::row || output == Extent::row ? count * static_cast<std::size_t>(ranks) : count;
}

std::span<const CollOperation> coll_operations() { return coll_rows; }

}  // namespace headrace::cli
