// SPDX-License-Identifier: Apache-2.0
// The kernel family collectives on GPUs: its answers compared with the CPU reference, then its times in turn
// with bare kernels (bench/gpu/collective_kernels.cu).
//
//   bench_gpu_collectives [check] [quick] [time] [--gpus N] [--ranks N]
//                         [--blocks N] [--packed BYTES] [--chunk BYTES] [--slots N] [--one-shot BYTES]
//                         [--registered 1] [--least BYTES] [--most BYTES]
//
// check  every operation, type and reduction of 2 to 4 ranks, of any count and alignment, on random elements;
//        graphs whose inputs change between replays; an abort in a replay; a rank that never comes
// quick  a part of that, for compute-sanitizer
// time   all_reduce of bfloat16 in a graph, of `--ranks` ranks (4). One row a figure, of the table coll-gpuN
//
// The other lines are about `time`: blocks of a launch, and the shape of boxes, instead of the defaults;
// memory that all ranks map, so that nothing goes through boxes; the least (0) and the most (64 MiB) bytes.
// Ranks are threads of this process, with a stream each; rank r is on GPU r % N (1). It ends at the first
// difference.
#include "kernels/collectives/collectives.hpp"
#include "gpu/device.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/event.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"
#include "tests/support/collective_ranks.hpp"

#include <headrace/plugin/kernels/collectives_v1.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// Written by cmake/kernels.cmake from collective_kernels.cu.
extern "C" const headrace_kernel_image_v1 headrace_bare_collective_images[];
extern "C" const uint64_t headrace_bare_collective_image_count;

namespace {

using namespace headrace;
using namespace headrace::kernels::collectives;
using cuda::Address;
using gpu::DeviceMemory;
using gpu::PinnedMemory;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

[[noreturn]] void end_with(const std::string& text) {
  fmt::print(stderr, "{}\n", text);
  std::fflush(stdout);
  std::_Exit(1);
}
template <class T>
T must(Result<T> result) {
  if (!result.ok()) end_with(result.error().message);
  return std::move(result).value();
}
void must(Result<void> result) {
  if (!result.ok()) end_with(result.error().message);
}

// ------------------------------------------------------------------ ranks

/// A GPU with the kernels of the library and the bare ones.
class Gpu {
 public:
  Gpu(const cuda::DriverTable& driver, int ordinal)
      : device_(must(gpu::Device::open(driver, ordinal))),
        kernels_(must(gpu::Kernels::open(must(gpu::KernelLibrary::load()), device_))),
        family_(must(gpu::KernelFamily<headrace_collectives_v1>::of(kernels_, HEADRACE_COLLECTIVES_FAMILY,
                                                                    HEADRACE_COLLECTIVES_FAMILY_VERSION))) {
    const gpu::ContextGuard guard(*device_);
    for (std::uint64_t i = 0; i < headrace_bare_collective_image_count && module_ == nullptr; ++i)
      if (driver.module_load_data(&module_, headrace_bare_collective_images[i].data) !=
          cuda::Outcome::success)
        module_ = nullptr;
    if (module_ == nullptr) end_with("no image of the bare kernels runs on this GPU");
  }

  [[nodiscard]] const std::shared_ptr<const gpu::Device>& device() const { return device_; }
  [[nodiscard]] const gpu::KernelFamily<headrace_collectives_v1>& family() const { return family_; }
  [[nodiscard]] const headrace_collectives_v1& table() const {
    return *reinterpret_cast<const headrace_collectives_v1*>(must(kernels_->library().family(
        HEADRACE_COLLECTIVES_FAMILY, HEADRACE_COLLECTIVES_FAMILY_VERSION, sizeof(headrace_collectives_v1))));
  }
  /// Its kernels can reach the memory of the other one.
  void reach(const Gpu& other) const {
    const gpu::ContextGuard guard(*device_);
    must_be(device_->driver().ctx_enable_peer_access(other.device_->context(), 0), "cuCtxEnablePeerAccess");
  }
  void must_be(cuda::Outcome outcome, std::string_view what) const {
    if (outcome != cuda::Outcome::success)
      end_with(fmt::format("{}: {}", what, cuda::outcome_text(device_->driver(), outcome)));
  }
  /// Kernels that are launched later would wait for running ones while they are loaded.
  [[nodiscard]] cuda::Function bare(const std::string& name) const {
    cuda::Function found = nullptr;
    must_be(device_->driver().module_get_function(&found, module_, name.c_str()), name);
    must_be(device_->driver().func_load(found), name);
    return found;
  }
  void launch(cuda::Function function, unsigned blocks, unsigned threads, void** parameters,
              cuda::Stream stream) const {
    cuda::LaunchConfig config;
    config.grid_x = blocks;
    config.block_x = threads;
    config.stream = stream;
    must_be(device_->driver().launch_kernel_ex(&config, function, parameters, nullptr), "cuLaunchKernelEx");
  }

