// SPDX-License-Identifier: Apache-2.0
// Communicators over p2p: all operations, streams and failures, by the CPU references of the kernels on fake
// GPUs. Agents map the boxes by cuda_ipc over these GPUs.
#include "p2p_ranks.hpp"
#include "rank_processes.hpp"

#include "kernels/collectives/collectives.hpp"
#include "p2p/tensors.hpp"
#include "support/collective_ranks.hpp"
#include "support/plugin_gpu.hpp"

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using kernels::collectives::Bytes;
using kernels::collectives::every_operation;
using kernels::collectives::expected_output;
using kernels::collectives::first_difference;
using kernels::collectives::random_elements;
using kernels::collectives::TestCall;
using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(CommOnP2p, opens_and_tells_device_and_version) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu&) {
    EXPECT_EQ(comm.backend(), "p2p_fake");
    EXPECT_EQ(comm.backend_version(), "0.1.0");
    EXPECT_EQ(comm.device(), (Device{Device::Kind::cuda, comm.rank()}));
    must(comm.finalize());
  });
}

struct GpuRanks {
  const char* name;
  int size, gpus;
  bool by_copies = false;
};
class CommOnP2pGpus : public testing::TestWithParam<GpuRanks> {};
INSTANTIATE_TEST_SUITE_P(Ways, CommOnP2pGpus,
                         testing::Values(GpuRanks{"one", 1, 1}, GpuRanks{"two", 2, 3},
                                         GpuRanks{"three", 3, 3}, GpuRanks{"three_of_one_gpu", 3, 1},
                                         GpuRanks{"four_of_two_gpus", 4, 2},
                                         GpuRanks{"two_by_copies", 2, 2, true},
                                         GpuRanks{"four_of_two_gpus_by_copies", 4, 2, true}),
                         [](const auto& one) { return one.param.name; });

TEST_P(CommOnP2pGpus, does_all) {
  const auto all = [](Comm& comm, const RankGpu& gpu) {
    reduce_all_ways(comm, gpu);
    move_all_ways(comm, gpu);
    split_on_gpu(comm, gpu);
    overlap(comm, gpu);
    send_around(comm, gpu);
    capture(comm, gpu);
    split_backwards(comm, gpu);
    if (comm.size() > 1)
      abort_one_rank(comm, gpu);
    else
      must(comm.finalize());
  };
  with_gpu_ranks(GetParam().size, GetParam().gpus, all, GetParam().by_copies ? small_copies : small_boxes);
}

// --- every operation, type and size

/// The elements of one call on one rank.
struct CallMemory {
  cuda::Address input, output;
};

/// One call through the public face.
Result<Work> issue_call(Comm& comm, const TestCall& call, const CallMemory& memory,
                        const OpOptions& options) {
  const auto ranks = static_cast<unsigned>(comm.size());
  const auto dtype = static_cast<DType>(call.dtype);
  const bool is_root = static_cast<unsigned>(comm.rank()) == call.root;
  const auto at = [&](cuda::Address address, std::uint64_t bytes) {
    return Elements(reinterpret_cast<void*>(address), bytes / element_bytes(dtype), dtype);
  };
  const Elements input = at(memory.input, call.input_bytes(ranks));
  const Elements output = at(memory.output, call.output_bytes(ranks));
  const ReduceOp op{static_cast<ReduceOp::Kind>(call.reduction), call.factor};
  const int root = static_cast<int>(call.root);
  std::vector<ConstElements> parts;
  for (unsigned to = 0; is_root && to < ranks; ++to)
    parts.emplace_back(at(memory.input + to * call.part_bytes(), call.part_bytes()));
  switch (call.operation) {
    case HEADRACE_COMM_ALL_REDUCE:
      return comm.all_reduce(input, output, op, options);
    case HEADRACE_COMM_BROADCAST:
      return comm.broadcast(input, root, options);
    case HEADRACE_COMM_REDUCE:
      return comm.reduce(input, root, op, options);
    case HEADRACE_COMM_ALL_GATHER_SINGLE:
      return comm.all_gather_single(output, input, options);
    case HEADRACE_COMM_REDUCE_SCATTER_SINGLE:
      return comm.reduce_scatter_single(output, input, op, options);
    case HEADRACE_COMM_ALL_TO_ALL_SINGLE:
      return comm.all_to_all_single(output, input, options);
    case HEADRACE_COMM_GATHER_SINGLE:
      return comm.gather_single(output, input, root, options);
    case HEADRACE_COMM_SCATTER:
      return comm.scatter(output, parts, root, options);
    default:
      return comm.barrier(options);
  }
}

/// Broadcast and reduce have their result where the input was.
bool is_in_place(const TestCall& call) {
  return call.operation == HEADRACE_COMM_BROADCAST || call.operation == HEADRACE_COMM_REDUCE;
}

unsigned char* memory_at(cuda::Address address) { return reinterpret_cast<unsigned char*>(address); }

