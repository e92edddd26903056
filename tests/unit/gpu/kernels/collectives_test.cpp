// SPDX-License-Identifier: Apache-2.0
#include "kernels/collectives/collectives.hpp"

#include "support/collective_ranks.hpp"
#include "unit/gpu/kernels/kernels_test.hpp"

#include <fmt/format.h>

#include <numeric>
#include <string>

namespace headrace::gpu {
namespace {

using namespace kernels::collectives;

/// Ranks of one GPU, each with a box, a stream, an abort word and a status. Their blocks wait for one another
/// as those of a GPU do: the fake driver runs all that can go on.
class CollectivesTest : public KernelsTest {
 protected:
  struct Rank {
    Stream stream;
    DeviceMemory box, input, output;
    PinnedMemory words;

    [[nodiscard]] std::uint64_t& abort() const {
      return *reinterpret_cast<std::uint64_t*>(words.bytes().data());
    }
    [[nodiscard]] const headrace_collectives_status_v1& status() const {
      return *reinterpret_cast<const headrace_collectives_status_v1*>(words.bytes().data() + 64);
    }
  };

  void open_ranks(unsigned count) {
    ranks.clear();
    memories.clear();
    box.ranks = count;
    for (unsigned i = 0; i < count; ++i) {
      ranks.push_back(
          {Stream::make(device).value(), DeviceMemory::allocate(device, table_->box_bytes(&box)).value(),
           DeviceMemory::allocate(device, room).value(), DeviceMemory::allocate(device, room).value(),
           PinnedMemory::allocate(device, 4096).value()});
      std::memset(at(ranks[i].box), 0, ranks[i].box.bytes());
    }
  }
  [[nodiscard]] unsigned count() const { return static_cast<unsigned>(ranks.size()); }
  /// Memory of a rank, which all others see where it is. A rank does not ask where it sees its own.
  [[nodiscard]] headrace_collectives_memory_v1 registered(const DeviceMemory& memory, unsigned rank) const {
    headrace_collectives_memory_v1 made{memory.address(), memory.bytes(), {}};
    for (unsigned other = 0; other < count(); ++other) made.at[other] = other == rank ? 16 : made.address;
    return made;
  }
  void register_all() {
    for (unsigned rank = 0; rank < count(); ++rank)
      memories.push_back({registered(ranks[rank].input, rank), registered(ranks[rank].output, rank)});
  }
  /// Whether bytes have gone through the chunks of a box since the ranks were opened.
  [[nodiscard]] bool chunks_were_used() const {
    const std::uint64_t bytes = std::uint64_t{2} * box.ranks * box.slots * box.chunk_bytes;
    return std::ranges::any_of(ranks, [&](const Rank& rank) {
      const unsigned char* const end = at(rank.box) + rank.box.bytes();
      return std::any_of(end - bytes, end, [](unsigned char byte) { return byte != 0; });
    });
  }

  /// What rank `rank` launches; the call is made by the caller.
  [[nodiscard]] headrace_collective_v1 args_of(unsigned rank) const {
    headrace_collective_v1 args{};
    args.struct_size = sizeof args;
    args.box = box;
    for (unsigned i = 0; i < count(); ++i) args.boxes[i] = ranks[i].box.address();
    args.rank = rank;
    args.sharing = 1;  // the fake driver runs any number of blocks at once
    args.blocks = blocks;
    args.one_shot_bytes = one_shot_bytes;
    args.abort = ranks[rank].words.address();
    args.status = ranks[rank].words.address() + 64;
    if (!memories.empty()) args.memories = memories[rank].data(), args.memory_count = memories[rank].size();
    return args;
  }
  [[nodiscard]] cuda::Outcome launch(const TestCall& call, unsigned rank, bool in_place = false) const {
    const Rank& it = ranks[rank];
    const std::uint64_t input = it.input.address() + shift,
                        output = in_place ? input : it.output.address() + shift;
    const RankCall made(call, rank, count(), input, output);
    headrace_collective_v1 args = args_of(rank);
    args.call = made.get();
    return family.launch<&headrace_collectives_v1::run>(args, it.stream.handle());
  }

  /// Launches a step of a call by copies.
  std::pair<cuda::Outcome, headrace_collectives_copies_v1> step(unsigned rank, const TestCall& call,
                                                                std::uint32_t number) const {
    const Rank& it = ranks[rank];
    const RankCall made(call, rank, count(), it.input.address() + shift, it.output.address() + shift);
    headrace_collective_v1 args = args_of(rank);
    args.call = made.get();
    headrace_collectives_copies_v1 copies{};
    copies.struct_size = sizeof copies;
    const auto outcome = static_cast<cuda::Outcome>(
        table_->copy_step(kernels->set(), &args, number, &copies, it.stream.handle()));
    return {outcome, copies};
  }
  /// All steps, with their copies.
  void copy(unsigned rank, const TestCall& call) const {
    const ContextGuard guard(*device);
    headrace_collectives_copies_v1 copies{};
    for (std::uint32_t number = 0; copies.is_last == 0; ++number) {
      const auto [outcome, behind] = step(rank, call, number);
      ASSERT_EQ(outcome, cuda::Outcome::success);
      copies = behind;
      for (std::uint32_t i = 0; i < copies.count; ++i)
        ASSERT_EQ(driver.memcpy_async(copies.targets[i], copies.sources[i], copies.bytes[i],
                                      ranks[rank].stream.handle()),
                  cuda::Outcome::success);
    }
  }