 private:
  std::shared_ptr<const gpu::Device> device_;
  std::shared_ptr<const gpu::Kernels> kernels_;
  gpu::KernelFamily<headrace_collectives_v1> family_;
  cuda::Module module_ = nullptr;
};

class Graph {
 public:
  Graph(const Gpu& gpu, cuda::Stream stream, const std::function<void()>& record) : gpu_(gpu) {
    const gpu::ContextGuard guard(*gpu.device());
    const cuda::DriverTable& driver = gpu.device()->driver();
    gpu.must_be(driver.stream_begin_capture(stream, cuda::CaptureMode::relaxed), "cuStreamBeginCapture");
    record();
    cuda::Graph graph = nullptr;
    gpu.must_be(driver.stream_end_capture(stream, &graph), "cuStreamEndCapture");
    gpu.must_be(driver.graph_instantiate(&exec_, graph, 0), "cuGraphInstantiate");
    gpu.must_be(driver.graph_destroy(graph), "cuGraphDestroy");
  }
  Graph(Graph&& other) noexcept : gpu_(other.gpu_), exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph() {
    if (exec_ != nullptr) (void)gpu_.device()->driver().graph_exec_destroy(exec_);
  }
  void launch(cuda::Stream stream) const {
    const gpu::ContextGuard guard(*gpu_.device());
    gpu_.must_be(gpu_.device()->driver().graph_launch(exec_, stream), "cuGraphLaunch");
  }

 private:
  const Gpu& gpu_;
  cuda::GraphExec exec_ = nullptr;
};

class Rank {
 public:
  Rank(const Gpu& gpu, std::uint64_t box_bytes, std::uint64_t room)
      : gpu_(gpu),
        stream_(must(gpu::Stream::make(gpu.device()))),
        box_(must(DeviceMemory::allocate(gpu.device(), box_bytes))),
        input_(must(DeviceMemory::allocate(gpu.device(), room))),
        output_(must(DeviceMemory::allocate(gpu.device(), room))),
        words_(must(PinnedMemory::allocate(gpu.device(), 4096))) {
    fill(box_.address(), 0, box_bytes);
  }

  [[nodiscard]] const Gpu& gpu() const { return gpu_; }
  [[nodiscard]] cuda::Stream stream() const { return stream_.handle(); }
  [[nodiscard]] Address box() const { return box_.address(); }
  [[nodiscard]] Address input() const { return input_.address(); }
  [[nodiscard]] Address output() const { return output_.address(); }
  [[nodiscard]] Address abort_word() const { return words_.address(); }
  [[nodiscard]] Address status_address() const { return words_.address() + 64; }
  void abort() const {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(words_.bytes().data()), 1, __ATOMIC_RELEASE);
  }
  [[nodiscard]] const headrace_collectives_status_v1& status() const {
    return *reinterpret_cast<const headrace_collectives_status_v1*>(words_.bytes().data() + 64);
  }

  /// Where the splits of an operation are: so many for each rank.
  [[nodiscard]] Address splits_of(std::uint64_t count) const {
    std::fill_n(reinterpret_cast<std::int64_t*>(words_.bytes().data() + splits_at), most_ranks,
                static_cast<std::int64_t>(count));
    return words_.address() + splits_at;
  }

  void fill(Address at, unsigned char value, std::uint64_t bytes) const {
    const gpu::ContextGuard guard(*gpu_.device());
    gpu_.must_be(driver().memset_d8_async(at, value, bytes, stream()), "cuMemsetD8Async");
    wait();
  }
  void put(Address at, const Bytes& bytes) const {
    const gpu::ContextGuard guard(*gpu_.device());
    if (bytes.empty()) return;
    gpu_.must_be(driver().memcpy_async(at, reinterpret_cast<Address>(bytes.data()), bytes.size(), stream()),
                 "cuMemcpyAsync");
    wait();
  }
  [[nodiscard]] Bytes get(Address at, std::uint64_t bytes) const {
    const gpu::ContextGuard guard(*gpu_.device());
    Bytes got(bytes);
    if (bytes != 0)
      gpu_.must_be(driver().memcpy_async(reinterpret_cast<Address>(got.data()), at, bytes, stream()),
                   "cuMemcpyAsync");
    wait();
    return got;
  }
  void wait() const { must(stream_.wait_idle()); }