/// Runs calls one after another on all ranks. Their inputs are the same on each machine.
class CheckedCalls {
 public:
  explicit CheckedCalls(int size) : size_(size) {}
  void add(const TestCall& call) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < size_; ++rank)
      inputs.push_back(random_elements(random_, call.dtype, call.input_bytes(static_cast<unsigned>(size_))));
    calls_.emplace_back(call, std::move(inputs));
  }
  void run(bool is_registered = false, const Hints& hints = small_boxes) const {
    const auto calls = [&, this](Comm& comm, const RankGpu& gpu) {
      const CallMemory memory{gpu.take(room), gpu.take(room)};
      const Elements tensors[] = {bytes_at(memory.input), bytes_at(memory.output)};
      if (is_registered)
        for (const Elements& tensor : tensors) must(comm.tensor_register(tensor));
      for (const auto& [call, inputs] : calls_) run(comm, gpu, call, inputs, memory);
      if (is_registered)
        for (const Elements& tensor : tensors) must(comm.tensor_deregister(tensor));
      for (const auto& [call, inputs] : calls_) run(comm, gpu, call, inputs, memory);
      must(comm.finalize());
    };
    with_gpu_ranks(size_, plugin_gpus, calls, hints);
  }

 private:
  static constexpr std::size_t room = 64 << 10;
  static Elements bytes_at(cuda::Address address) {
    return {reinterpret_cast<void*>(address), room, DType::uint8};
  }

  static void run(Comm& comm, const RankGpu& gpu, const TestCall& call, const std::vector<Bytes>& inputs,
                  const CallMemory& memory) {
    const auto rank = static_cast<unsigned>(comm.rank());
    std::memset(memory_at(memory.output), 0xa5, room);
    std::ranges::copy(inputs[rank], memory_at(memory.input));
    finish(issue_call(comm, call, memory, gpu.on_stream()));
    const Bytes expected = expected_output(call, inputs, rank);
    const unsigned char* const got = memory_at(is_in_place(call) ? memory.input : memory.output);
    EXPECT_EQ(first_difference(call.dtype, got, expected.data(), expected.size()), expected.size())
        << "operation " << call.operation << ", type " << call.dtype << ", reduction " << call.reduction
        << ", " << call.count << " elements, rank " << rank << " of " << comm.size();
    if (!is_in_place(call)) {
      EXPECT_EQ(got[expected.size()], 0xa5) << "the byte behind the output";
    }
  }

  const int size_;
  std::mt19937 random_{7};
  std::vector<std::pair<TestCall, std::vector<Bytes>>> calls_;
};

TEST(CommOnP2p, gives_each_rank_its_elements_of_every_type_and_count) {
  for (const int size : {2, 3}) {
    CheckedCalls calls(size);
    for (const std::int32_t operation : every_operation)
      for (std::int32_t dtype = 0; dtype <= kernels::collectives::last_dtype; ++dtype)
        for (const unsigned count : {0U, 1U, 3U, 17U, 131U})
          calls.add({.operation = operation, .count = count, .dtype = dtype, .root = count % 2});
    calls.run();
  }
}

TEST(CommOnP2p, reduces_every_type_by_each_reduction_that_it_has) {
  for (const int size : {2, 3}) {
    CheckedCalls calls(size);
    for (std::int32_t dtype = 0; dtype <= kernels::collectives::last_dtype; ++dtype)
      for (std::int32_t reduction = 0; reduction <= kernels::collectives::last_reduction; ++reduction) {
        TestCall call{.count = 5, .dtype = dtype, .reduction = reduction, .factor = 3};
        if (!kernels::collectives::is_defined(dtype, reduction, call.factor)) continue;
        calls.add(call);
        call.count = 131;
        call.operation = HEADRACE_COMM_REDUCE_SCATTER_SINGLE;
        calls.add(call);
      }
    calls.run();
  }
}

// --- parts that go by copies

TEST(CommOnP2p, copies_give_each_rank_its_elements) {
  for (const int size : {2, 3}) {
    CheckedCalls calls(size);
    for (const std::int32_t operation : every_operation)
      for (const std::int32_t dtype : {HEADRACE_INT8, HEADRACE_BFLOAT16, HEADRACE_COMPLEX128})
        for (const unsigned count : {0U, 1U, 17U, 256U, 700U})
          calls.add({.operation = operation, .count = count, .dtype = dtype, .root = count % 2});
    calls.run(false, small_copies);
  }
}

TEST(CommOnP2p, calls_by_copies_by_chunks_and_by_packets_follow_one_another_on_any_stream) {
  Hints hints = small_boxes;
  hints["copy_bytes"] = "600";
  const auto calls = [](Comm& comm, const RankGpu& gpu) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    std::vector<OnGpu<int>> parts, rows;
    std::vector<Work> works;
    constexpr std::size_t counts[] = {10, 700, 100, 150, 149, 2000};
    for (std::size_t i = 0; i < 60; ++i) {
      const std::size_t count = counts[i % std::size(counts)];
      parts.emplace_back(gpu, filled(count, comm.rank() + static_cast<int>(i)));
      rows.emplace_back(gpu, filled(count * ranks, -1));
    }
    gpu.wait();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      OpOptions options = gpu.on_stream(i % 3 == 0);
      if (i % 5 == 1) options.stream = gpu.other_stream().handle();
      if (i % 5 == 2) options.stream = nullptr;
      works.push_back(must(comm.all_gather_single(rows[i].elements(), parts[i].elements(), options)));
    }
    for (const Work& work : works) must(work.wait());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Numbers expected;
      for (std::size_t rank = 0; rank < ranks; ++rank)
        expected.insert(expected.end(), counts[i % std::size(counts)], static_cast<int>(rank + i));
      EXPECT_EQ(rows[i].values(), expected) << i;
    }
    must(comm.finalize());
  };
  with_gpu_ranks(3, plugin_gpus, calls, hints);
}

TEST(CommOnP2p, replays_by_copies_take_new_elements) {
  const auto calls = [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(900, -1)), next(gpu, filled(900, -1));
    const Captured captured(
        gpu, [&](const OpOptions& options) { return comm.broadcast(numbers.elements(), 1, options); });
    for (const int value : {4, 9, 2}) {
      const OnGpu<int> given(gpu, filled(900, comm.rank() == 1 ? value : -1));
      const auto address = [](const OnGpu<int>& one) {
        return reinterpret_cast<cuda::Address>(one.elements().data);
      };
      gpu.copy(address(numbers), address(given), 900 * sizeof(int));
      captured.replay();
      finish(comm.broadcast(next.elements(), 0, gpu.on_stream()));  // one beside no replay
      EXPECT_THAT(numbers.values(), testing::Each(value));
    }
    must(comm.finalize());
  };
  with_gpu_ranks(3, plugin_gpus, calls, small_copies);
}

