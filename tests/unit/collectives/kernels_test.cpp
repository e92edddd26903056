// SPDX-License-Identifier: Apache-2.0
// The kernel family collectives beside backend `host`: the same bits; and its protocols, each rank on a
// thread of its own, which the thread sanitizer sees.
#include "collectives/reduction.hpp"
#include "kernels/collectives/collectives.hpp"
#include "kernels/collectives/reference.hpp"
#include "support/collective_ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

  static void run_to_end(const kernels::reference::Kernel& kernel, const void* argument) {
    const auto launch = kernel.launch(argument, memory());
    while (launch() == kernels::reference::Progress::stays) std::this_thread::yield();
  }
  static const kernels::reference::Kernel& reference_of(std::string_view name) {
    return *std::ranges::find(device::reference_family.kernels, name, &kernels::reference::Kernel::name);
  }

 private:
  struct alignas(16) Box {
    unsigned char bytes[16];
  };

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

/// Three ranks as threads, which exchange messages in rounds: none to three on each channel.
class MessageRanks {
 public:
  static constexpr int rounds = 100;

  MessageRanks() {
    std::mt19937 random(5);
    for (Rank& rank : ranks_) {
      rank.ends.resize(2 * count * end_bytes() / sizeof(Unit));
      for (auto& round : rank.sent)
        for (auto& messages : round)
          for (std::size_t i = random() % 4; i-- > 0;)
            messages.push_back(device::random_elements(random, HEADRACE_UINT8, random() % 700));
    }
  }

  void run(unsigned rank) {
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) launch(rank, round);
  }

  static constexpr unsigned count = 3;

 private:
  struct alignas(16) Unit {
    unsigned char bytes[16];
  };
  struct Rank {
    std::vector<Unit> ends;  // of messages to each rank, then from each
    std::array<std::array<std::vector<Bytes>, count>, rounds> sent;  // to each rank
    alignas(16) device::Header box{};
    headrace_collectives_status_v1 status{};
  };

  static constexpr headrace_collectives_box_v1 shape{2, 16, 32, 8};
  static std::uint64_t end_bytes() { return device::shape_of(shape)->bytes(); }
  template <class T>
  static std::uint64_t address(T* data) {
    return reinterpret_cast<std::uint64_t>(data);
  }
  std::uint64_t end_of(unsigned at, bool receives, unsigned with) {
    return address(ranks_[at].ends.data()) + ((receives ? count : 0) + with) * end_bytes();
  }

  void launch(unsigned rank, int round) {
    const auto at = static_cast<std::size_t>(round);
    std::vector<headrace_collectives_channel_v1> channels;
    std::vector<headrace_collectives_message_v1> messages;
    std::array<std::vector<Bytes>, count> received;
    for (unsigned peer = 0; peer < count; ++peer)
      for (const bool receives : {true, false}) {
        std::vector<Bytes>& list = receives ? received[peer] : ranks_[rank].sent[at][peer];
        if (receives)
          for (const Bytes& sent : ranks_[peer].sent[at][rank]) list.emplace_back(sent.size());
        if (peer == rank || list.empty()) continue;
        channels.push_back({end_of(rank, receives, peer), end_of(peer, !receives, rank), peer,
                            receives ? 1U : 0U, static_cast<std::uint32_t>(messages.size()),
                            static_cast<std::uint32_t>(list.size())});
        for (Bytes& bytes : list) messages.push_back({address(bytes.data()), bytes.size()});
      }
    if (messages.empty()) return;
    headrace_collectives_messages_v1 args{};
    args.struct_size = sizeof args;
    args.box = shape;
    args.own_box = address(&ranks_[rank].box);
    args.rank = rank;
    args.blocks = 3;
    args.channel_count = static_cast<std::uint32_t>(channels.size());
    args.message_count = static_cast<std::uint32_t>(messages.size());
    args.channels = channels.data();
    args.messages = messages.data();
    args.status = address(&ranks_[rank].status);
    args.timeout_ns = 60'000'000'000;
    const auto made = device::messages_of(args);
    ASSERT_TRUE(made);
    KernelRanks::run_to_end(KernelRanks::reference_of("headrace_exchange_messages"), &*made);
    ASSERT_EQ(ranks_[rank].status.reason, 0U) << "rank " << rank << ", round " << round;
    for (unsigned peer = 0; peer < count; ++peer)
      if (peer != rank) {
        ASSERT_EQ(received[peer], ranks_[peer].sent[at][rank]) << "rank " << rank << ", round " << round;
      }
  }

  std::array<Rank, count> ranks_;
};

TEST(CollectiveKernels, ranks_on_threads_of_their_own_exchange_messages) {
  MessageRanks ranks;
  std::vector<std::jthread> threads;
  for (unsigned rank = 0; rank < MessageRanks::count; ++rank)
    threads.emplace_back([&, rank] { ranks.run(rank); });
}

TEST(CollectiveKernels, messages_that_are_not_possible_are_no_launch) {
  const auto is_possible = [](const auto& change) {
    headrace_collectives_channel_v1 channel{0x1000, 0x2000, 1, 0, 0, 1};
    headrace_collectives_message_v1 message{0x3001, 5};
    headrace_collectives_messages_v1 args{};
    args.struct_size = sizeof args;
    args.box = {2, 16, 32, 8};
    args.own_box = 0x4000;
    args.blocks = 4;
    args.channel_count = args.message_count = 1;
    args.channels = &channel;
    args.messages = &message;
    args.status = 0x5000;
    args.timeout_ns = -1;
    change(args, channel, message);
    return device::messages_of(args).has_value();
  };
  EXPECT_TRUE(is_possible([](auto&, auto&, auto&) {}));
  EXPECT_TRUE(is_possible([](auto&, auto& channel, auto&) { channel.message_count = 0; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.box.ranks = 3; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.box.chunk_bytes = 24; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.blocks = 0; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.blocks = 5; })) << "two slots a block";
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.channel_count = 0; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.channel_count = 31; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.message_count = 0; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.message_count = 129; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.own_box = 0; }));
  EXPECT_FALSE(is_possible([](auto& args, auto&, auto&) { args.status = 0; }));
  EXPECT_FALSE(is_possible([](auto&, auto& channel, auto&) { channel.own_end = 0; }));
  EXPECT_FALSE(is_possible([](auto&, auto& channel, auto&) { channel.peer_end = 0x2008; }));
  EXPECT_FALSE(is_possible([](auto&, auto& channel, auto&) { channel.first_message = 2; }));
  EXPECT_FALSE(is_possible([](auto&, auto& channel, auto&) { channel.message_count = 2; }));
  EXPECT_FALSE(is_possible([](auto&, auto&, auto& message) { message.bytes = std::uint64_t{32} << 24; }));
}

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