 private:
  static constexpr std::size_t splits_at = 512;
  [[nodiscard]] const cuda::DriverTable& driver() const { return gpu_.device()->driver(); }

  const Gpu& gpu_;
  gpu::Stream stream_;
  DeviceMemory box_, input_, output_;
  PinnedMemory words_;
};

/// Whether all ranks map the memory of inputs and outputs.
enum class Memory { plain, registered };

class Ranks {
 public:
  Ranks(const std::vector<Gpu>& gpus, unsigned count, std::uint64_t room,
        headrace_collectives_box_v1 box = {}, Memory memory = Memory::plain)
      : box_(box),
        room_(room),
        sharing_((count + static_cast<unsigned>(gpus.size()) - 1) / static_cast<unsigned>(gpus.size())) {
    box_.ranks = count;
    for (unsigned rank = 0; rank < count; ++rank) {
      const Gpu& gpu = gpus[rank % gpus.size()];
      ranks_.emplace_back(gpu, gpu.table().box_bytes(&box_), room);
      if (memory == Memory::registered)
        memories_.push_back({seen(ranks_[rank].input()), seen(ranks_[rank].output())});
    }
  }

  [[nodiscard]] unsigned count() const { return box_.ranks; }
  [[nodiscard]] const Rank& operator[](unsigned rank) const { return ranks_[rank]; }

  void launch(const TestCall& call, unsigned rank, std::uint64_t shift = 0, bool in_place = false) const {
    const Rank& it = ranks_[rank];
    const gpu::ContextGuard guard(*it.gpu().device());
    const RankCall made(call, rank, count(), it.input() + shift,
                        (in_place ? it.input() : it.output()) + shift, it.splits_of(call.count));
    headrace_collective_v1 args{};
    args.struct_size = sizeof args;
    args.box = box_;
    for (unsigned i = 0; i < count(); ++i) args.boxes[i] = ranks_[i].box();
    args.rank = rank;
    args.sharing = sharing_;
    args.blocks = blocks;
    args.one_shot_bytes = one_shot_bytes;
    args.abort = it.abort_word();
    args.status = it.status_address();
    args.call = made.get();
    if (!memories_.empty())
      args.memories = memories_[rank].data(), args.memory_count = memories_[rank].size();
    it.gpu().must_be(it.gpu().family().launch<&headrace_collectives_v1::run>(args, it.stream()),
                     fmt::format("launch operation {}", call.operation));
  }
  /// New elements for all ranks, and other bytes in their outputs.
  [[nodiscard]] std::vector<Bytes> renew(const TestCall& call, std::mt19937& random, std::uint64_t shift,
                                         bool any_bits) const {
    std::vector<Bytes> inputs;
    for (const Rank& rank : ranks_) {
      inputs.push_back(
          random_elements(random, any_bits ? HEADRACE_UINT8 : call.dtype, call.input_bytes(count())));
      rank.fill(rank.input(), 0x5a, room_);
      rank.fill(rank.output(), 0xa5, room_);
      rank.put(rank.input() + shift, inputs.back());
    }
    return inputs;
  }
  void compare(const TestCall& call, const std::vector<Bytes>& inputs, std::uint64_t shift,
               bool in_place) const {
    for (unsigned rank = 0; rank < count(); ++rank) {
      const Bytes expected = expected_output(call, inputs, rank);
      const Rank& it = ranks_[rank];
      const std::uint64_t end = std::max<std::uint64_t>(expected.size(), in_place ? inputs[rank].size() : 0);
      const Bytes got = it.get((in_place ? it.input() : it.output()) + shift - 1, end + 2);
      const unsigned char beside = in_place ? 0x5a : 0xa5;
      const std::uint64_t same =
          first_difference(call.dtype, got.data() + 1, expected.data(), expected.size());
      if (same == expected.size() && got.front() == beside && got.back() == beside) continue;
      end_with(fmt::format(
          "operation {}, type {}, reduction {}, {} elements, shift {}, in place {}, rank {} of {}: "
          "byte {} of {} differs, or one beside them",
          call.operation, call.dtype, call.reduction, call.count, shift, in_place, rank, count(), same,
          expected.size()));
    }
  }
  void run(const TestCall& call, std::mt19937& random, std::uint64_t shift = 16, bool in_place = false,
           bool any_bits = false) const {
    const auto inputs = renew(call, random, shift, any_bits);
    for (unsigned rank = 0; rank < count(); ++rank) launch(call, (rank + 1) % count(), shift, in_place);
    wait();
    compare(call, inputs, shift, in_place);
  }
  void wait() const {
    for (unsigned rank = 0; rank < count(); ++rank) {
      ranks_[rank].wait();
      const auto& status = ranks_[rank].status();
      if (__atomic_load_n(&status.reason, __ATOMIC_ACQUIRE) != 0)
        end_with(fmt::format("rank {} gave up in operation {}, waiting for rank {}, which has begun {}", rank,
                             status.epoch, status.peer, status.seen));
    }
  }