TEST(CommOnP2p, copies_of_a_late_rank_and_of_one_that_aborts_end_as_kernels_do) {
  const auto late = [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(900, 1));
    finish(comm.broadcast(numbers.elements(), 0, gpu.on_stream()));
    if (comm.rank() == 0) {
      OpOptions options = gpu.on_stream();
      options.timeout = milliseconds(50);
      const Work work = must(comm.broadcast(numbers.elements(), 1, options));
      EXPECT_EQ(work.wait().code(), Code::timed_out);
      EXPECT_THAT(work.error().message, HasSubstr("rank 1 has not come: it has begun 1 operations"));
      EXPECT_THAT(numbers.values(), testing::Each(0))
          << "the copies that were queued have run, from an empty box";
    }
    gpu.meet();
  };
  with_gpu_ranks(2, plugin_gpus, late, small_copies);
  const auto aborts = [](Comm& comm, const RankGpu& gpu) {
    if (comm.rank() == 2) {
      gpu.meet();
      comm.abort("enough");
      return;
    }
    OnGpu<int> numbers(gpu, filled(900, 1));
    const Work work = must(comm.broadcast(numbers.elements(), 0, gpu.on_stream(true)));
    gpu.meet();
    EXPECT_EQ(work.wait().code(), Code::canceled);
    EXPECT_THAT(work.error().message, HasSubstr("enough"));
  };
  with_gpu_ranks(3, plugin_gpus, aborts, small_copies);
}

// --- registered tensors

TEST(CommOnP2p, registered_tensors_change_no_result) {
  for (const int size : {1, 2, 3}) {
    CheckedCalls calls(size);
    for (const std::int32_t operation : every_operation)
      for (const std::int32_t dtype : {HEADRACE_FLOAT32, HEADRACE_BFLOAT16, HEADRACE_INT8})
        for (const unsigned count : {3U, 17U, 256U, 1024U})  // the longer ones go without a copy
          calls.add(
              {.operation = operation, .count = count, .dtype = dtype, .root = size == 1 ? 0 : count % 2});
    calls.run(true);
  }
}

TEST(CommOnP2p, a_tensor_that_one_rank_cannot_register_is_registered_on_none) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    std::vector<int> of_host(400);
    OnGpu<int> numbers(gpu, filled(400, 1));
    Elements wrong{of_host.data(), of_host.size(), DType::int32};
    const auto refused = comm.tensor_register(comm.rank() == 1 ? wrong : numbers.elements());
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("tensor_register number 1"));
    if (comm.rank() != 1) {
      EXPECT_THAT(refused.error().message, HasSubstr("rank 1: "));
    }
    // The communicator goes on, and the memory is free for the next one.
    must(comm.tensor_register(numbers.elements()));
    finish(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    EXPECT_THAT(numbers.values(), testing::Each(3));
    must(comm.tensor_deregister(numbers.elements()));
    must(comm.finalize());
  });
}

TEST(CommOnP2p, ranks_may_register_tensors_without_elements) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(400, 1));
    const Elements none{nullptr, 0, DType::int32};
    const Elements mine = comm.rank() == 0 ? none : numbers.elements();
    must(comm.tensor_register(mine));
    finish(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    EXPECT_THAT(numbers.values(), testing::Each(2));
    must(comm.tensor_deregister(mine));
    must(comm.finalize());
  });
}

TEST(CommOnP2p, a_rank_that_does_not_come_to_register_is_named_and_the_communicator_ends) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(400, 1));
    if (comm.rank() == 0) {
      comm.set_timeout(milliseconds(50));
      const auto late = comm.tensor_register(numbers.elements());
      EXPECT_EQ(late.code(), Code::timed_out);
      EXPECT_THAT(late.error().message,
                  HasSubstr("rank 1 has not come: all ranks register tensors together"));
      EXPECT_TRUE(comm.is_aborted());
    }
    gpu.meet();
    if (comm.rank() == 1) {
      while (!comm.is_aborted()) std::this_thread::yield();
      EXPECT_FALSE(comm.tensor_register(numbers.elements()).ok());
    }
  });
}

TEST(CommOnP2p, an_abort_ends_calls_on_registered_tensors) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(400, 1));
    must(comm.tensor_register(numbers.elements()));
    if (comm.rank() == 2) {
      gpu.meet();
      comm.abort("enough");
      return;
    }
    const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    gpu.meet();
    EXPECT_EQ(work.wait().code(), Code::canceled);
    EXPECT_THAT(work.error().message, HasSubstr("enough"));
    EXPECT_THAT(numbers.values(), testing::Each(1));
    EXPECT_EQ(comm.tensor_deregister(numbers.elements()).code(), Code::canceled);
  });
}

TEST(CommOnP2p, a_rank_dies_while_others_register) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(400, 1));
    if (comm.rank() == 1) {
      gpu.meet();
      comm.close();
      return;
    }
    gpu.meet();
    const auto lost = comm.tensor_register(numbers.elements());
    EXPECT_THAT(lost.error().message, HasSubstr("rank 1 is gone"));
  });
}