  /// Gives each rank new elements, and its output other bytes.
  std::vector<Bytes> fill(const TestCall& call) {
    std::vector<Bytes> inputs;
    for (const Rank& rank : ranks) {
      inputs.push_back(random_elements(random, call.dtype, call.input_bytes(count())));
      std::memset(at(rank.input), 0x5a, room);
      std::memset(at(rank.output), 0xa5, room);
      std::ranges::copy(inputs.back(), at(rank.input) + shift);
    }
    return inputs;
  }
  /// Whether the rank has got what it must, and no byte behind it was written.
  void expect_got(const TestCall& call, const std::vector<Bytes>& inputs, unsigned rank,
                  bool in_place = false) {
    const unsigned char* const got = at(in_place ? ranks[rank].input : ranks[rank].output) + shift;
    const Bytes expected = expected_output(call, inputs, rank);
    ASSERT_EQ(Bytes(got, got + expected.size()), expected)
        << "operation " << call.operation << ", type " << call.dtype << ", reduction " << call.reduction
        << ", " << call.count << " elements, rank " << rank << " of " << count();
    const std::uint64_t written =
        in_place ? std::max<std::uint64_t>(expected.size(), inputs[rank].size()) : expected.size();
    ASSERT_EQ(got[written], in_place ? 0x5a : 0xa5) << "the byte behind the output";
    ASSERT_EQ(got[-1], in_place ? 0x5a : 0xa5) << "the byte before the output";
  }
  void run(const TestCall& call, bool in_place = false) {
    const auto inputs = fill(call);
    for (unsigned rank = 0; rank < count(); ++rank)
      ASSERT_EQ(launch(call, (rank + 1) % count(), in_place), cuda::Outcome::success);
    for (const Rank& rank : ranks) ASSERT_TRUE(rank.stream.wait_idle());
    for (unsigned rank = 0; rank < count(); ++rank) expect_got(call, inputs, rank, in_place);
  }

  /// On two ranks.
  void expect_kernel(const TestCall& call, const std::string& name) {
    const int before = fake.calls("headrace_" + name);
    run(call);
    EXPECT_EQ(fake.calls("headrace_" + name), before + 2) << name;
  }