  std::uint32_t blocks = 0, one_shot_bytes = 0;

 private:
  /// All ranks are in one process: they see it where it is.
  [[nodiscard]] headrace_collectives_memory_v1 seen(Address address) const {
    headrace_collectives_memory_v1 memory{address, room_, {}};
    std::ranges::fill(memory.at, address);
    return memory;
  }

  headrace_collectives_box_v1 box_;
  const std::uint64_t room_;
  const unsigned sharing_;
  std::vector<Rank> ranks_;
  std::vector<std::array<headrace_collectives_memory_v1, 2>> memories_;  // of each rank; empty: none
};

// ------------------------------------------------------------------ check

constexpr std::int64_t patience_ns = 20'000'000'000;  // of operations that shall end

/// Small chunks, so that small messages go through all slots several times.
constexpr headrace_collectives_box_v1 small_box{0, 1024, 512, 16};
constexpr std::uint64_t check_room = 1 << 20;

std::vector<std::int32_t> checked_operations() {
  std::vector<std::int32_t> operations(std::begin(every_operation), std::end(every_operation));
  operations.push_back(HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE);
  return operations;
}

void check_operations(const std::vector<Gpu>& gpus, unsigned count, bool quick, Memory memory) {
  std::mt19937 random(std::random_device{}());
  Ranks ranks(gpus, count, check_room, small_box, memory);
  ranks.blocks = 3;
  const std::vector<std::uint64_t> sizes =
      quick ? std::vector<std::uint64_t>{5, 1537}
            : std::vector<std::uint64_t>{0, 1, 3, 64, 127, 255, 256, 257, 1537, 9001, 20000, 20011};
  for (const std::int32_t operation : checked_operations())
    for (const std::uint64_t elements : sizes)
      for (const std::uint64_t shift :
           quick ? std::vector<std::uint64_t>{17} : std::vector<std::uint64_t>{16, 17, 18, 20, 24}) {
        // All types move alike; where they reduce, bfloat16 has kernels of its own.
        for (const std::int32_t dtype : {HEADRACE_UINT8, HEADRACE_BFLOAT16}) {
          const TestCall call{.operation = operation,
                              .count = elements,
                              .dtype = dtype,
                              .root = static_cast<unsigned>(random() % count),
                              .timeout_ns = patience_ns};
          ranks.run(call, random, shift);
          if (call.has_row_of_inputs() == call.has_row_of_outputs()) ranks.run(call, random, shift, true);
        }
      }
}

void check_types(const std::vector<Gpu>& gpus, unsigned count, bool quick, Memory memory) {
  std::mt19937 random(std::random_device{}());
  Ranks ranks(gpus, count, check_room, small_box, memory);
  for (std::int32_t dtype = 0; dtype <= last_dtype; ++dtype)
    for (std::int32_t reduction = 0; reduction <= last_reduction; ++reduction)
      for (const double factor : {3.0, -0.3}) {
        if (!is_defined(dtype, reduction, factor)) continue;
        for (const std::uint64_t elements : {13u, 2039u, 2048u})
          for (const std::int32_t operation : {HEADRACE_COMM_ALL_REDUCE, HEADRACE_COMM_REDUCE_SCATTER_SINGLE})
            for (const bool any_bits : {false, true}) {
              if (quick && (any_bits || factor < 0)) continue;
              ranks.run({.operation = operation,
                         .count = elements,
                         .dtype = dtype,
                         .reduction = reduction,
                         .factor = factor,
                         .timeout_ns = patience_ns},
                        random, 16, false, any_bits);
            }
      }
}