/// A rank with an agent of its own, which has mapped the boxes of all.
class TensorRank {
 public:
  TensorRank(const RankGpu& gpu, int rank, int size) : rank_(rank), size_(size), gpu_(gpu) {
    AgentOptions options;
    options.backends = {gpu_backend};
    options.options["plugin_path"] = gpu_plugin_folder;
    options.options[std::string(gpu_backend) + ".courier"] = "off";
    neighbours = must(p2p::Neighbours::open(options, "tensors", rank, size));
    box_.emplace(must(gpu::ShareableMemory::allocate(gpu.device(), 4096)));
    metadata = must(neighbours->offer(*box_, gpu.device()->ordinal()));
  }
  ~TensorRank() { neighbours.reset(); }  // first: what comes is given to the tensors
  TensorRank(const TensorRank&) = delete;
  TensorRank& operator=(const TensorRank&) = delete;
  void meet(const std::vector<std::string>& all) {
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_)
        must(neighbours->map(rank, all[static_cast<std::size_t>(rank)], 4096, gpu_.device()->ordinal(),
                             limit()));
    neighbours->listen([this](int rank, const p2p::Saying& saying) { tensors.hear(rank, saying); });
  }
  static Deadline limit() { return Deadline::after(std::chrono::seconds(20)); }

  std::string metadata;
  std::unique_ptr<p2p::Neighbours> neighbours;

 private:
  const int rank_, size_;
  const RankGpu& gpu_;
  std::optional<gpu::ShareableMemory> box_;

 public:
  std::optional<int> lost;
  p2p::Tensors tensors{rank_,
                       size_,
                       gpu_.device()->ordinal(),
                       {[] { return std::nullopt; },
                        [this](int rank) -> std::optional<Error> {
                          if (rank != lost) return std::nullopt;
                          return make_error(Code::peer_lost, "rank {} is gone", rank);
                        }}};
};

TEST(P2pTensors, each_rank_reaches_the_tensors_of_all) {
  constexpr int size = 3;
  std::vector<std::string> metadata(size);
  std::vector<cuda::Address> addresses(size);
  std::vector<std::vector<headrace_collectives_memory_v1>> memories(size);
  std::barrier<> ranks(size);
  on_threads(size, [&](int rank) {
    const auto mine = static_cast<std::size_t>(rank);
    const RankGpu gpu(*plugin_gpu().driver, rank, ranks);
    TensorRank self(gpu, rank, size);
    metadata[mine] = self.metadata;
    gpu.meet();
    self.meet(metadata);
    gpu.meet();
    addresses[mine] = gpu.take(4096);
    const std::uint64_t number =
        must(self.tensors.add(self.neighbours.get(), addresses[mine] + 256, 1024, TensorRank::limit()));
    memories[mine].assign(self.tensors.memories().begin(), self.tensors.memories().end());
    gpu.meet();
    for (std::size_t of = 0; of < size; ++of) {
      ASSERT_EQ(memories[of].size(), 1U);
      EXPECT_EQ(memories[of][0].address, addresses[of] + 256);
      EXPECT_EQ(memories[of][0].bytes, 1024U);
      *memory_at(memories[of][0].at[mine] + mine) = static_cast<unsigned char>(10 + rank);
    }
    gpu.meet();
    for (std::size_t by = 0; by < size; ++by) EXPECT_EQ(memory_at(addresses[mine] + 256)[by], 10 + by);
    must(self.tensors.remove(self.neighbours.get(), number, TensorRank::limit()));
    EXPECT_TRUE(self.tensors.memories().empty());
    gpu.meet();
  });
}

TEST(P2pTensors, a_rank_may_leave_as_soon_as_it_has_said_its_part) {
  constexpr int size = 3;
  std::vector<std::string> metadata(size);
  std::barrier<> ranks(size);
  on_threads(size, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank, ranks);
    TensorRank self(gpu, rank, size);
    metadata[static_cast<std::size_t>(rank)] = self.metadata;
    gpu.meet();
    self.meet(metadata);
    gpu.meet();
    if (rank == 0) {
      self.lost = 2;
      const auto say = [&](int of, std::uint64_t number) {
        self.tensors.hear(of, {p2p::Saying::Kind::agreed, number, wire::Outcome::encode(Result<void>())});
      };
      say(2, 1);
      std::jthread late([&] {
        std::this_thread::sleep_for(2 * p2p::longest_last_words);
        say(1, 1);
      });
      must(self.tensors.exchange(self.neighbours.get(), std::string(), TensorRank::limit()));
      late.join();
      say(1, 2);
      const auto silent = self.tensors.exchange(self.neighbours.get(), std::string(), TensorRank::limit());
      EXPECT_EQ(silent.code(), Code::peer_lost);
      EXPECT_THAT(silent.error().message, HasSubstr("rank 2 is gone"));
    }
    gpu.meet();
  });
}

TEST(CommOnP2p, parts_may_differ_in_lists) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    const int rank = comm.rank();
    const auto own = static_cast<std::size_t>(rank + 1) * 7;
    OnGpu<int> mine(gpu, filled(own, rank)), first(gpu, filled(7, -1)), second(gpu, filled(14, -1)),
        third(gpu, filled(21, -1));
    const std::vector<Elements> outputs{first.elements(), second.elements(), third.elements()};
    finish(comm.all_gather_v(outputs, mine.elements(), gpu.on_stream()));
    EXPECT_THAT(first.values(), testing::Each(0));
    EXPECT_THAT(second.values(), testing::Each(1));
    EXPECT_THAT(third.values(), testing::Each(2));
    const std::vector<ConstElements> inputs{first.elements(), second.elements(), third.elements()};
    finish(comm.reduce_scatter_v(mine.elements(), inputs, ReduceOp::sum, gpu.on_stream()));
    EXPECT_THAT(mine.values(), testing::Each(3 * rank));
    // Rank i sends i elements to each rank.
    const auto sent = static_cast<std::size_t>(rank);
    const std::vector<std::size_t> in(3, sent), out{0, 1, 2};
    OnGpu<int> from(gpu, filled(3 * sent, rank)), to(gpu, filled(3, -1));
    finish(comm.all_to_all_v_single(to.elements(), from.elements(), out, in, gpu.on_stream()));
    EXPECT_THAT(to.values(), testing::ElementsAre(1, 2, 2));
    must(comm.finalize());
  });
}