  std::size_t room = 16384;
  headrace_collectives_box_v1 box{2, 64, 32, 8};
  std::uint32_t blocks = 3, one_shot_bytes = 0;
  std::uint64_t shift = 16;  // of inputs and outputs in their memory
  std::vector<Rank> ranks;
  std::vector<std::vector<headrace_collectives_memory_v1>> memories;  // of each rank; empty: none
  const KernelFamily<headrace_collectives_v1> family =
      KernelFamily<headrace_collectives_v1>::of(kernels, HEADRACE_COLLECTIVES_FAMILY,
                                                HEADRACE_COLLECTIVES_FAMILY_VERSION)
          .value();
  const headrace_collectives_v1* table_ = reinterpret_cast<const headrace_collectives_v1*>(
      kernels->library()
          .family(HEADRACE_COLLECTIVES_FAMILY, HEADRACE_COLLECTIVES_FAMILY_VERSION,
                  sizeof(headrace_collectives_v1))
          .value());
};

TEST_F(CollectivesTest, every_operation_gives_each_rank_its_elements) {
  for (const unsigned ranks_now : {1u, 2u, 3u, 4u}) {
    open_ranks(ranks_now);
    for (const std::int32_t operation : every_operation)
      // As packets up to 16 elements; in chunks of 8 elements, up to more than all slots hold.
      for (const std::uint64_t elements : {0u, 1u, 3u, 16u, 17u, 24u, 63u, 501u})
        run({.operation = operation, .count = elements, .root = ranks_now - 1});
  }
}

TEST_F(CollectivesTest, every_type_is_reduced_by_each_reduction_that_it_has) {
  open_ranks(3);
  for (std::int32_t dtype = 0; dtype <= last_dtype; ++dtype)
    for (std::int32_t reduction = 0; reduction <= last_reduction; ++reduction) {
      const TestCall call{.count = 5, .dtype = dtype, .reduction = reduction, .factor = 3};
      if (!is_defined(dtype, reduction, call.factor)) {
        EXPECT_EQ(launch(call, 0), cuda::Outcome::invalid_value) << dtype << " " << reduction;
        continue;
      }
      for (const std::uint64_t elements : {5u, 131u}) {
        TestCall sized = call;
        sized.count = elements;
        run(sized);
        sized.operation = HEADRACE_COMM_REDUCE_SCATTER_SINGLE;
        run(sized);
      }
    }
}

TEST_F(CollectivesTest, memory_need_only_be_aligned_to_its_elements) {
  open_ranks(3);
  for (const std::uint64_t offset : {1u, 2u, 3u, 7u, 8u, 13u}) {
    shift = 16 + offset;
    for (const std::int32_t operation : every_operation)
      for (const std::uint64_t elements : {7u, 64u, 301u})
        run({.operation = operation, .count = elements, .dtype = HEADRACE_UINT8});
  }
}

TEST_F(CollectivesTest, all_reduce_goes_as_packets_in_one_step_or_in_two) {
  box.packed_bytes = 128;
  for (const unsigned ranks_now : {2u, 3u, 4u}) {
    open_ranks(ranks_now);
    for (const std::uint32_t bytes : {1u, 40u, 1u << 20}) {
      one_shot_bytes = bytes;
      // The share of a rank may be empty, shorter than the others, and as long as half of the packets.
      for (const std::uint64_t elements : {1u, 4u, 5u, 10u, 11u, 16u, 31u, 48u, 49u, 64u, 65u})
        for (const bool in_place : {false, true}) run({.count = elements}, in_place);
    }
  }
}

TEST_F(CollectivesTest, a_rank_that_ends_between_two_steps_is_named_by_the_others) {
  open_ranks(3);
  one_shot_bytes = 1;
  const TestCall call{.count = 12};
  run(call);
  (void)fill(call);
  // Rank 1 has sent its parts, and ends before those of rank 2 have come.
  ASSERT_EQ(launch(call, 1), cuda::Outcome::success);
  EXPECT_FALSE(ranks[1].stream.poll_idle().value());
  __atomic_store_n(&ranks[1].abort(), 1, __ATOMIC_RELEASE);
  ASSERT_TRUE(ranks[1].stream.wait_idle());
  TestCall late = call;
  late.timeout_ns = 50'000'000;
  for (const unsigned rank : {0u, 2u}) ASSERT_EQ(launch(late, rank), cuda::Outcome::success);
  for (const unsigned rank : {0u, 2u}) {
    ASSERT_TRUE(ranks[rank].stream.wait_idle());
    const headrace_collectives_status_v1& status = ranks[rank].status();
    EXPECT_EQ(__atomic_load_n(&status.reason, __ATOMIC_ACQUIRE), HEADRACE_COLLECTIVES_TIMED_OUT);
    EXPECT_EQ(status.peer, 1u);
    EXPECT_EQ(status.seen, 2u) << "it has begun";
  }
}

TEST_F(CollectivesTest, input_and_output_may_be_the_same_memory) {
  open_ranks(3);
  for (const std::int32_t operation : {HEADRACE_COMM_ALL_REDUCE, HEADRACE_COMM_BROADCAST,
                                       HEADRACE_COMM_REDUCE, HEADRACE_COMM_ALL_TO_ALL_SINGLE})
    for (const std::uint64_t elements : {3u, 16u, 63u, 501u})
      run({.operation = operation, .count = elements}, true);
}

TEST_F(CollectivesTest, parts_in_registered_memory_go_without_a_copy) {
  for (const unsigned ranks_now : {2u, 3u, 4u})
    for (const std::int32_t operation : every_operation)
      for (const std::uint64_t elements : {20u, 64u, 504u}) {  // whole units, more than go as packets
        open_ranks(ranks_now);
        register_all();
        run({.operation = operation, .count = elements, .root = ranks_now - 1});
        EXPECT_FALSE(chunks_were_used()) << "operation " << operation;
      }
}

TEST_F(CollectivesTest, registered_memory_is_reduced_in_every_type_and_way) {
  open_ranks(3);
  register_all();
  for (std::int32_t dtype = 0; dtype <= last_dtype; ++dtype)
    for (std::int32_t reduction = 0; reduction <= last_reduction; ++reduction)
      for (const std::int32_t operation :
           {HEADRACE_COMM_ALL_REDUCE, HEADRACE_COMM_REDUCE, HEADRACE_COMM_REDUCE_SCATTER_SINGLE})
        if (is_defined(dtype, reduction, 3))
          run({.operation = operation, .count = 144, .dtype = dtype, .reduction = reduction, .factor = 3});
  EXPECT_FALSE(chunks_were_used());
}

TEST_F(CollectivesTest, registered_input_and_output_may_be_the_same_memory) {
  for (const auto& [operation, goes_directly] :
       {std::pair{HEADRACE_COMM_ALL_REDUCE, true}, std::pair{HEADRACE_COMM_BROADCAST, true},
        std::pair{HEADRACE_COMM_REDUCE, true}, std::pair{HEADRACE_COMM_ALL_TO_ALL_SINGLE, false}}) {
    open_ranks(3);
    register_all();
    run({.operation = operation, .count = 64}, true);
    EXPECT_EQ(chunks_were_used(), !goes_directly) << "operation " << operation;
  }
}

TEST_F(CollectivesTest, if_one_rank_cannot_all_parts_travel_in_chunks) {
  for (unsigned without = 0; without < 3; ++without)
    for (const std::int32_t operation : every_operation) {
      open_ranks(3);
      register_all();
      memories[without][0].bytes = memories[without][1].bytes = 32;  // its parts end behind it
      run({.operation = operation, .count = 64});
      if (operation == HEADRACE_COMM_ALL_REDUCE || operation == HEADRACE_COMM_ALL_GATHER_SINGLE ||
          operation == HEADRACE_COMM_REDUCE_SCATTER_SINGLE || operation == HEADRACE_COMM_ALL_TO_ALL_SINGLE) {
        EXPECT_TRUE(chunks_were_used()) << "operation " << operation;
      }
    }
}

TEST_F(CollectivesTest, registered_parts_that_are_no_whole_units_travel_in_chunks) {
  for (const std::uint64_t offset : {0u, 4u})
    for (const std::int32_t operation : every_operation) {
      shift = 16 + offset;
      open_ranks(3);
      register_all();
      run({.operation = operation, .count = offset != 0 ? 64u : 63u});
      EXPECT_EQ(chunks_were_used(), operation != HEADRACE_COMM_BARRIER) << "operation " << operation;
    }
}

TEST_F(CollectivesTest, memory_of_a_rank_that_has_given_up_is_left_alone) {
  open_ranks(3);
  register_all();
  const TestCall call{.count = 64};
  run(call);
  (void)fill(call);
  // Ranks 0 and 1 have told their places, and rank 0 gives up before rank 2 comes.
  for (const unsigned rank : {0u, 1u}) ASSERT_EQ(launch(call, rank), cuda::Outcome::success);
  EXPECT_FALSE(ranks[1].stream.poll_idle().value());
  __atomic_store_n(&ranks[0].abort(), 1, __ATOMIC_RELEASE);
  ASSERT_TRUE(ranks[0].stream.wait_idle());
  TestCall late = call;
  late.timeout_ns = 50'000'000;
  ASSERT_EQ(launch(late, 2), cuda::Outcome::success);
  ASSERT_TRUE(ranks[2].stream.wait_idle());
  EXPECT_EQ(ranks[2].status().reason, HEADRACE_COLLECTIVES_TIMED_OUT);
  EXPECT_EQ(ranks[2].status().peer, 0u);
  __atomic_store_n(&ranks[1].abort(), 1, __ATOMIC_RELEASE);
  ASSERT_TRUE(ranks[1].stream.wait_idle());
  EXPECT_TRUE(
      std::all_of(at(ranks[0].output), at(ranks[0].output) + room, [](auto byte) { return byte == 0xa5; }));
}

TEST_F(CollectivesTest, ranks_may_be_ahead_of_others_and_operations_of_any_way_follow_one_another) {
  open_ranks(3);
  register_all();
  std::vector<TestCall> calls;
  for (int i = 0; i < 40; ++i)
    calls.push_back({.operation = every_operation[random() % std::size(every_operation)],
                     .count = random() % 60,
                     .root = static_cast<unsigned>(random() % 3)});
  // All operations of each rank are queued before the next rank begins, on memory of their own.
  std::vector<std::vector<DeviceMemory>> memory(count());
  std::vector<std::vector<Bytes>> inputs(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (unsigned rank = 0; rank < count(); ++rank)
      inputs[i].push_back(random_elements(random, calls[i].dtype, calls[i].input_bytes(count())));
  constexpr std::uint64_t half = 1024;
  for (unsigned rank = 0; rank < count(); ++rank) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      memory[rank].push_back(DeviceMemory::allocate(device, 2 * half).value());
      unsigned char* const place = at(memory[rank][i]);
      std::ranges::copy(inputs[i][rank], place);
      const RankCall made(calls[i], rank, count(), memory[rank][i].address(),
                          memory[rank][i].address() + half);
      headrace_collective_v1 args = args_of(rank);
      args.call = made.get();
      const headrace_collectives_memory_v1 memory_of_call = registered(memory[rank][i], rank);
      if (i % 3 != 0 || rank != 0) args.memories = &memory_of_call, args.memory_count = 1;
      ASSERT_EQ(family.launch<&headrace_collectives_v1::run>(args, ranks[rank].stream.handle()),
                cuda::Outcome::success);
    }
  }
  for (unsigned rank = 0; rank < count(); ++rank) {
    ASSERT_TRUE(ranks[rank].stream.wait_idle());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Bytes expected = expected_output(calls[i], inputs[i], rank);
      const unsigned char* const got = at(memory[rank][i]) + half;
      ASSERT_EQ(Bytes(got, got + expected.size()), expected) << "call " << i << ", rank " << rank;
    }
  }
}

