// SPDX-License-Identifier: Apache-2.0
// Which operations, types and reductions each backend takes, asked of the code that refuses calls: `host` and
// `p2p` by calls of two ranks, NCCL and oneCCL by their check of a call. tests/fixtures/comm_support.tsv has
// the answers, of which tools/support_table.py makes the tables of docs/collectives.md.
#include "fake_p2p.hpp"
#include "gpu_ranks.hpp"
#include "ranks.hpp"

#include "base/errors.hpp"
#include "nccl/operation.hpp"
#include "nccl/windows.hpp"
#include "oneccl/operation.hpp"

#include <headrace/comm_window.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

namespace headrace::test {
namespace {

using Op = CommOperation;
using Names = std::vector<std::string>;

constexpr std::array operations{Op::all_reduce,
                                Op::reduce,
                                Op::reduce_scatter,
                                Op::reduce_scatter_v,
                                Op::reduce_scatter_single,
                                Op::reduce_scatter_quantized,
                                Op::broadcast,
                                Op::all_gather,
                                Op::all_gather_v,
                                Op::all_gather_single,
                                Op::all_to_all,
                                Op::all_to_all_single,
                                Op::all_to_all_v_single,
                                Op::device_all_to_all_v_single,
                                Op::gather,
                                Op::gather_single,
                                Op::scatter,
                                Op::send,
                                Op::recv,
                                Op::barrier,
                                Op::monitored_barrier,
                                Op::put,
                                Op::get,
                                Op::signal,
                                Op::atomic_add};

bool is_reduction(Op op) {
  return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter || op == Op::reduce_scatter_v ||
         op == Op::reduce_scatter_single || op == Op::reduce_scatter_quantized;
}
bool has_elements(Op op) { return op != Op::barrier && op != Op::monitored_barrier && op != Op::signal; }

/// Whether a backend takes a call.
using Asked = std::function<bool(Op op, DType dtype, ReduceOp::Kind reduction)>;

std::string list_text(const Names& names, std::size_t all) {
  return names.size() == all ? "all" : fmt::format("{}", fmt::join(names, ","));
}

/// The lines of a backend: types that take the same reductions share one.
std::string lines_of(const std::string& backend, const Asked& takes) {
  std::string lines;
  for (const Op op : operations) {
    std::vector<std::pair<std::string, Names>> types_of;  // reductions, types
    for (std::size_t type = 0; type < dtype_count; ++type) {
      const auto dtype = static_cast<DType>(type);
      Names reductions;
      for (int kind = ReduceOp::sum; kind <= (is_reduction(op) ? ReduceOp::premul_sum : ReduceOp::sum);
           ++kind)
        if (takes(op, dtype, static_cast<ReduceOp::Kind>(kind)))
          reductions.emplace_back(reduce_op_name(static_cast<ReduceOp::Kind>(kind)));
      if (reductions.empty()) continue;
      const std::string text = is_reduction(op) ? list_text(reductions, 9) : "-";
      const auto at = std::ranges::find(types_of, text, &std::pair<std::string, Names>::first);
      (at == types_of.end() ? types_of.emplace_back(text, Names()) : *at)
          .second.emplace_back(dtype_name(dtype));
      if (!has_elements(op)) break;
    }
    for (const auto& [reductions, types] : types_of)
      lines += fmt::format("{}\t{}\t{}\t{}\n", backend, comm_operation_name(op),
                           has_elements(op) ? list_text(types, dtype_count) : "-", reductions);
  }
  return lines;
}

/// Rank 0 sends to rank 1.
Result<Work> message(Comm& comm, const Elements& elements) {
  return comm.rank() == 0 ? comm.send(elements, 1) : comm.recv(elements, 0);
}

Result<void> window_call(Comm& comm, Op op, const Elements& elements) {
  HEADRACE_TRY(window, comm.new_window());
  must(window.allocate(1, elements.dtype));
  Result<void> done;
  const auto keep = [&done](const auto& result) {
    if (!result) done = result.error();
  };
  if (op == Op::put) keep(window.put(elements, comm.rank(), 0));
  if (op == Op::get) keep(window.get(elements, comm.rank(), 0));
  if (op == Op::signal) keep(window.signal(comm.rank()));
  if (op == Op::atomic_add) keep(window.atomic_add(comm.rank(), 0, 1));
  must(window.tensor_deregister());
  return done;
}

/// Memory of a call: two elements each, and two splits.
struct CallBytes {
  std::byte* from;
  std::byte* to;
  std::int64_t* splits;
};

/// One call of two ranks, with one element for each.
Result<void> one_call(Comm& comm, Op op, DType dtype, ReduceOp::Kind reduction, const CallBytes& bytes) {
  const std::size_t width = element_bytes(dtype);
  const Elements in{bytes.from, 1, dtype}, out{bytes.to, 1, dtype};
  const Elements in_row{bytes.from, 2, dtype}, out_row{bytes.to, 2, dtype};
  const std::array<ConstElements, 2> ins{in, ConstElements{bytes.from + width, 1, dtype}};
  const std::array<Elements, 2> outs{out, Elements{bytes.to + width, 1, dtype}};
  const std::array<std::size_t, 2> splits{1, 1};
  const ConstElements split_elements{bytes.splits, 2, DType::int64};
  const bool root = comm.rank() == 0;
  const auto at_root = [root](const auto& list) {
    return root ? std::span(list) : std::span(list).subspan(0, 0);
  };
  const auto done = [](Result<Work> work) { return work ? work->wait() : Result<void>(work.error()); };
  switch (op) {
    case Op::all_reduce:
      return done(comm.all_reduce(in, out, reduction));
    case Op::reduce:
      return done(comm.reduce(out, 0, reduction));
    case Op::reduce_scatter:
      return done(comm.reduce_scatter(out, ins, reduction));
    case Op::reduce_scatter_v:
      return done(comm.reduce_scatter_v(out, ins, reduction));
    case Op::reduce_scatter_single:
      return done(comm.reduce_scatter_single(out, in_row, reduction));
    case Op::reduce_scatter_quantized:
      return done(comm.reduce_scatter_quantized(out, in_row, reduction, 1));
    case Op::broadcast:
      return done(comm.broadcast(out, 0));
    case Op::all_gather:
      return done(comm.all_gather(outs, in));
    case Op::all_gather_v:
      return done(comm.all_gather_v(outs, in));
    case Op::all_gather_single:
      return done(comm.all_gather_single(out_row, in));
    case Op::all_to_all:
      return done(comm.all_to_all(outs, ins));
    case Op::all_to_all_single:
      return done(comm.all_to_all_single(out_row, in_row));
    case Op::all_to_all_v_single:
      return done(comm.all_to_all_v_single(out_row, in_row, splits, splits));
    case Op::device_all_to_all_v_single:
      return done(comm.device_all_to_all_v_single(out_row, in_row, split_elements, split_elements));
    case Op::gather:
      return done(comm.gather(at_root(outs), in, 0));
    case Op::gather_single:
      return done(comm.gather_single(out_row, in, 0));
    case Op::scatter:
      return done(comm.scatter(out, at_root(ins), 0));
    case Op::send:
    case Op::recv:
      return done(message(comm, out));
    case Op::barrier:
      return done(comm.barrier());
    case Op::monitored_barrier:
      return comm.monitored_barrier();
    default:
      return window_call(comm, op, out);
  }
}

std::string lines_by_calls(const std::string& backend, Comm& comm, const CallBytes& bytes) {
  return lines_of(backend, [&](Op op, DType dtype, ReduceOp::Kind reduction) {
    const auto done = one_call(comm, op, dtype, reduction, bytes);
    EXPECT_TRUE(done || done.code() == Code::invalid_argument || done.code() == Code::not_supported)
        << done.error().message;
    return done.ok();
  });
}

std::string lines_of_host() {
  std::array<std::string, 2> lines;
  with_ranks(2, [&](Comm& comm) {
    alignas(16) std::array<std::byte, 32> from{}, to{};
    std::array<std::int64_t, 2> splits{1, 1};
    lines[static_cast<std::size_t>(comm.rank())] =
        lines_by_calls("host", comm, {from.data(), to.data(), splits.data()});
  });
  EXPECT_EQ(lines[0], lines[1]);
  return lines[0];
}

std::string lines_of_p2p() {
  std::array<std::string, 2> lines;
  std::barrier<> ranks(2);
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank, ranks);
    CommOptions options = rank_options(rank, 2, name);
    options.backend = fake_p2p();
    options.device = "cuda:" + std::to_string(rank);
    options.hints.clear();
    Comm comm = must(Comm::open(options));
    const CallBytes bytes{reinterpret_cast<std::byte*>(gpu.take(32)),
                          reinterpret_cast<std::byte*>(gpu.take(32)),
                          reinterpret_cast<std::int64_t*>(gpu.take(16))};
    std::fill_n(bytes.splits, 2, 1);  // memory of the fake driver is the host's
    lines[static_cast<std::size_t>(rank)] = lines_by_calls("p2p", comm, bytes);
    must(comm.finalize());
  });
  EXPECT_EQ(lines[0], lines[1]);
  return lines[0];
}