TEST(CommOnP2p, calls_of_both_kinds_follow_one_another_on_any_stream) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    constexpr int rounds = 60;
    std::vector<OnGpu<int>> all;
    std::vector<Work> works;
    all.reserve(rounds);
    for (int i = 0; i < rounds; ++i) {
      all.emplace_back(gpu, filled(i % 2 == 0 ? 4 : 200, comm.rank() + i));
      OpOptions options = gpu.on_stream(i % 3 == 0);
      if (i % 5 == 1) {
        gpu.wait();  // the elements are there, and no other order
        options.stream = gpu.other_stream().handle();
      }
      works.push_back(must(comm.all_reduce(all.back().elements(), ReduceOp::sum, options)));
    }
    for (const Work& work : works) must(work.wait());
    for (int i = 0; i < rounds; ++i)
      EXPECT_THAT(all[static_cast<std::size_t>(i)].values(), testing::Each(3 + 3 * i));
    must(comm.finalize());
  });
}

// --- what it refuses

TEST(CommOnP2p, refuses_what_it_cannot_do_and_goes_on) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<float> floats(gpu, std::vector<float>(3, 1));
    MessageOptions tagged;
    tagged.tag = 5;
    const auto refused = comm.send(floats.elements(), 1 - comm.rank(), tagged);
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr("p2p has no tags, and tag 5 is given"));
    EXPECT_THAT(comm.recv(floats.elements(), any_source).error().message,
                HasSubstr("p2p receives from a given rank alone"));
    EXPECT_THAT(comm.monitored_barrier().error().message, HasSubstr("p2p has no monitored_barrier"));
    const auto undefined = comm.all_reduce(floats.elements(), ReduceOp::bor, gpu.on_stream());
    EXPECT_EQ(undefined.code(), Code::invalid_argument);
    EXPECT_THAT(undefined.error().message, HasSubstr("bor has no meaning for float32"));
    OpOptions options = gpu.on_stream();
    options.hints = {{"algorithm", "one_shot"}};
    EXPECT_THAT(comm.barrier(options).error().message, HasSubstr("have the hint blocks alone"));
    options.hints = {{"blocks", "5"}};
    EXPECT_THAT(comm.barrier(options).error().message,
                HasSubstr("hint blocks of a call is \"5\": give a number between 1 and 4"));
    options.hints = {{"blocks", "1"}};
    finish(comm.all_reduce(floats.elements(), ReduceOp::sum, options));
    EXPECT_THAT(floats.values(), testing::Each(2));
    must(comm.finalize());
  });
}

/// Rank 0 has wrong splits of ten elements in memory of its GPU.
void expect_wrong_splits(const std::vector<std::int64_t>& gets, const std::vector<std::int64_t>& gives,
                         const char* why) {
  with_gpu_ranks(2, [&](Comm& comm, const RankGpu& gpu) {
    const bool is_wrong = comm.rank() == 0;
    const std::vector<std::int64_t> fitting{5, 5};
    OnGpu<std::int64_t> get(gpu, is_wrong ? gets : fitting), give(gpu, is_wrong ? gives : fitting);
    OnGpu<double> from(gpu, std::vector<double>(10, 5)), to(gpu, std::vector<double>(12, -1));
    finish(comm.barrier(gpu.on_stream()));
    const auto work = comm.device_all_to_all_v_single(to.elements(1, 10), from.elements(), get.elements(),
                                                      give.elements(), gpu.on_stream(true));
    const Result<void> refused = work ? work->wait(std::chrono::seconds(30)) : work.error();
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("device_all_to_all_v_single number 2"));
    EXPECT_THAT(refused.error().message, HasSubstr(why)) << "rank 0 has told it";
    if (is_wrong) {
      EXPECT_EQ(refused.code(), Code::invalid_argument);
      EXPECT_THAT(to.values(), testing::Each(-1)) << "nothing is written";
    }
    gpu.meet();
  });
}

TEST(CommOnP2p, splits_on_the_gpu_that_do_not_fit_end_the_communicator_and_are_named) {
  expect_wrong_splits({5, 6}, {5, 5}, "the output split for rank 1 is 6, and so many elements of the output");
  expect_wrong_splits({5, -1}, {5, 5}, "the output split for rank 1 is -1");
  expect_wrong_splits({5, 5}, {INT64_MAX, 5}, "the input split for rank 0 is 9223372036854775807");
  expect_wrong_splits({5, 5}, {INT64_MIN, 5}, "the input split for rank 0 is -9223372036854775808");
  expect_wrong_splits({5, 5}, {4, 5}, "the output split for this rank is 5, and its input split is another");
}

/// What ranks get that open with these options.
std::vector<std::string> refusals(int size, const std::function<void(CommOptions&)>& change,
                                  int gpus = plugin_gpus) {
  const std::string name = unique_comm_name();
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  on_threads(size, [&](int rank) {
    CommOptions options = p2p_options(rank, size, name, gpus);
    change(options);
    texts[static_cast<std::size_t>(rank)] = text_of(Comm::open(options));
  });
  return texts;
}

