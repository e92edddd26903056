// SPDX-License-Identifier: Apache-2.0
// The kernel family collectives beside backend `host`: the same bits; and its protocols, each rank on a
// thread of its own, which the thread sanitizer sees.
#include "collectives/reduction.hpp"
#include "kernels/collectives/collectives.hpp"
#include "kernels/collectives/reference.hpp"
#include "support/collective_ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

namespace headrace::collectives {
namespace {

using kernels::collectives::Bytes;
using kernels::collectives::TestCall;
namespace device = kernels::collectives;

TEST(CollectiveKernels, elements_become_the_same_bits_as_on_the_host) {
  constexpr int ranks = 3;
  constexpr std::size_t count = 600;
  std::mt19937 random(1);
  for (std::size_t type = 0; type < dtype_count; ++type) {
    const auto dtype = static_cast<DType>(type);
    // Any bits, infinities and numbers that are not normal among them; then numbers of modest size.
    for (const bool any_bits : {true, false}) {
      std::vector<Bytes> inputs;
      std::vector<const std::byte*> pointers;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int32_t drawn = any_bits ? HEADRACE_UINT8 : static_cast<std::int32_t>(type);
        inputs.push_back(device::random_elements(random, drawn, count * element_bytes(dtype)));
      }
      for (const Bytes& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
      for (int kind = 0; kind <= device::last_reduction; ++kind)
        for (const double factor : {3.0, -0.3}) {
          const ReduceOp op{static_cast<ReduceOp::Kind>(kind), factor};
          const auto truth = Reduction::find(op, dtype, ranks);
          ASSERT_EQ(truth.ok(), device::is_defined(static_cast<std::int32_t>(type), kind, factor))
              << dtype_name(dtype) << " " << reduce_op_name(op.kind) << " by " << factor;
          if (!truth) continue;
          std::vector<std::byte> expected(inputs[0].size());
          (*truth)(expected.data(), pointers, count);
          const TestCall call{
              .count = count, .dtype = static_cast<std::int32_t>(type), .reduction = kind, .factor = factor};
          const Bytes got = device::reduced_bytes(call, inputs, 0);
          ASSERT_EQ(device::first_difference(call.dtype, got.data(), expected.data(), got.size()), got.size())
              << dtype_name(dtype) << " " << reduce_op_name(op.kind) << " by " << factor;
        }
    }
  }
}

/// Ranks as threads, each of which runs the references of its launches.
class KernelRanks {
 public:
  explicit KernelRanks(unsigned ranks) : box_{ranks, 64, 32, 8} {
    const std::uint64_t bytes = device::shape_of(box_)->bytes();
    for (unsigned rank = 0; rank < ranks; ++rank) {
      boxes_.push_back(std::make_unique<Box[]>(bytes / sizeof(Box) + 1));
      std::memset(static_cast<void*>(boxes_.back().get()), 0, bytes);
      statuses_.push_back(std::make_unique<headrace_collectives_status_v1>());
    }
  }

  /// Runs a call to its end; `by_copies` if it can.
  void run(const TestCall& call, unsigned rank, const Bytes& input, Bytes& output, bool by_copies) {
    const auto address = [](const Bytes& bytes) { return reinterpret_cast<std::uint64_t>(bytes.data()); };
    const device::RankCall made(call, rank, box_.ranks, address(input), address(output));
    headrace_collective_v1 args{};
    args.struct_size = sizeof args;
    args.box = box_;
    for (unsigned i = 0; i < box_.ranks; ++i)
      args.boxes[i] = reinterpret_cast<std::uint64_t>(boxes_[i].get());
    args.rank = rank;
    args.one_shot_bytes = 32;  // an all_reduce of 17 elements, and some more, takes two steps
    args.status = reinterpret_cast<std::uint64_t>(statuses_[rank].get());
    args.call = made.get();
    device::Plan plan = device::plan_of(args).value();
    if (by_copies && device::can_be_copied(plan)) {
      copy(plan);
    } else {
      device::divide(plan, 3);
      run_to_end(reference_of(plan), &plan.launch);
    }
    EXPECT_EQ(statuses_[rank]->reason, 0U)
        << "rank " << rank << " waited in vain for " << statuses_[rank]->peer;
  }