TEST_F(CollectivesTest, parts_may_differ_in_lists_and_splits) {
  open_ranks(3);
  for (const std::uint64_t step : {1u, 2u, 40u}) {
    // Rank i sends (i + j + 1) * step elements to rank j.
    const auto elements = [&](unsigned from, unsigned to) { return (from + to + 1) * step; };
    const TestCall call{.operation = HEADRACE_COMM_ALL_TO_ALL_V_SINGLE, .dtype = HEADRACE_INT32};
    std::vector<Bytes> inputs;
    for (const Rank& rank : ranks) {
      inputs.push_back(random_elements(random, call.dtype, 4 * 12 * step));
      std::memcpy(at(rank.input), inputs.back().data(), inputs.back().size());
      std::memset(at(rank.output), 0xa5, room);
    }
    for (const bool as_lists : {false, true}) {
      for (unsigned rank = 0; rank < count(); ++rank) {
        std::vector<std::uint64_t> sends, receives;
        std::vector<headrace_comm_elements_v1> lists[2];
        std::uint64_t sum[2] = {0, 0};
        for (unsigned other = 0; other < count(); ++other) {
          sends.push_back(elements(rank, other)), receives.push_back(elements(other, rank));
          lists[0].push_back({at(ranks[rank].input) + 4 * sum[0], sends[other], call.dtype});
          lists[1].push_back({at(ranks[rank].output) + 4 * sum[1], receives[other], call.dtype});
          sum[0] += sends[other], sum[1] += receives[other];
        }
        const headrace_comm_elements_v1 whole[2] = {{at(ranks[rank].input), sum[0], call.dtype},
                                                    {at(ranks[rank].output), sum[1], call.dtype}};
        headrace_comm_call_v1 made{};
        made.struct_size = sizeof made;
        made.operation = as_lists ? HEADRACE_COMM_ALL_TO_ALL : call.operation;
        made.inputs = as_lists ? lists[0].data() : &whole[0];
        made.outputs = as_lists ? lists[1].data() : &whole[1];
        made.input_count = made.output_count = as_lists ? count() : 1;
        made.input_splits = sends.data(), made.output_splits = receives.data(), made.split_count = count();
        made.timeout_ns = -1;
        headrace_collective_v1 args = args_of(rank);
        args.call = &made;
        ASSERT_EQ(family.launch<&headrace_collectives_v1::run>(args, ranks[rank].stream.handle()),
                  cuda::Outcome::success);
      }
      for (unsigned rank = 0; rank < count(); ++rank) {
        ASSERT_TRUE(ranks[rank].stream.wait_idle());
        const unsigned char* got = at(ranks[rank].output);
        for (unsigned from = 0; from < count(); ++from) {
          std::uint64_t before = 0;
          for (unsigned to = 0; to < rank; ++to) before += elements(from, to);
          const std::uint64_t bytes = 4 * elements(from, rank);
          ASSERT_EQ(std::memcmp(got, &inputs[from][4 * before], bytes), 0) << from << " to " << rank;
          got += bytes;
        }
        ASSERT_EQ(*got, 0xa5);
        std::memset(at(ranks[rank].output), 0xa5, room);
      }
    }
  }
}