TEST(CommOnP2p, refuses_hints_that_cannot_be_or_that_differ) {
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {"block", "1", "did you mean \"blocks\"?"},
      {"blocks", "many", "blocks"},
      {"blocks", "-1", "hint blocks is -1: it must be between 0 and"},
      {"packet_bytes", "24", "make no box"},
      {"slots", "1", "slots at least 2"},
      {"chunk_bytes", "1GiB", "less than 4 GiB"},
      {"blocks", "5", "hint blocks is 5"}};
  for (const auto& [name, value, expected] : wrong) {
    const auto texts =
        refusals(1, [&, name = name, value = value](CommOptions& options) { options.hints[name] = value; });
    EXPECT_THAT(texts[0], HasSubstr("invalid_argument")) << name << " " << value;
    EXPECT_THAT(texts[0], HasSubstr(expected)) << name << " " << value;
  }
  for (const std::string& text : refusals(
           2, [](CommOptions& options) { options.hints["copy_bytes"] = std::to_string(100 * options.rank); }))
    EXPECT_THAT(text, HasSubstr("rank 0 has hint copy_bytes 0, rank 1 has 100"));
  for (const std::string& text :
       refusals(2, [](CommOptions& options) { options.hints["blocks"] = std::to_string(options.rank + 1); }))
    EXPECT_THAT(text, HasSubstr("rank 0 has hint blocks 1, rank 1 has 2: give all ranks the same hints"));
}

TEST(CommOnP2p, refuses_more_ranks_than_it_has_or_than_a_gpu_can_run_at_once) {
  EXPECT_THAT(
      text_of(Comm::open(p2p_options(0, 17, "many"))),
      HasSubstr("not_supported: open communicator \"many\" as rank 0: backend p2p_fake: 17 ranks: p2p "
                "has at most 16"));
  for (const std::string& text : refusals(
           5, [](CommOptions&) {}, 1)) {
    EXPECT_THAT(text, HasSubstr("exhausted"));
    EXPECT_THAT(text, HasSubstr("GPU 0 has 4 multiprocessors, and 5 ranks are on one GPU"));
  }
}

TEST(CommOnP2p, refuses_gpus_that_cannot_map_each_other_on_all_ranks) {
  plugin_gpu().reach(0, 1, false);
  const auto texts = refusals(2, [](CommOptions&) {});
  plugin_gpu().reach(0, 1, true);
  EXPECT_THAT(texts[0], HasSubstr("not_supported"));
  EXPECT_THAT(texts[0], HasSubstr("GPU 0 cannot map the box of rank 1"));
  EXPECT_THAT(texts[0], HasSubstr("use backend nccl"));
  EXPECT_THAT(texts[1], HasSubstr("rank 0: GPU 0 cannot map the box of rank 1"));
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    finish(comm.barrier(gpu.on_stream()));
    must(comm.finalize());
  });
}

TEST(CommOnP2p, a_rank_may_leave_as_soon_as_it_has_opened) {
  const std::string name = unique_comm_name();
  on_threads(3, [&](int rank) { must(Comm::open(p2p_options(rank, 3, name))).close(); });
}

TEST(CommOnP2p, says_which_rank_has_not_come) {
  CommOptions options = p2p_options(0, 2, unique_comm_name());
  options.meeting_timeout = milliseconds(30);
  EXPECT_EQ(Comm::open(options).code(), Code::timed_out);
}

// --- captures

TEST(CommOnP2p, replays_take_new_elements_between_calls_that_are_not_captured) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    for (const auto& [count, is_registered] :
         {std::pair{5UL, false}, std::pair{300UL, false}, std::pair{400UL, true}}) {
      OnGpu<int> numbers(gpu, filled(count, 1));
      if (is_registered) must(comm.tensor_register(numbers.elements()));
      const Captured captured(comm, gpu, numbers.elements());
      int expected = 1;
      for (int i = 0; i < 4; ++i) {
        captured.replay();
        finish(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
        expected *= 9;
        EXPECT_THAT(numbers.values(), testing::Each(expected));
      }
      if (is_registered) must(comm.tensor_deregister(numbers.elements()));
    }
    must(comm.finalize());
  });
}

TEST(CommOnP2p, each_replay_reads_its_splits) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    const int rank = comm.rank();
    OnGpu<std::int64_t> give(gpu, {0, 0}), get(gpu, {0, 0});
    OnGpu<int> from(gpu, filled(100, rank)), to(gpu, filled(100, -1));
    const Captured captured(gpu, [&](const OpOptions& options) {
      return comm.device_all_to_all_v_single(to.elements(), from.elements(), get.elements(), give.elements(),
                                             options);
    });
    for (const std::int64_t step : {1, 30, 0, 7}) {
      // Rank 0 gives `step` elements to itself and twice as many to rank 1, which gives one each.
      const std::int64_t gives[2][2] = {{step, 2 * step}, {1, 1}};
      const OnGpu<std::int64_t> now_gives(gpu, {gives[rank][0], gives[rank][1]}),
          now_gets(gpu, {gives[0][rank], gives[1][rank]});
      const auto address = [](const OnGpu<std::int64_t>& numbers) {
        return reinterpret_cast<cuda::Address>(numbers.elements().data);
      };
      gpu.copy(address(give), address(now_gives), 2 * sizeof(std::int64_t));
      gpu.copy(address(get), address(now_gets), 2 * sizeof(std::int64_t));
      captured.replay();
      Numbers expected(static_cast<std::size_t>(gives[0][rank]), 0);
      expected.push_back(1);
      Numbers got = to.values();
      got.resize(expected.size());
      EXPECT_EQ(got, expected);
    }
    must(comm.finalize());
  });
}

TEST(CommOnP2p, an_abort_ends_a_replay) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(5, 1));
    const Captured captured(comm, gpu, numbers.elements());
    gpu.meet();
    if (comm.rank() == 1) {
      comm.abort("enough");
      return;
    }
    captured.replay();
    gpu.wait();
    while (!comm.is_aborted()) std::this_thread::yield();
    EXPECT_THAT(comm.barrier(gpu.on_stream()).error().message, HasSubstr("rank 1 aborted"));
  });
}