/// all_reduce as packets, in one step and in two, with as many threads and places for each as there can be.
void check_steps(const std::vector<Gpu>& gpus, unsigned count) {
  std::mt19937 random(std::random_device{}());
  Ranks ranks(gpus, count, std::uint64_t{4} << 20, {0, 1 << 20, 0, 0});
  for (const std::uint32_t one_shot_bytes : {1u, 0u, 1u << 30}) {
    ranks.one_shot_bytes = one_shot_bytes;
    for (const std::int32_t dtype : {HEADRACE_FLOAT32, HEADRACE_BFLOAT16, HEADRACE_INT16})
      for (const std::uint64_t elements :
           {1u, 5u, 9u, 31u, 1000u, 8191u, 20011u, 65536u, 100003u, 196608u, 393217u})
        for (const bool in_place : {false, true})
          for (const std::uint64_t shift : {16, 20})
            ranks.run({.count = elements,
                       .dtype = dtype,
                       .reduction = in_place ? HEADRACE_COMM_AVG : HEADRACE_COMM_SUM,
                       .timeout_ns = patience_ns},
                      random, shift, in_place);
  }
}

/// Large messages with the usual box, and many blocks.
void check_large(const std::vector<Gpu>& gpus, unsigned count, Memory memory) {
  std::mt19937 random(std::random_device{}());
  const Ranks ranks(gpus, count, std::uint64_t{5} << 24, {}, memory);
  for (const std::int32_t operation : checked_operations())
    for (const std::uint64_t elements : {(1u << 18) + 5u, (1u << 22) + 3u, (1u << 22) + 8u})
      ranks.run(
          {.operation = operation, .count = elements, .dtype = HEADRACE_BFLOAT16, .timeout_ns = patience_ns},
          random);
}

void check_graphs(const std::vector<Gpu>& gpus, unsigned count, Memory memory) {
  std::mt19937 random(std::random_device{}());
  const Ranks ranks(gpus, count, check_room, small_box, memory);
  const TestCall calls[] = {{.count = 255, .dtype = HEADRACE_BFLOAT16, .timeout_ns = patience_ns},
                            {.count = 5003, .dtype = HEADRACE_BFLOAT16, .timeout_ns = patience_ns},
                            {.count = 5008, .dtype = HEADRACE_BFLOAT16, .timeout_ns = patience_ns},
                            {.operation = HEADRACE_COMM_ALL_TO_ALL_SINGLE,
                             .count = 780,
                             .dtype = HEADRACE_FLOAT32,
                             .timeout_ns = patience_ns}};
  for (const TestCall& call : calls) {
    std::vector<Graph> graphs;
    // Twice in each graph: its inputs stay, so the outputs do too.
    for (unsigned rank = 0; rank < count; ++rank)
      graphs.emplace_back(ranks[rank].gpu(), ranks[rank].stream(), [&] {
        ranks.launch(call, rank, 16);
        ranks.launch(call, rank, 16);
      });
    for (int replay = 0; replay < 10; ++replay) {
      const auto inputs = ranks.renew(call, random, 16, false);
      for (unsigned rank = 0; rank < count; ++rank) graphs[rank].launch(ranks[rank].stream());
      ranks.wait();
      ranks.compare(call, inputs, 16, false);
      ranks.run({.operation = HEADRACE_COMM_BARRIER, .timeout_ns = patience_ns}, random);
    }
  }
}

void expect_status(const Rank& rank, unsigned peer, std::uint64_t reason, std::uint64_t epoch,
                   std::string_view what) {
  const headrace_collectives_status_v1& status = rank.status();
  const std::uint64_t seen = __atomic_load_n(&status.reason, __ATOMIC_ACQUIRE);
  if (seen != reason || status.rank != 0 || status.peer != peer || status.epoch != epoch ||
      status.seen != epoch - 1)
    end_with(fmt::format("{}: reason {}, rank {} waited for {} in operation {}, seen {}", what, seen,
                         status.rank, status.peer, status.epoch, status.seen));
}
void expect_untouched(const Rank& rank, std::string_view what) {
  const Bytes output = rank.get(rank.output(), check_room);
  if (!std::ranges::all_of(output, [](auto byte) { return byte == 0xa5; }))
    end_with(fmt::format("{}: the output was written", what));
}