/// By the check of a call.
template <class Check>
std::string lines_by_check(const std::string& backend, const Check& check) {
  return lines_of(backend, [&](Op op, DType dtype, ReduceOp::Kind reduction) {
    const headrace_comm_elements_v1 elements{nullptr, 1, static_cast<std::int32_t>(dtype)};
    headrace_comm_call_v1 call{};
    call.struct_size = sizeof call;
    call.operation = static_cast<std::int32_t>(op);
    call.inputs = call.outputs = &elements;
    call.input_count = call.output_count = 1;
    call.reduction = reduction;
    call.factor = 1;
    return check(call).ok();
  });
}

/// With all that the newest version that is known has.
std::string lines_of_nccl() {
  nccl::Library library;
  library.version = 23203;
  // Windows ask for functions that are there.
  library.table.window_register = [](auto...) { return nccl::Outcome::success; };
  library.table.window_deregister = [](auto...) { return nccl::Outcome::success; };
  library.table.put_signal = [](auto...) { return nccl::Outcome::success; };
  library.table.wait_signal = [](auto...) { return nccl::Outcome::success; };
  return lines_by_check("nccl", [&](const auto& call) -> Result<void> {
    const auto op = static_cast<Op>(call.operation);
    if (op == Op::put || op == Op::get || op == Op::signal || op == Op::atomic_add)
      return nccl::check_window_operation(library, op);
    return nccl::check_call(library, call).ok() ? Result<void>() : make_error(Code::not_supported, "no");
  });
}

std::string lines_of_oneccl() {
  return lines_by_check("oneccl", [](const auto& call) { return oneccl::check_call(call); });
}

const std::string file = HEADRACE_TEST_DIR "/fixtures/comm_support.tsv";

TEST(CommSupport, the_table_of_operations_and_types_is_what_the_backends_take) {
  const std::string taken = "backend\toperation\ttypes\treductions\n" + lines_of_host() + lines_of_nccl() +
                            lines_of_oneccl() + lines_of_p2p();
  if (std::getenv("HEADRACE_WRITE_SUPPORT") != nullptr) std::ofstream(file) << taken;
  std::ifstream written(file);
  const std::string text{std::istreambuf_iterator<char>(written), {}};
  EXPECT_EQ(text, taken)
      << "run this test with HEADRACE_WRITE_SUPPORT=1, then tools/support_table.py --write";
}

}  // namespace
}  // namespace headrace::test