TEST(CommOnP2p, a_replay_keeps_its_deadline_and_the_next_call_says_for_whom_it_has_waited) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(5, 1));
    finish(comm.barrier(gpu.on_stream()));
    const Captured captured(comm, gpu, numbers.elements(), milliseconds(20));
    if (comm.rank() == 0) {
      captured.replay();
      gpu.wait();
      const Work work = must(comm.barrier(gpu.on_stream()));
      EXPECT_EQ(work.wait().code(), Code::timed_out);
      EXPECT_THAT(
          work.error().message,
          HasSubstr("a replay of a captured call has ended early: rank 1 has not come: it has begun 1 "
                    "operations, and this one is number 2"));
    }
    gpu.meet();
  });
}

TEST(CommOnP2p, a_replay_beside_a_call_that_it_does_not_wait_for_is_refused_and_says_so) {
  for (const bool replay_first : {false, true})
    with_gpu_ranks(2, [=](Comm& comm, const RankGpu& gpu) { run_beside_itself(comm, gpu, replay_first); });
}

// --- failures

TEST(CommOnP2p, a_late_call_names_the_rank_that_has_not_come) {
  for (const int size : {2, 3}) with_gpu_ranks(size, wait_in_vain);
}

TEST(CommOnP2p, a_call_that_is_late_behind_other_work_of_its_stream_ends_too) {
  with_gpu_ranks(1, [](Comm& comm, const RankGpu& gpu) {
    plugin_gpu().hold();
    OpOptions options = gpu.on_stream();
    options.timeout = milliseconds(20);
    const Work work = must(comm.barrier(options));
    EXPECT_EQ(work.wait().code(), Code::timed_out);
    EXPECT_THAT(work.error().message, HasSubstr("its GPU has not begun it, or moves its elements"));
    plugin_gpu().release();
  });
}

TEST(CommOnP2p, an_abort_from_any_thread_ends_the_calls_of_all_ranks) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    if (comm.rank() == 2) {
      gpu.meet();
      std::jthread([&comm] { comm.abort("enough"); }).join();
      EXPECT_TRUE(comm.is_aborted());
      return;
    }
    OnGpu<int> numbers(gpu, filled(100, 1));
    const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream(true)));
    const Work second = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    gpu.meet();
    EXPECT_EQ(work.wait().code(), Code::canceled);
    EXPECT_THAT(work.error().message, HasSubstr("rank 2 aborted"));
    EXPECT_THAT(work.error().message, HasSubstr("enough"));
    EXPECT_EQ(second.wait().code(), Code::canceled);
    EXPECT_EQ(comm.barrier(gpu.on_stream()).code(), Code::canceled);
  });
}

TEST(CommOnP2p, a_rank_that_leaves_is_named_to_those_that_wait_for_it_and_to_those_that_call_later) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(100, 1));
    finish(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    if (comm.rank() == 1) {
      gpu.meet();
      must(comm.finalize());
      gpu.meet();
      return;
    }
    std::optional<Work> waits;
    if (comm.rank() == 0) waits = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    gpu.meet();
    gpu.meet();
    if (!waits) {
      const auto later = comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream());
      const std::string text = later.ok() ? text_of(later->wait()) : later.error().message;
      EXPECT_THAT(text, HasSubstr("rank 1 is gone"));
      return;
    }
    EXPECT_FALSE(waits->wait().ok());
    EXPECT_THAT(waits->error().message, HasSubstr("rank 1 is gone"));
  });
}

TEST(CommOnP2p, a_rank_may_leave_while_others_finish_what_it_has_done) {
  for (int round = 0; round < 4; ++round)
    with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
      OnGpu<int> numbers(gpu, filled(2000, 1));
      finish(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
      must(comm.finalize());
      EXPECT_THAT(numbers.values(), testing::Each(3));
    });
}

TEST(CommOnP2p, leaves_at_once_while_a_call_waits_for_another_rank) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    if (comm.rank() == 0) {
      auto owner = std::make_shared<int>();
      OpOptions options = gpu.on_stream();
      options.owner = owner;
      OnGpu<int> numbers(gpu, filled(100, 1));
      const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, options));
      options.owner.reset();
      comm.close();
      EXPECT_EQ(work.wait().code(), Code::canceled);
      EXPECT_EQ(owner.use_count(), 1);
    }
    gpu.meet();
  });
}

TEST(CommOnP2p, ends_a_split_to_which_a_rank_does_not_come) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    if (comm.rank() == 0) {
      SplitOptions changes;
      changes.meeting_timeout = milliseconds(30);
      EXPECT_EQ(comm.split(std::array{0, 1}, "part", changes).code(), Code::timed_out);
    }
    gpu.meet();
  });
}

// --- streams

class StreamsOnP2p : public testing::Test {
 protected:
  void fill(cuda::Address address, cuda::Stream stream) const {
    const gpu::ContextGuard current(*gpu_.device());
    static_cast<void>(plugin_gpu().driver->memset_d8_async(address, 7, 4, stream));
  }
  static Elements four(cuda::Address address) { return {reinterpret_cast<void*>(address), 4, DType::uint8}; }

  std::barrier<> alone_{1};
  const RankGpu gpu_{*plugin_gpu().driver, 0, alone_};
  const cuda::Address given_ = gpu_.take(4), result_ = gpu_.take(4), later_ = gpu_.take(4);
  Comm comm_ = must(Comm::open(p2p_options(0, 1, "alone")));
};

TEST_F(StreamsOnP2p, a_call_sees_what_was_queued_before_and_later_work_sees_its_result) {
  plugin_gpu().hold();
  fill(given_, gpu_.stream());
  const Work work = must(comm_.all_reduce(four(given_), four(result_), ReduceOp::sum, gpu_.on_stream()));
  gpu_.copy(later_, result_, 4);
  EXPECT_EQ(work.status(), WorkStatus::in_progress);  // the call has not waited
  EXPECT_EQ(work.wait(milliseconds(5)).code(), Code::timed_out);
  plugin_gpu().release();
  must(work.wait());
  gpu_.wait();
  EXPECT_EQ(*memory_at(later_), 7);
}