TEST_F(CollectivesTest, parts_go_by_copies_in_rounds_of_all_slots) {
  for (const unsigned ranks_now : {2u, 3u, 4u}) {
    open_ranks(ranks_now);
    for (const std::int32_t operation : every_operation) {
      const TestCall kind{.operation = operation};
      if (kind.reduces() || operation == HEADRACE_COMM_BARRIER) continue;
      // Rounds of 64 floats: less than one, one, and many that use both halves again and again.
      for (const std::uint64_t elements : {1u, 63u, 64u, 65u, 501u}) {
        const TestCall call{.operation = operation, .count = elements, .root = ranks_now - 1};
        const auto inputs = fill(call);
        for (unsigned rank = 0; rank < count(); ++rank) copy((rank + 1) % count(), call);
        for (const Rank& rank : ranks) ASSERT_TRUE(rank.stream.wait_idle());
        for (unsigned rank = 0; rank < count(); ++rank) expect_got(call, inputs, rank);
        run({.operation = operation, .count = elements, .root = ranks_now - 1});  // the slots are free again
      }
    }
  }
}

TEST_F(CollectivesTest, only_parts_that_are_moved_and_whose_length_all_know_can_go_by_copies) {
  open_ranks(2);
  const auto bytes_of = [this](const TestCall& call) {
    const RankCall made(call, 0, 2, ranks[0].input.address(), ranks[0].output.address());
    headrace_collective_v1 args = args_of(0);
    args.call = made.get();
    return table_->copied_bytes(&args);
  };
  EXPECT_EQ(bytes_of({.operation = HEADRACE_COMM_ALL_GATHER_SINGLE, .count = 100}), 400U);
  EXPECT_EQ(bytes_of({.operation = HEADRACE_COMM_ALL_TO_ALL_SINGLE, .count = 100}), 400U);
  EXPECT_EQ(bytes_of({.operation = HEADRACE_COMM_ALL_REDUCE, .count = 100}), 0U);
  EXPECT_EQ(bytes_of({.operation = HEADRACE_COMM_BARRIER}), 0U);
  EXPECT_EQ(bytes_of({.operation = HEADRACE_COMM_BROADCAST, .count = 0}), 0U);
  const TestCall reduced{.count = 100}, moved{.operation = HEADRACE_COMM_BROADCAST, .count = 100};
  EXPECT_EQ(step(0, reduced, 0).first, cuda::Outcome::invalid_value);
  EXPECT_EQ(step(0, moved, 4).first, cuda::Outcome::invalid_value) << "two rounds have four steps";
}

TEST_F(CollectivesTest, captured_operations_take_new_elements_at_each_replay) {
  open_ranks(3);
  const ContextGuard guard(*device);
  const TestCall calls[] = {{.count = 9}, {.count = 100}, {.count = 100}};
  for (const TestCall& call : calls) {
    if (&call == &calls[2]) register_all();
    std::vector<cuda::Graph> graphs(count());
    std::vector<cuda::GraphExec> execs(count());
    for (unsigned rank = 0; rank < count(); ++rank) {
      const cuda::Stream queue = ranks[rank].stream.handle();
      ASSERT_EQ(driver.stream_begin_capture(queue, cuda::CaptureMode::relaxed), cuda::Outcome::success);
      ASSERT_EQ(launch(call, rank), cuda::Outcome::success);
      ASSERT_EQ(driver.stream_end_capture(queue, &graphs[rank]), cuda::Outcome::success);
      ASSERT_EQ(driver.graph_instantiate(&execs[rank], graphs[rank], 0), cuda::Outcome::success);
    }
    for (int replay = 0; replay < 5; ++replay) {
      const auto inputs = fill(call);
      for (unsigned rank = 0; rank < count(); ++rank)
        ASSERT_EQ(driver.graph_launch(execs[rank], ranks[rank].stream.handle()), cuda::Outcome::success);
      for (unsigned rank = 0; rank < count(); ++rank) ASSERT_TRUE(ranks[rank].stream.wait_idle());
      for (unsigned rank = 0; rank < count(); ++rank) expect_got(call, inputs, rank);
      run(call);  // and launches in between are counted, too
    }
    for (unsigned rank = 0; rank < count(); ++rank) {
      EXPECT_EQ(driver.graph_exec_destroy(execs[rank]), cuda::Outcome::success);
      EXPECT_EQ(driver.graph_destroy(graphs[rank]), cuda::Outcome::success);
    }
  }
}

TEST_F(CollectivesTest, an_abort_ends_a_wait_and_reports_for_whom_it_was) {
  for (const auto& [elements, is_registered] :
       {std::pair{9u, false}, std::pair{100u, false}, std::pair{100u, true}}) {
    open_ranks(2);
    if (is_registered) register_all();
    const TestCall call{.count = elements};
    run(call);
    const auto inputs = fill(call);
    ASSERT_EQ(launch(call, 0), cuda::Outcome::success);
    EXPECT_FALSE(ranks[0].stream.poll_idle().value());
    __atomic_store_n(&ranks[0].abort(), 1, __ATOMIC_RELEASE);
    ASSERT_TRUE(ranks[0].stream.wait_idle());
    const headrace_collectives_status_v1& status = ranks[0].status();
    EXPECT_EQ(__atomic_load_n(&status.reason, __ATOMIC_ACQUIRE), HEADRACE_COLLECTIVES_ABORTED);
    EXPECT_EQ(status.rank, 0u);
    EXPECT_EQ(status.peer, 1u);
    EXPECT_EQ(status.epoch, 2u);
    EXPECT_EQ(status.seen, 1u);
    EXPECT_TRUE(
        std::all_of(at(ranks[0].output), at(ranks[0].output) + room, [](auto byte) { return byte == 0xa5; }));
    // Later launches end at once, with the abort word or without.
    __atomic_store_n(&ranks[0].abort(), 0, __ATOMIC_RELEASE);
    ASSERT_EQ(launch(call, 0), cuda::Outcome::success);
    ASSERT_TRUE(ranks[0].stream.wait_idle());
    EXPECT_EQ(status.epoch, 2u) << "the status stays that of the first launch that ended early";
  }
}