void check_early_ends(const std::vector<Gpu>& gpus, Memory memory) {
  std::mt19937 random(std::random_device{}());
  for (const std::uint64_t elements : {100u, 5003u, 5008u}) {
    const TestCall call{.count = elements, .dtype = HEADRACE_BFLOAT16};
    {
      const Ranks ranks(gpus, 2, check_room, small_box, memory);
      std::vector<Graph> graphs;
      for (unsigned rank = 0; rank < 2; ++rank)
        graphs.emplace_back(ranks[rank].gpu(), ranks[rank].stream(), [&] { ranks.launch(call, rank); });
      for (unsigned rank = 0; rank < 2; ++rank) graphs[rank].launch(ranks[rank].stream());
      ranks.wait();
      (void)ranks.renew(call, random, 0, false);
      graphs[0].launch(ranks[0].stream());
      std::this_thread::sleep_for(20ms);
      const auto begin = Clock::now();
      ranks[0].abort();
      ranks[0].wait();
      const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
      fmt::print("abort in a replay, {} elements: ended after {:.3f} ms\n", elements, took.count());
      expect_status(ranks[0], 1, HEADRACE_COLLECTIVES_ABORTED, 2, "abort in a replay");
      expect_untouched(ranks[0], "abort in a replay");
      graphs[0].launch(ranks[0].stream());  // ends at once
      ranks[0].wait();
    }
    const Ranks ranks(gpus, 2, check_room, small_box, memory);
    ranks.run(call, random);
    (void)ranks.renew(call, random, 0, false);
    TestCall late = call;
    late.timeout_ns = 20'000'000;
    const auto begin = Clock::now();
    ranks.launch(late, 0);
    ranks[0].wait();
    const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
    fmt::print("a rank that never comes, {} elements: ended after {:.3f} ms of 20\n", elements, took.count());
    expect_status(ranks[0], 1, HEADRACE_COLLECTIVES_TIMED_OUT, 2, "a rank that never comes");
    expect_untouched(ranks[0], "a rank that never comes");
  }
}

void check(const std::vector<Gpu>& gpus, bool quick) {
  for (const unsigned count : {2u, 3u, 4u}) {
    if (quick && count == 4) continue;
    const auto begin = Clock::now();
    for (const Memory memory : {Memory::plain, Memory::registered}) {
      check_operations(gpus, count, quick, memory);
      check_types(gpus, count, quick, memory);
      if (!quick) check_large(gpus, count, memory);
      check_graphs(gpus, count, memory);
    }
    check_steps(gpus, count);
    fmt::print("{} ranks: all operations, types, reductions and graphs are right, {:.1f} s\n", count,
               std::chrono::duration<double>(Clock::now() - begin).count());
    std::fflush(stdout);
  }
  for (const Memory memory : {Memory::plain, Memory::registered}) check_early_ends(gpus, memory);
}

// ------------------------------------------------------------------ time

/// The microseconds of one operation: graphs of `operations` on each rank, released together; the slowest
/// rank.
class Timer {
 public:
  Timer(const Ranks& ranks, unsigned operations, const std::function<void(unsigned)>& record)
      : ranks_(ranks), operations_(operations) {
    for (unsigned rank = 0; rank < ranks.count(); ++rank) {
      const Gpu& gpu = ranks[rank].gpu();
      graphs_.emplace_back(gpu, ranks[rank].stream(), [&] {
        for (unsigned i = 0; i < operations; ++i) record(rank);
      });
      for (auto* const events : {&begins_, &ends_})
        events->push_back(must(gpu::Event::make(gpu.device(), gpu::Timing::on)));
    }
  }

  [[nodiscard]] double once() const {
    std::barrier together(ranks_.count());
    std::vector<double> times(ranks_.count());
    {
      std::vector<std::jthread> threads;
      for (unsigned rank = 0; rank < ranks_.count(); ++rank)
        threads.emplace_back([&, rank] {
          const gpu::ContextGuard context(*ranks_[rank].gpu().device());
          together.arrive_and_wait();
          must(begins_[rank].record(ranks_[rank].stream()));
          graphs_[rank].launch(ranks_[rank].stream());
          must(ends_[rank].record(ranks_[rank].stream()));
          ranks_[rank].wait();
          times[rank] =
              std::chrono::duration<double, std::micro>(must(ends_[rank].since(begins_[rank]))).count();
        });
    }
    return *std::ranges::max_element(times) / operations_;
  }