TEST_F(StreamsOnP2p, an_asynchronous_call_runs_beside_its_stream_until_one_waits_for_it) {
  plugin_gpu().hold();
  fill(given_, gpu_.stream());
  const Work work = must(comm_.all_reduce(four(given_), four(result_), ReduceOp::sum, gpu_.on_stream(true)));
  must(work.wait_on(gpu_.other_stream().handle()));
  {
    const gpu::ContextGuard current(*gpu_.device());
    static_cast<void>(plugin_gpu().driver->memcpy_async(later_, result_, 4, gpu_.other_stream().handle()));
  }
  plugin_gpu().release();
  must(gpu_.other_stream().wait_idle());
  EXPECT_EQ(*memory_at(later_), 7);
  must(work.wait());
  must(work.wait_on(gpu_.other_stream().handle()));  // it has ended
}

// --- settings

TEST(P2pSettings, packets_are_shorter_the_more_gpus_there_are) {
  std::uint32_t last = ~0U;
  for (int gpus = 2; gpus <= 16; ++gpus) {
    const std::uint32_t bytes = p2p::packet_bytes_for(gpus);
    EXPECT_LE(bytes, last) << gpus;
    EXPECT_EQ(bytes % 16, 0U) << gpus;
    last = bytes;
  }
}

TEST(P2pSettings, are_listed_with_the_options_of_communicators) {
  const auto options = must(list_comm_options());
  EXPECT_TRUE(std::ranges::any_of(options, [](const auto& one) { return one.name == "p2p.blocks"; }));
}

// --- processes

/// CheckedCalls, and rank 1 ends without a word in the middle if it `dies`.
std::string call_on(Comm& comm, const RankGpu& gpu, bool dies) {
  OnGpu<int> numbers(gpu, filled(300, 1));
  for (int i = 0; i < 8; ++i) {
    if (dies && comm.rank() == 1 && i == 5) ::kill(::getpid(), SIGKILL);
    const auto work = comm.all_reduce(numbers.elements(), ReduceOp::max, gpu.on_stream());
    if (!work.ok()) return text_of(work);
    if (const auto ended = work->wait(); !ended.ok()) return text_of(ended);
    if (i == 3)
      if (const auto registered = comm.tensor_register(numbers.elements()); !registered)
        return text_of(registered);
  }
  for (const int number : numbers.values())
    if (number != 1) return "a wrong number";
  return text_of(comm.finalize());
}

/// Ranks 0 and 2 get two messages of rank 1, which ends without a word before the second.
std::string receive_twice(Comm& comm, const RankGpu& gpu) {
  OnGpu<int> numbers(gpu, filled(300, 1));
  MessageOptions options;
  options.stream = gpu.stream();
  for (int i = 0; i < 2; ++i) {
    if (comm.rank() == 1 && i == 1) ::kill(::getpid(), SIGKILL);
    for (const int to : {0, 2}) {
      if (comm.rank() != 1 && comm.rank() != to) continue;
      const auto work = comm.rank() == 1 ? comm.send(numbers.elements(), to, options)
                                         : comm.recv(numbers.elements(), 1, options);
      if (!work.ok()) return text_of(work);
      if (const auto ended = work->wait(); !ended.ok()) return text_of(ended);
    }
  }
  return "received both";
}

TEST(P2pProcesses, reduce_on_gpus_of_their_own_and_on_one) {
  for (const char* program : {"p2p_apart", "p2p_together"}) {
    RankProcesses ranks(program, 3);
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.line_of(rank), "ok") << program;
  }
}

TEST(P2pProcesses, every_rank_learns_which_one_was_killed) {
  RankProcesses ranks("p2p_dies", 3);
  for (const std::size_t rank : {0UL, 2UL}) {
    const std::string line = ranks.line_of(rank);
    EXPECT_THAT(line, HasSubstr("rank " + std::to_string(rank) + ", all_reduce number"));
    EXPECT_THAT(line, HasSubstr("rank 1 is gone"));
  }
}

TEST(P2pProcesses, a_rank_that_waits_for_a_message_learns_that_its_sender_was_killed) {
  RankProcesses ranks("p2p_dies_sending", 3);
  for (const std::size_t rank : {0UL, 2UL}) {
    const std::string line = ranks.line_of(rank);
    EXPECT_THAT(line, HasSubstr("rank " + std::to_string(rank) + ", recv number"));
    EXPECT_THAT(line, HasSubstr("rank 1 is gone"));
  }
}

}  // namespace

bool is_p2p_program(const std::string& program) { return program.starts_with("p2p_"); }

int run_p2p_rank(char** words) {
  const std::string program = words[0], folder = words[3];
  CommOptions options = p2p_options(std::stoi(words[1]), std::stoi(words[2]), "processes",
                                    program == "p2p_together" ? 1 : plugin_gpus);
  options.meeting = "file://" + folder + "/store";
  std::barrier<> alone(1);
  const RankGpu gpu(*plugin_gpu().driver, program == "p2p_together" ? 0 : options.rank, alone);
  auto comm = Comm::open(options);
  const auto run = [&] {
    return program == "p2p_dies_sending" ? receive_twice(*comm, gpu)
                                         : call_on(*comm, gpu, program == "p2p_dies");
  };
  const std::string line = comm.ok() ? run() : text_of(comm);
  std::ofstream(folder + "/" + words[1]) << line;
  return 0;
}

}  // namespace headrace::test