TEST_F(CollectivesTest, two_launches_of_a_rank_at_once_end_and_the_second_reports_it) {
  for (const std::uint64_t elements : {3u, 100u}) {  // packets, chunks
    open_ranks(2);
    const TestCall call{.count = elements, .timeout_ns = 20'000'000'000};
    fill(call);
    const Stream other = Stream::make(device).value();
    ASSERT_EQ(launch(call, 0), cuda::Outcome::success);  // it waits for rank 1
    const RankCall made({.operation = HEADRACE_COMM_BARRIER}, 0, 2, 0, 0);
    headrace_collective_v1 args = args_of(0);
    args.call = made.get();
    ASSERT_EQ(family.launch<&headrace_collectives_v1::run>(args, other.handle()), cuda::Outcome::success);
    ASSERT_TRUE(ranks[0].stream.wait_idle());
    ASSERT_TRUE(other.wait_idle());
    EXPECT_EQ(ranks[0].status().reason, HEADRACE_COLLECTIVES_OVERLAPS);
    EXPECT_EQ(ranks[0].status().epoch, 1U);
  }
}

TEST_F(CollectivesTest, a_rank_that_never_comes_ends_the_others_at_their_deadline) {
  for (const std::uint64_t elements : {0u, 9u, 100u}) {
    open_ranks(3);
    TestCall call{.operation = elements == 0 ? HEADRACE_COMM_BARRIER : HEADRACE_COMM_ALL_REDUCE,
                  .count = elements};
    run(call);
    (void)fill(call);
    call.timeout_ns = 1'000'000;
    for (const unsigned rank : {0u, 2u}) ASSERT_EQ(launch(call, rank), cuda::Outcome::success);
    for (const unsigned rank : {0u, 2u}) {
      ASSERT_TRUE(ranks[rank].stream.wait_idle());
      const headrace_collectives_status_v1& status = ranks[rank].status();
      EXPECT_EQ(__atomic_load_n(&status.reason, __ATOMIC_ACQUIRE), HEADRACE_COLLECTIVES_TIMED_OUT);
      EXPECT_EQ(status.rank, rank);
      EXPECT_EQ(status.peer, 1u);
      EXPECT_EQ(status.epoch, 2u);
      EXPECT_EQ(status.seen, 1u);
    }
  }
}

TEST_F(CollectivesTest, a_call_or_a_shape_that_is_not_possible_is_refused_before_a_launch) {
  open_ranks(2);
  const TestCall call{.count = 4};
  const auto launched = [&](auto change) {
    const RankCall made(call, 0, 2, ranks[0].input.address(), ranks[0].output.address());
    headrace_comm_call_v1 changed = *made.get();
    headrace_collective_v1 args = args_of(0);
    args.call = &changed;
    change(args, changed);
    return family.launch<&headrace_collectives_v1::run>(args, ranks[0].stream.handle());
  };
  constexpr auto invalid = cuda::Outcome::invalid_value;
  EXPECT_EQ(launched([](auto& args, auto&) { args.struct_size = 8; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.rank = 2; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.boxes[1] = 0; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.boxes[1] += 8; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.box.slots = 1; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.box.chunk_bytes = 24; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.status = 0; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.sharing = 0; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.blocks = 5; }), invalid) << "the GPU has 4 multiprocessors";
  EXPECT_EQ(launched([](auto& args, auto&) { args.sharing = 2, args.blocks = 3; }), invalid);
  EXPECT_EQ(launched([](auto& args, auto&) { args.box.slots = 4; }), invalid) << "3 blocks need 6 slots";
  EXPECT_EQ(launched([](auto&, auto& made) { made.operation = HEADRACE_COMM_SEND; }), invalid);
  EXPECT_EQ(launched([](auto&, auto& made) { made.reduction = 9; }), invalid);
  EXPECT_EQ(launched([](auto&, auto& made) { made.reduction = HEADRACE_COMM_BAND; }), invalid);
  EXPECT_EQ(launched([](auto&, auto& made) { made.input_count = 0; }), invalid);
  EXPECT_EQ(launched([](auto&, auto& made) { made.output_count = 2; }), invalid);
  EXPECT_EQ(launched([](auto&, auto& made) { made.operation = HEADRACE_COMM_BROADCAST, made.peer = 2; }),
            invalid);
  EXPECT_EQ(launched([](auto&, auto& made) { made.operation = HEADRACE_COMM_ALL_TO_ALL_V_SINGLE; }), invalid)
      << "no splits";
  EXPECT_EQ(fake.calls("cuLaunchKernelEx"), 0);
}

TEST_F(CollectivesTest, a_box_has_room_for_its_shape_and_blocks_are_shared_by_the_ranks_of_a_gpu) {
  const headrace_collectives_box_v1 usual{4, 0, 0, 0}, written{4, 256 << 10, 64 << 10, 64};
  EXPECT_EQ(table_->box_bytes(&usual), table_->box_bytes(&written));
  // Two halves of packets, which are twice their data, and two ways of chunks.
  const std::uint64_t data = 4 * (2 * 2 * (256ull << 10) + 2 * 64 * (64ull << 10));
  EXPECT_GT(table_->box_bytes(&usual), data);
  EXPECT_LT(table_->box_bytes(&usual), data + data / 100);
  for (const headrace_collectives_box_v1& wrong :
       {headrace_collectives_box_v1{0, 0, 0, 0}, {17, 0, 0, 0}, {2, 24, 0, 0}, {2, 0, 8, 0}, {2, 0, 0, 1}})
    EXPECT_EQ(table_->box_bytes(&wrong), 0u);
  EXPECT_EQ(table_->most_blocks(kernels->set(), &usual, 1), 4u);
  EXPECT_EQ(table_->most_blocks(kernels->set(), &usual, 2), 2u);
  EXPECT_EQ(table_->most_blocks(kernels->set(), &usual, 5), 0u) << "more than ranks";
}

TEST_F(CollectivesTest, the_fitting_kernel_runs) {
  open_ranks(2);
  for (const auto& [elements, way] : {std::pair{4u, "packed"}, std::pair{400u, "chunks"}}) {
    const auto expect = [&, elements = elements, way = way](TestCall call, const char* name) {
      call.count = elements;
      expect_kernel(call, fmt::format(fmt::runtime(name), way));
    };
    expect({}, "sum_{}_float32");
    expect({.reduction = HEADRACE_COMM_AVG}, "sum_{}_float32");
    expect({.dtype = HEADRACE_BFLOAT16}, "sum_{}_bfloat16");
    expect({.dtype = HEADRACE_FLOAT64}, "reduce_{}_any");
    expect({.reduction = HEADRACE_COMM_MAX}, "reduce_{}_any");
    expect({.operation = HEADRACE_COMM_BROADCAST}, "exchange_{}");
  }
  one_shot_bytes = 8;
  expect_kernel({.count = 4}, "all_reduce_packed_float32");
  expect_kernel({.count = 8, .dtype = HEADRACE_BFLOAT16}, "all_reduce_packed_bfloat16");
  expect_kernel({.count = 4, .reduction = HEADRACE_COMM_MAX}, "all_reduce_packed_any");
  expect_kernel({.count = 2}, "sum_packed_float32");
  expect_kernel({.operation = HEADRACE_COMM_REDUCE, .count = 4}, "sum_packed_float32");
}

TEST_F(CollectivesTest, long_parts_of_fast_sums_go_as_dense_packets) {
  constexpr std::uint64_t least = (192 << 10) / sizeof(float);
  room = 1 << 20;
  box.packed_bytes = 256 << 10;
  one_shot_bytes = 256 << 10;
  open_ranks(2);
  expect_kernel({.count = least - 1}, "sum_packed_float32");
  expect_kernel({.count = least}, "sum_dense_float32");
  expect_kernel({.count = 2 * least + 1, .dtype = HEADRACE_BFLOAT16}, "sum_dense_bfloat16");
  expect_kernel({.count = least, .reduction = HEADRACE_COMM_MAX}, "reduce_packed_any");
  expect_kernel({.operation = HEADRACE_COMM_BROADCAST, .count = least}, "exchange_packed");
  box.packed_bytes = 512 << 10;
  open_ranks(2);
  one_shot_bytes = 8;
  expect_kernel({.count = 2 * least - 8}, "all_reduce_packed_float32");
  expect_kernel({.count = 2 * least}, "all_reduce_dense_float32");
  expect_kernel({.count = 4 * least + 3, .dtype = HEADRACE_BFLOAT16}, "all_reduce_dense_bfloat16");
}

TEST_F(CollectivesTest, shorter_registered_parts_go_as_packets) {
  constexpr std::uint64_t kept = (256 << 10) / sizeof(float), reduced = 2 * kept;
  room = 2 << 20;
  box.packed_bytes = 1 << 20;
  open_ranks(2);
  register_all();
  expect_kernel({.operation = HEADRACE_COMM_ALL_GATHER_SINGLE, .count = kept - 4}, "exchange_packed");
  expect_kernel({.operation = HEADRACE_COMM_ALL_GATHER_SINGLE, .count = kept}, "exchange_direct");
  expect_kernel({.count = reduced - 4}, "sum_dense_float32");
  expect_kernel({.count = reduced}, "sum_direct_float32");
  expect_kernel({.count = reduced, .reduction = HEADRACE_COMM_MAX}, "reduce_direct_any");
  EXPECT_FALSE(chunks_were_used());
}

/// Ranks whose splits lie in memory of the GPU.
class SplitsOnGpu : public CollectivesTest {
 protected:
  /// For each rank, what it has of each other rank.
  using Table = std::vector<std::vector<std::int64_t>>;

  /// `gives[a][b]`: elements that rank a has for rank b.
  [[nodiscard]] Table random_table() {
    constexpr std::int64_t counts[] = {0, 1, 7, 16, 63, 200};
    Table gives(count(), std::vector<std::int64_t>(count()));
    for (auto& of_rank : gives)
      for (std::int64_t& split : of_rank) split = counts[random() % std::size(counts)];
    return gives;
  }
  [[nodiscard]] static Table transposed(const Table& gives) {
    Table gets = gives;
    for (std::size_t from = 0; from < gives.size(); ++from)
      for (std::size_t to = 0; to < gives.size(); ++to) gets[to][from] = gives[from][to];
    return gets;
  }
  void open_ranks_and_splits(unsigned ranks_now) {
    open_ranks(ranks_now);
    splits_.clear();
    for (unsigned rank = 0; rank < ranks_now; ++rank)
      splits_.push_back(DeviceMemory::allocate(device, 4096).value());
  }
  /// Rows of `given` and `room_for` elements, and their splits.
  [[nodiscard]] cuda::Outcome launch(unsigned rank, std::int32_t dtype,
                                     const std::vector<std::int64_t>& gives,
                                     const std::vector<std::int64_t>& gets, std::uint64_t given,
                                     std::uint64_t room_for, std::int64_t timeout_ns = -1) {
    auto* const numbers = reinterpret_cast<std::int64_t*>(at(splits_[rank]));
    std::ranges::copy(gets, numbers);
    std::ranges::copy(gives, numbers + count());
    const headrace_comm_elements_v1 inputs[] = {{at(ranks[rank].input) + shift, given, dtype},
                                                {numbers, count(), HEADRACE_INT64},
                                                {numbers + count(), count(), HEADRACE_INT64}};
    const headrace_comm_elements_v1 output{at(ranks[rank].output) + shift, room_for, dtype};
    headrace_comm_call_v1 call{};
    call.struct_size = sizeof call;
    call.operation = HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE;
    call.inputs = inputs, call.input_count = 3;
    call.outputs = &output, call.output_count = 1;
    call.timeout_ns = timeout_ns;
    headrace_collective_v1 args = args_of(rank);
    args.call = &call;
    return family.launch<&headrace_collectives_v1::run>(args, ranks[rank].stream.handle());
  }
  static std::uint64_t sum(const std::vector<std::int64_t>& splits) {
    return static_cast<std::uint64_t>(std::accumulate(splits.begin(), splits.end(), std::int64_t{0}));
  }
  /// One operation with elements to spare in each row.
  void run_split(std::int32_t dtype) {
    const Table gives = random_table(), gets = transposed(gives);
    const unsigned width = width_of(dtype);
    std::vector<Bytes> inputs;
    for (unsigned rank = 0; rank < count(); ++rank) {
      inputs.push_back(random_elements(random, dtype, (sum(gives[rank]) + 2) * width));
      std::ranges::copy(inputs.back(), at(ranks[rank].input) + shift);
      std::memset(at(ranks[rank].output), 0xa5, room);
    }
    for (unsigned rank = 0; rank < count(); ++rank)
      ASSERT_EQ(launch(rank, dtype, gives[rank], gets[rank], sum(gives[rank]) + 2, sum(gets[rank]) + 3),
                cuda::Outcome::success);
    for (const Rank& rank : ranks) ASSERT_TRUE(rank.stream.wait_idle());
    for (unsigned rank = 0; rank < count(); ++rank) {
      Bytes expected;
      for (unsigned from = 0; from < count(); ++from) {
        const auto first = gives[from].begin();
        const auto before = std::accumulate(first, first + rank, std::int64_t{0}) * width;
        const auto begin = inputs[from].begin() + before;
        expected.insert(expected.end(), begin, begin + gives[from][rank] * width);
      }
      const unsigned char* const got = at(ranks[rank].output) + shift;
      ASSERT_EQ(Bytes(got, got + expected.size()), expected) << "type " << dtype << ", rank " << rank;
      ASSERT_TRUE(got[-1] == 0xa5 && got[expected.size()] == 0xa5) << "a byte beside the output";
    }
  }

 private:
  std::vector<DeviceMemory> splits_;
};

TEST_F(SplitsOnGpu, move_each_ranks_share_of_any_type_at_any_address) {
  for (const unsigned ranks_now : {1u, 2u, 3u, 4u}) {
    open_ranks_and_splits(ranks_now);
    for (const std::uint64_t offset : {0u, 1u, 8u, 13u}) {
      shift = 16 + offset;
      for (const std::int32_t dtype :
           {HEADRACE_UINT8, HEADRACE_BFLOAT16, HEADRACE_FLOAT32, HEADRACE_COMPLEX128})
        for (int i = 0; i < 4; ++i) run_split(dtype);
    }
    run({.operation = HEADRACE_COMM_ALL_TO_ALL_SINGLE, .count = 40});
  }
}

TEST_F(SplitsOnGpu, that_do_not_fit_are_reported_and_nothing_is_written) {
  struct Row {
    std::vector<std::int64_t> gives, gets;
    std::uint64_t reason;
    unsigned rank;
    std::int64_t value;
  };
  const Row rows[] = {
      {{5, 6}, {5, 5}, HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT, 1, 6},
      {{11, 0}, {5, 5}, HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT, 0, 11},
      {{INT64_MIN, 5}, {5, 5}, HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT, 0, INT64_MIN},
      {{5, 5}, {5, -1}, HEADRACE_COLLECTIVES_WRONG_OUTPUT_SPLIT, 1, -1},
      {{5, 5}, {INT64_MAX, 1}, HEADRACE_COLLECTIVES_WRONG_OUTPUT_SPLIT, 0, INT64_MAX},
      {{4, 5}, {5, 5}, HEADRACE_COLLECTIVES_OWN_SPLITS_DIFFER, 0, 5},
  };
  for (const Row& row : rows) {
    open_ranks_and_splits(2);
    for (const Rank& rank : ranks) std::memset(at(rank.output), 0xa5, room);
    ASSERT_EQ(launch(0, HEADRACE_FLOAT32, row.gives, row.gets, 10, 10), cuda::Outcome::success);
    ASSERT_TRUE(ranks[0].stream.wait_idle());
    const headrace_collectives_status_v1& status = ranks[0].status();
    EXPECT_EQ(status.reason, row.reason);
    EXPECT_EQ(status.rank, 0u);
    EXPECT_EQ(status.peer, row.rank);
    EXPECT_EQ(status.epoch, 1u);
    EXPECT_EQ(static_cast<std::int64_t>(status.seen), row.value);
    EXPECT_TRUE(
        std::all_of(at(ranks[0].output), at(ranks[0].output) + room, [](auto byte) { return byte == 0xa5; }));
    // The other rank waits for it.
    ASSERT_EQ(launch(1, HEADRACE_FLOAT32, {5, 5}, {5, 5}, 10, 10, 20'000'000), cuda::Outcome::success);
    ASSERT_TRUE(ranks[1].stream.wait_idle());
    EXPECT_EQ(ranks[1].status().reason, HEADRACE_COLLECTIVES_TIMED_OUT);
    EXPECT_EQ(ranks[1].status().peer, 0u);
  }
}

TEST_F(CollectivesTest, a_box_that_is_not_reachable_is_a_fault) {
  open_ranks(2);
  const RankCall made({.count = 4}, 0, 2, ranks[0].input.address(), ranks[0].output.address());
  headrace_collective_v1 args = args_of(0);
  args.call = made.get();
  args.boxes[1] = 4096;
  ASSERT_EQ(family.launch<&headrace_collectives_v1::run>(args, ranks[0].stream.handle()),
            cuda::Outcome::success);
  EXPECT_EQ(ranks[0].stream.wait_idle().code(), Code::backend_failed);
}

}  // namespace
}  // namespace headrace::gpu