 private:
  const Ranks& ranks_;
  const unsigned operations_;
  std::vector<Graph> graphs_;
  std::vector<gpu::Event> begins_, ends_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// The bare kernels' memory of all ranks.
struct Bare {
  struct Boxes {
    Address of[most_ranks];
  };
  Bare(const Ranks& ranks, std::uint64_t box_bytes) {
    for (unsigned rank = 0; rank < ranks.count(); ++rank) {
      const Rank& it = ranks[rank];
      memory.push_back(must(DeviceMemory::allocate(it.gpu().device(), box_bytes)));
      counters.push_back(must(DeviceMemory::allocate(it.gpu().device(), 4096)));
      it.fill(memory.back().address(), 0, box_bytes);
      it.fill(counters.back().address(), 0, 4096);
      boxes.of[rank] = memory.back().address();
    }
  }
  std::vector<DeviceMemory> memory, counters;
  Boxes boxes{};
};

struct Settings {
  int gpus = 1;
  unsigned ranks = 4;
  std::uint32_t blocks = 0, one_shot_bytes = 0;
  headrace_collectives_box_v1 box{};
  Memory memory = Memory::plain;
  std::uint64_t least_bytes = 0, most_bytes = 64 << 20;
  bool checks = false, quick = false, times = false;
};

class Figures {
 public:
  Figures(const std::vector<Gpu>& gpus, const Settings& settings, std::string command)
      : gpus_(gpus),
        command_(std::move(command)),
        least_bytes_(settings.least_bytes),
        most_bytes_(settings.most_bytes),
        memory_(settings.memory),
        ranks_(gpus, settings.ranks, most_bytes_ + 2 * shift, settings.box, settings.memory),
        date_(std::chrono::system_clock::now()) {
    ranks_.blocks = settings.blocks;
    ranks_.one_shot_bytes = settings.one_shot_bytes;
  }

  void all() {
    for (const unsigned bytes : {1u << 10, 8u << 10, 64u << 10})
      if (is_wanted(bytes)) one_shot(bytes);
    for (const unsigned bytes :
         {128u << 10, 256u << 10, 512u << 10, 1u << 20, 2u << 20, 4u << 20, 16u << 20, 64u << 20, 256u << 20})
      if (is_wanted(bytes)) two_shot(bytes);
  }

 private:
  static constexpr std::uint64_t shift = 256;  // tensors are aligned at least so
  static constexpr int rounds = 15;

  [[nodiscard]] bool is_wanted(std::uint64_t bytes) const {
    return bytes >= least_bytes_ && bytes <= most_bytes_;
  }

  /// The best number of threads of the bare kernel, in turn with ours.
  void one_shot(unsigned bytes) {
    constexpr unsigned operations = 50;
    const TestCall call = sum_of(bytes);
    const auto inputs = ranks_.renew(call, random_, shift, false);
    const Timer ours(ranks_, operations, [&](unsigned rank) { ranks_.launch(call, rank, shift); });
    std::vector<double> mine, best;
    for (const unsigned threads : {128u, 256u, 512u}) {
      const std::uint32_t count = bytes / 8, most = bytes / 8;
      const unsigned blocks = std::min(32u, (count + threads - 1) / threads);
      const Bare bare(ranks_, std::uint64_t{2} * ranks_.count() * most * 16);
      const Timer its(ranks_, operations, [&](unsigned rank) {
        Bare::Boxes boxes = bare.boxes;
        Address input = ranks_[rank].input() + shift, output = ranks_[rank].output() + shift,
                counters = bare.counters[rank].address();
        std::uint32_t words = count, half = most, number = rank;
        void* parameters[] = {&boxes, &input, &output, &words, &half, &number, &counters};
        const Gpu& gpu = ranks_[rank].gpu();
        gpu.launch(gpu.bare(fmt::format("bare_one_shot_{}", ranks_.count())), blocks, threads, parameters,
                   ranks_[rank].stream());
      });
      best.push_back(in_turn(ours, its, mine));
    }
    ranks_.wait();
    ranks_.compare(call, inputs, shift, false);
    report(bytes, median(mine), *std::ranges::min_element(best),
           fmt::format("bare_one_shot_{}", ranks_.count()));
  }