 private:
  struct alignas(16) Box {
    unsigned char bytes[16];
  };

  static void run_to_end(const kernels::reference::Kernel& kernel, const void* argument) {
    const auto launch = kernel.launch(argument, memory());
    while (launch() == kernels::reference::Progress::stays) std::this_thread::yield();
  }
  /// A GPU does the copies between two steps in any order.
  static void copy(const device::Plan& plan) {
    headrace_collectives_copies_v1 copies{};
    for (std::uint32_t i = 0; copies.is_last == 0; ++i) {
      const auto step = device::step_of(plan, i).value();
      run_to_end(reference_of("headrace_exchange_step"), &step);
      device::list_copies(step, copies);
      for (std::uint32_t c = copies.count; c-- > 0;)
        std::memcpy(reinterpret_cast<void*>(copies.targets[c]),
                    reinterpret_cast<const void*>(copies.sources[c]), copies.bytes[c]);
    }
  }
  static const kernels::reference::Kernel& reference_of(std::string_view name) {
    return *std::ranges::find(device::reference_family.kernels, name, &kernels::reference::Kernel::name);
  }
  static const kernels::reference::Kernel& reference_of(const device::Plan& plan) {
    std::string_view name = plan.is_packed ? "headrace_exchange_packed" : "headrace_exchange_chunks";
    if (plan.reduces) name = plan.is_packed ? "headrace_reduce_packed_any" : "headrace_reduce_chunks_any";
    if (plan.is_packed && plan.launch.shares != 0) name = "headrace_all_reduce_packed_any";
    return reference_of(name);
  }
  static const kernels::reference::Memory& memory() {
    static const kernels::reference::Memory everything{
        [](std::uint64_t, std::uint64_t) { return true; },
        [](void* target, const void* source, std::size_t bytes) { std::memcpy(target, source, bytes); }};
    return everything;
  }

  headrace_collectives_box_v1 box_;
  std::vector<std::unique_ptr<Box[]>> boxes_;
  std::vector<std::unique_ptr<headrace_collectives_status_v1>> statuses_;
};

TEST(CollectiveKernels, ranks_on_threads_of_their_own_run_the_protocols) {
  for (const unsigned ranks : {2u, 3u, 4u}) {
    KernelRanks kernel_ranks(ranks);
    std::mt19937 random(ranks);
    std::vector<TestCall> calls;
    std::vector<std::vector<Bytes>> inputs;
    for (int i = 0; i < 120; ++i) {
      calls.push_back({.operation = device::every_operation[random() % std::size(device::every_operation)],
                       .count = random() % 400,  // up to more chunks than slots
                       .dtype = HEADRACE_BFLOAT16,
                       .root = static_cast<unsigned>(random() % ranks),
                       .timeout_ns = 20'000'000'000});
      inputs.emplace_back();
      for (unsigned rank = 0; rank < ranks; ++rank)
        inputs.back().push_back(
            device::random_elements(random, HEADRACE_BFLOAT16, calls.back().input_bytes(ranks)));
    }
    std::vector<std::jthread> threads;
    for (unsigned rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        for (std::size_t i = 0; i < calls.size(); ++i) {
          Bytes output(calls[i].output_bytes(ranks));
          kernel_ranks.run(calls[i], rank, inputs[i][rank], output, i % 3 == 0);
          const Bytes expected = device::expected_output(calls[i], inputs[i], rank);
          output.resize(expected.size());
          EXPECT_EQ(output, expected) << "call " << i << ", rank " << rank << " of " << ranks;
        }
      });
  }
}

}  // namespace
}  // namespace headrace::collectives