  void two_shot(unsigned bytes) {
    const unsigned operations = bytes >= (16u << 20) ? 4 : 20;
    const TestCall call = sum_of(bytes);
    const auto inputs = ranks_.renew(call, random_, shift, false);
    const Timer ours(ranks_, operations, [&](unsigned rank) { ranks_.launch(call, rank, shift); });
    std::vector<double> mine, best;
    for (const std::uint32_t chunk : {32u << 10, 128u << 10}) {
      constexpr unsigned slots = 64, blocks = 32, threads = 512;
      const Bare bare(ranks_, std::uint64_t{2} * ranks_.count() * slots * chunk);
      const Timer its(ranks_, operations, [&](unsigned rank) {
        Bare::Boxes boxes = bare.boxes;
        Address input = ranks_[rank].input() + shift, output = ranks_[rank].output() + shift;
        std::uint64_t share = bytes / 16 / ranks_.count();
        // As ours, no longer than all blocks need.
        std::uint32_t vectors =
                          std::min(chunk / 16, static_cast<std::uint32_t>((share + blocks - 1) / blocks)),
                      of_each = slots, number = rank, all = ranks_.count();
        void* parameters[] = {&boxes, &input, &output, &share, &vectors, &of_each, &number, &all};
        const Gpu& gpu = ranks_[rank].gpu();
        gpu.launch(gpu.bare("bare_two_shot_moves"), blocks, threads, parameters, ranks_[rank].stream());
      });
      best.push_back(in_turn(ours, its, mine));
    }
    ranks_.wait();
    ranks_.compare(call, inputs, shift, false);
    report(bytes, median(mine), *std::ranges::min_element(best), "bare_two_shot_moves");
  }

  /// The median of the bare kernel's times; ours go into `mine`.
  static double in_turn(const Timer& ours, const Timer& its, std::vector<double>& mine) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      times.push_back(its.once());
      mine.push_back(ours.once());
    }
    return median(times);
  }
  [[nodiscard]] static TestCall sum_of(unsigned bytes) {
    return {.count = bytes / 2, .dtype = HEADRACE_BFLOAT16, .timeout_ns = patience_ns};
  }
  void report(unsigned bytes, double us, double bare_us, const std::string& bare) {
    const std::string about =
        fmt::format(R"("date": "{:%Y-%m-%dT%H:%M:%SZ}", "commit": "", "machine": "", "command": "{}", )"
                    R"("table": "coll-gpu{}", "case": "all_reduce/{}{}")",
                    fmt::gmtime(std::chrono::system_clock::to_time_t(date_)), command_, gpus_.size(), bytes,
                    memory_ == Memory::registered ? "/registered" : "");
    fmt::print(R"({{{}, "metric": "us", "unit": "us", "value": {:.4g}, "peer": "{}", "peer_value": {:.4g}, )"
               R"("ratio": {:.4g}, "checked": true}})"
               "\n",
               about, us, bare, bare_us, bare_us / us);
    std::fflush(stdout);
  }

  const std::vector<Gpu>& gpus_;
  const std::string command_;
  const std::uint64_t least_bytes_, most_bytes_;
  const Memory memory_;
  Ranks ranks_;
  std::mt19937 random_{std::random_device{}()};
  std::chrono::system_clock::time_point date_;
};

Settings read(int count, char** arguments) {
  Settings settings;
  int registered = 0;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    const auto number = [&](std::string_view name, auto& value) {
      if (word != name || i + 1 >= count) return false;
      value = static_cast<std::remove_reference_t<decltype(value)>>(std::stoi(arguments[++i]));
      return true;
    };
    if (word == "check")
      settings.checks = true;
    else if (word == "quick")
      settings.checks = settings.quick = true;
    else if (word == "time")
      settings.times = true;
    else if (!number("--gpus", settings.gpus) && !number("--ranks", settings.ranks) &&
             !number("--blocks", settings.blocks) && !number("--packed", settings.box.packed_bytes) &&
             !number("--chunk", settings.box.chunk_bytes) && !number("--slots", settings.box.slots) &&
             !number("--one-shot", settings.one_shot_bytes) && !number("--least", settings.least_bytes) &&
             !number("--most", settings.most_bytes) && !number("--registered", registered))
      end_with(fmt::format("{}: the arguments are at the head of bench/gpu/collectives.cpp", word));
  }
  if (registered != 0) settings.memory = Memory::registered;
  return settings;
}

}  // namespace

int main(int count, char** arguments) {
  const Settings settings = read(count, arguments);
  const auto driver = must(cuda::load_driver());
  std::vector<Gpu> gpus;
  for (int ordinal = 0; ordinal < settings.gpus; ++ordinal) gpus.emplace_back(driver, ordinal);
  for (const Gpu& gpu : gpus)
    for (const Gpu& other : gpus)
      if (&gpu != &other) gpu.reach(other);
  const gpu::ContextGuard guard(*gpus.front().device());
  if (settings.checks) check(gpus, settings.quick);
  if (settings.times) {
    std::string command = "bench_gpu_collectives";
    for (int i = 1; i < count; ++i) command += std::string(" ") + arguments[i];
    Figures(gpus, settings, command).all();
  }
  std::fflush(stdout);
  return 0;
}
