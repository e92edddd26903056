// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs, and what every backend of GPUs must do: on real GPUs, and over the fake driver.
#pragma once

#include "ranks.hpp"

#include "gpu/device.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/stream.hpp"
#include "vendor/cuda/driver.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {

/// One rank's GPU with a stream and memory of the caller. Nothing is allocated or freed before its end: the
/// driver would wait for kernels that wait for this rank.
class RankGpu {
 public:
  RankGpu(const cuda::DriverTable& driver, int ordinal, std::barrier<>& ranks)
      : ranks_(ranks),
        device_(must(gpu::Device::open(driver, ordinal))),
        stream_(must(gpu::Stream::make(device_))),
        other_(must(gpu::Stream::make(device_))),
        memory_(must(gpu::DeviceMemory::allocate(device_, room_bytes))) {}

  [[nodiscard]] OpOptions on_stream(bool async = false) const {
    OpOptions options;
    options.stream = stream_.handle();
    options.async = async;
    return options;
  }
  [[nodiscard]] cuda::Stream stream() const { return stream_.handle(); }
  [[nodiscard]] const gpu::Stream& other_stream() const { return other_; }
  [[nodiscard]] const std::shared_ptr<const gpu::Device>& device() const { return device_; }

  /// Memory to the end of this object.
  [[nodiscard]] cuda::Address take(std::size_t bytes) const {
    const std::size_t at = used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > room_bytes) std::abort();
    return memory_.address() + at;
  }
  void copy(cuda::Address target, cuda::Address source, std::size_t bytes) const {
    if (bytes == 0) return;
    const gpu::ContextGuard current(*device_);
    EXPECT_EQ(device_->driver().memcpy_async(target, source, bytes, stream_.handle()),
              cuda::Outcome::success);
  }
  void wait() const { must(stream_.wait_idle()); }
  /// Waits for all ranks of the test.
  void meet() const { ranks_.arrive_and_wait(); }

 private:
  static constexpr std::size_t room_bytes = 8 << 20;

  std::barrier<>& ranks_;
  const std::shared_ptr<const gpu::Device> device_;
  const gpu::Stream stream_, other_;
  const gpu::DeviceMemory memory_;
  mutable std::size_t used_ = 0;
};

/// Numbers in memory of a GPU. They come and go on the caller's stream.
template <class T>
class OnGpu {
 public:
  OnGpu(const RankGpu& gpu, std::vector<T> values)
      : gpu_(gpu), values_(std::move(values)), address_(gpu.take(values_.size() * sizeof(T))) {
    gpu_.copy(address_, address_of(values_), values_.size() * sizeof(T));
  }
  [[nodiscard]] Elements elements(std::size_t first = 0, std::size_t count = SIZE_MAX) const {
    const std::size_t left = std::min(count, values_.size() - first);
    return {reinterpret_cast<void*>(address_ + first * sizeof(T)), left, *dtype_of<T>};
  }
  std::vector<T> values() {
    gpu_.wait();  // a copy that waits for calls in the driver may keep other ranks from theirs
    gpu_.copy(address_of(values_), address_, values_.size() * sizeof(T));
    gpu_.wait();
    return values_;
  }

 private:
  static cuda::Address address_of(std::vector<T>& values) {
    return reinterpret_cast<cuda::Address>(values.data());
  }
  const RankGpu& gpu_;
  std::vector<T> values_;
  const cuda::Address address_;
};

/// A call in a graph.
class Captured {
 public:
  /// An all_reduce.
  Captured(Comm& comm, const RankGpu& gpu, const Elements& elements, Timeout timeout = {})
      : Captured(
            gpu, [&](const OpOptions& options) { return comm.all_reduce(elements, ReduceOp::sum, options); },
            timeout) {}
  Captured(const RankGpu& gpu, const std::function<Result<Work>(const OpOptions&)>& call,
           Timeout timeout = {})
      : gpu_(gpu) {
    const gpu::ContextGuard current(*gpu.device());
    EXPECT_EQ(driver().stream_begin_capture(gpu.stream(), cuda::CaptureMode::relaxed),
              cuda::Outcome::success);
    OpOptions options = gpu.on_stream();
    options.timeout = timeout;
    const Work work = must(call(options));
    EXPECT_EQ(work.status(), WorkStatus::completed);
    EXPECT_EQ(driver().stream_end_capture(gpu.stream(), &graph_), cuda::Outcome::success);
    EXPECT_EQ(driver().graph_instantiate(&replays_, graph_, 0), cuda::Outcome::success);
  }
  ~Captured() {
    static_cast<void>(driver().graph_exec_destroy(replays_));
    static_cast<void>(driver().graph_destroy(graph_));
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  void replay() const {
    const gpu::ContextGuard current(*gpu_.device());
    EXPECT_EQ(driver().graph_launch(replays_, gpu_.stream()), cuda::Outcome::success);
  }

 private:
  [[nodiscard]] const cuda::DriverTable& driver() const { return gpu_.device()->driver(); }
  const RankGpu& gpu_;
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec replays_ = nullptr;
};

using Numbers = std::vector<int>;

inline Numbers filled(std::size_t count, int value) { return Numbers(count, value); }

inline void reduce_all_ways(Comm& comm, const RankGpu& gpu) {
  const int rank = comm.rank(), size = comm.size(), sum = size * (size + 1) / 2;
  const auto ranks = static_cast<std::size_t>(size);
  constexpr std::size_t count = 10'000;
  OnGpu<int> one(gpu, filled(count, rank + 1)), all(gpu, filled(count * ranks, rank + 1));
  OnGpu<int> to(gpu, filled(count, 0));
  ok(comm.all_reduce(one.elements(), to.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each(sum));
  ok(comm.all_reduce(one.elements(), to.elements(), ReduceOp::max, gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each(size));
  OnGpu<float> floats(gpu, std::vector<float>(count, static_cast<float>(rank + 1)));
  ok(comm.all_reduce(floats.elements(), {ReduceOp::premul_sum, 0.5}, gpu.on_stream()));
  EXPECT_THAT(floats.values(), testing::Each(static_cast<float>(sum) / 2));
  ok(comm.reduce_scatter_single(to.elements(), all.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each(sum));
  std::vector<ConstElements> parts;
  for (std::size_t i = 0; i < ranks; ++i) parts.emplace_back(all.elements(i * count, count));
  ok(comm.reduce_scatter(to.elements(), parts, ReduceOp::min, gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each(1));
  ok(comm.reduce(one.elements(), size - 1, ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(one.values(), testing::Each(rank == size - 1 ? sum : rank + 1));
}

inline Numbers each_rank(int size, std::size_t count) {
  Numbers all;
  for (int rank = 0; rank < size; ++rank) all.insert(all.end(), count, rank);
  return all;
}

inline void move_all_ways(Comm& comm, const RankGpu& gpu) {
  const int rank = comm.rank(), size = comm.size();
  const auto ranks = static_cast<std::size_t>(size);
  constexpr std::size_t count = 1'000;
  OnGpu<int> one(gpu, filled(count, rank)), to(gpu, filled(count, -1)), all(gpu, filled(count * ranks, -1));
  ok(comm.all_gather_single(all.elements(), one.elements(), gpu.on_stream()));
  EXPECT_EQ(all.values(), each_rank(size, count));
  OnGpu<int> lists(gpu, filled(count * ranks, -1));
  std::vector<Elements> outputs;
  std::vector<ConstElements> inputs;
  for (std::size_t i = 0; i < ranks; ++i) {
    outputs.push_back(lists.elements(i * count, count));
    inputs.emplace_back(all.elements(i * count, count));
  }
  ok(comm.all_gather(outputs, one.elements(), gpu.on_stream()));
  EXPECT_EQ(lists.values(), each_rank(size, count));
  ok(comm.all_to_all(outputs, inputs, gpu.on_stream()));
  EXPECT_THAT(lists.values(), testing::Each(rank));
  ok(comm.all_to_all_single(lists.elements(), all.elements(), gpu.on_stream()));
  EXPECT_THAT(lists.values(), testing::Each(rank));
  const std::vector<std::size_t> splits(ranks, count);
  ok(comm.all_to_all_v_single(lists.elements(), all.elements(), splits, splits, gpu.on_stream()));
  EXPECT_THAT(lists.values(), testing::Each(rank));
  ok(comm.scatter(to.elements(), rank == 0 ? inputs : std::vector<ConstElements>(), 0, gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each(rank));
  ok(comm.gather_single(lists.elements(), one.elements(), 0, gpu.on_stream()));
  ok(comm.gather(rank == 0 ? outputs : std::vector<Elements>(), one.elements(), 0, gpu.on_stream()));
  EXPECT_EQ(lists.values(), rank == 0 ? each_rank(size, count) : filled(count * ranks, rank));
  ok(comm.broadcast(to.elements(), size - 1, gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each(size - 1));
  ok(comm.barrier(gpu.on_stream()));
}

/// Splits in memory of the GPU, which the operation before brings.
inline void split_on_gpu(Comm& comm, const RankGpu& gpu) {
  const int rank = comm.rank(), size = comm.size();
  // None, few, or more than a chunk.
  const auto given = [](int from, int to) { return static_cast<std::size_t>((from * 3 + to) % 4) * 20'000; };
  std::vector<std::int64_t> gives;
  Numbers input, expected;
  for (int other = 0; other < size; ++other) {
    gives.push_back(static_cast<std::int64_t>(given(rank, other)));
    input.insert(input.end(), given(rank, other), rank * size + other);
    expected.insert(expected.end(), given(other, rank), other * size + rank);
  }
  expected.insert(expected.end(), 3, -1);  // what lies behind is left
  OnGpu<std::int64_t> give(gpu, gives), get(gpu, std::vector<std::int64_t>(gives.size(), -1));
  OnGpu<int> from(gpu, input), to(gpu, filled(expected.size(), -1));
  const Work told = must(comm.all_to_all_single(get.elements(), give.elements(), gpu.on_stream(true)));
  const Work moved = must(comm.device_all_to_all_v_single(to.elements(), from.elements(), get.elements(),
                                                          give.elements(), gpu.on_stream(true)));
  must(told.wait());
  must(moved.wait());
  EXPECT_EQ(to.values(), expected);
}

inline void send_around(Comm& comm, const RankGpu& gpu) {
  const int rank = comm.rank(), size = comm.size();
  if (size == 1) return;
  OnGpu<int> one(gpu, filled(1'000, rank)), to(gpu, filled(1'000, -1));
  Batch batch = comm.batch();
  must(batch.send(one.elements(), (rank + 1) % size));
  must(batch.recv(to.elements(), (rank + size - 1) % size));
  ok(batch.issue(gpu.on_stream()));
  EXPECT_THAT(to.values(), testing::Each((rank + size - 1) % size));
}

inline void overlap(Comm& comm, const RankGpu& gpu) {
  OnGpu<int> numbers(gpu, filled(1'000, 1));
  const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream(true)));
  must(work.wait_on(gpu.other_stream().handle()));
  must(work.wait_on(gpu.stream()));
  EXPECT_THAT(numbers.values(), testing::Each(comm.size()));
  must(gpu.other_stream().wait_idle());
  must(work.wait(std::chrono::seconds(10)));
}

/// A captured call, replayed twice.
inline void capture(Comm& comm, const RankGpu& gpu) {
  OnGpu<int> numbers(gpu, filled(1'000, 1));
  ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));  // connects outside of the capture
  const cuda::DriverTable& driver = gpu.device()->driver();
  const gpu::ContextGuard current(*gpu.device());
  gpu.wait();
  ASSERT_EQ(driver.stream_begin_capture(gpu.stream(), cuda::CaptureMode::relaxed), cuda::Outcome::success);
  ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream(true)));
  cuda::Graph graph = nullptr;
  ASSERT_EQ(driver.stream_end_capture(gpu.stream(), &graph), cuda::Outcome::success);
  cuda::GraphExec replays = nullptr;
  ASSERT_EQ(driver.graph_instantiate(&replays, graph, 0), cuda::Outcome::success);
  gpu.meet();  // no rank makes a graph while another one's runs
  for (int i = 0; i < 2; ++i) EXPECT_EQ(driver.graph_launch(replays, gpu.stream()), cuda::Outcome::success);
  EXPECT_THAT(numbers.values(), testing::Each(comm.size() * comm.size() * comm.size()));
  gpu.meet();
  static_cast<void>(driver.graph_exec_destroy(replays));
  static_cast<void>(driver.graph_destroy(graph));
}

/// A captured all_gather of some rounds, replayed with new elements.
inline void gather_in_replays(Comm& comm, const RankGpu& gpu) {
  constexpr std::size_t count = 20'000;
  const auto ranks = static_cast<std::size_t>(comm.size());
  OnGpu<int> one(gpu, filled(count, -1)), all(gpu, filled(count * ranks, -1)), first(gpu, filled(count, 7)),
      second(gpu, filled(count, 8));
  const cuda::DriverTable& driver = gpu.device()->driver();
  const gpu::ContextGuard current(*gpu.device());
  gpu.wait();
  ASSERT_EQ(driver.stream_begin_capture(gpu.stream(), cuda::CaptureMode::relaxed), cuda::Outcome::success);
  ok(comm.all_gather_single(all.elements(), one.elements(), gpu.on_stream()));
  cuda::Graph graph = nullptr;
  ASSERT_EQ(driver.stream_end_capture(gpu.stream(), &graph), cuda::Outcome::success);
  cuda::GraphExec replays = nullptr;
  ASSERT_EQ(driver.graph_instantiate(&replays, graph, 0), cuda::Outcome::success);
  gpu.meet();
  for (const auto& [given, value] : {std::pair{&first, 7}, std::pair{&second, 8}}) {
    gpu.copy(reinterpret_cast<cuda::Address>(one.elements().data),
             reinterpret_cast<cuda::Address>(given->elements().data), count * sizeof(int));
    EXPECT_EQ(driver.graph_launch(replays, gpu.stream()), cuda::Outcome::success);
    EXPECT_THAT(all.values(), testing::Each(value));
  }
  gpu.meet();
  static_cast<void>(driver.graph_exec_destroy(replays));
  static_cast<void>(driver.graph_destroy(graph));
}

/// A replay beside a call of the same rank, on streams of which none waits for the other. The last rank does
/// not come, so the first of the two waits when the second begins.
inline void run_beside_itself(Comm& comm, const RankGpu& gpu, bool replay_first) {
  const cuda::DriverTable& driver = gpu.device()->driver();
  OnGpu<int> numbers(gpu, filled(100, 1));
  cuda::Graph graph = nullptr;
  cuda::GraphExec replays = nullptr;
  {
    const gpu::ContextGuard current(*gpu.device());
    gpu.wait();
    ASSERT_EQ(driver.stream_begin_capture(gpu.stream(), cuda::CaptureMode::relaxed), cuda::Outcome::success);
    ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    ASSERT_EQ(driver.stream_end_capture(gpu.stream(), &graph), cuda::Outcome::success);
    ASSERT_EQ(driver.graph_instantiate(&replays, graph, 0), cuda::Outcome::success);
  }
  gpu.meet();
  if (comm.rank() != comm.size() - 1) {
    const gpu::ContextGuard current(*gpu.device());
    if (replay_first) {
      EXPECT_EQ(driver.graph_launch(replays, gpu.stream()), cuda::Outcome::success);
    }
    OpOptions options;
    options.stream = gpu.other_stream().handle();
    options.timeout = std::chrono::seconds(20);
    const auto work = comm.barrier(options);
    if (!replay_first) {
      EXPECT_EQ(driver.graph_launch(replays, gpu.stream()), cuda::Outcome::success);
    }
    const Result<void> refused = work ? work->wait() : work.error();
    EXPECT_FALSE(refused.ok());
    if (!refused.ok()) {
      EXPECT_THAT(refused.error().message, testing::HasSubstr("order the streams of replays and of calls"));
    }
    gpu.wait();
  }
  gpu.meet();
  static_cast<void>(driver.graph_exec_destroy(replays));
  static_cast<void>(driver.graph_destroy(graph));
}

inline void split_backwards(Comm& comm, const RankGpu& gpu) {
  OnGpu<int> numbers(gpu, filled(100, 1));
  std::vector<int> backwards(static_cast<std::size_t>(comm.size()));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  auto part = must(comm.split(backwards, "backwards"));
  ASSERT_TRUE(part);
  EXPECT_EQ(part->rank(), comm.size() - 1 - comm.rank());
  ok(part->all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(numbers.values(), testing::Each(comm.size()));
  must(part->finalize());
}

/// The last rank does not call: the others' call is late, and they go on without it.
inline void lose_a_rank(Comm& comm, const RankGpu& gpu) {
  const int last = comm.size() - 1;
  if (comm.rank() == last) return comm.abort("it dies");
  OnGpu<int> numbers(gpu, filled(100, 1));
  OpOptions options = gpu.on_stream();
  options.timeout = std::chrono::milliseconds(500);
  EXPECT_EQ(must(comm.all_reduce(numbers.elements(), ReduceOp::sum, options)).wait().code(), Code::timed_out);
  auto shrunk = comm.shrink(std::array{last});
  if (shrunk.code() == Code::not_supported) {  // an older NCCL
    EXPECT_THAT(shrunk.error().message, testing::HasSubstr("ncclCommRevoke"));
    return;
  }
  Comm left = must(std::move(shrunk));
  EXPECT_EQ(left.size(), last);
  OnGpu<int> others(gpu, filled(100, 1));
  ok(left.all_reduce(others.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(others.values(), testing::Each(last));
  must(left.finalize());
}

/// The last rank aborts while the others are in a call; they go on without it.
inline void abort_one_rank(Comm& comm, const RankGpu& gpu) {
  const int last = comm.size() - 1;
  gpu.meet();
  if (comm.rank() == last) {
    gpu.meet();
    return comm.abort("it dies");
  }
  OnGpu<int> numbers(gpu, filled(100, 1));
  const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
  gpu.meet();
  EXPECT_EQ(work.wait().code(), Code::canceled);
  EXPECT_THAT(work.error().message, testing::HasSubstr("it dies"));
  Comm left = must(comm.shrink(std::array{last}));
  OnGpu<int> others(gpu, filled(100, 1));
  ok(left.all_reduce(others.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(others.values(), testing::Each(last));
  must(left.finalize());
}

/// The last rank does not call: the others hear for whom they have waited.
inline void wait_in_vain(Comm& comm, const RankGpu& gpu) {
  const int last = comm.size() - 1;
  if (comm.rank() != last) {
    OnGpu<int> numbers(gpu, filled(100, 1));
    OpOptions options = gpu.on_stream();
    options.timeout = std::chrono::milliseconds(200);
    const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, options));
    EXPECT_FALSE(work.wait().ok());
    // One rank is the first that is late, and tells the others.
    EXPECT_THAT(work.error().message, testing::AllOf(testing::HasSubstr("within 200 ms: "),
                                                     testing::HasSubstr("rank " + std::to_string(last) +
                                                                        " has not come: it has begun")));
  }
  gpu.meet();
}

/// Ranks as threads on the GPUs of this machine, which they share if there are more ranks than GPUs.
template <class Body>
void with_real_gpus(const char* backend, int size, int gpus, const Body& body,
                    const std::map<std::string, std::string>& hints = {}) {
  const std::string name = unique_comm_name();
  std::barrier<> ranks(size);
  on_threads(size, [&](int rank) {
    CommOptions options = rank_options(rank, size, name);
    options.backend = backend;
    options.device = "cuda:" + std::to_string(rank % gpus);
    options.hints = hints;
    const RankGpu gpu(must(cuda::load_driver()), rank % gpus, ranks);
    Comm comm = must(Comm::open(options));
    gpu.meet();
    body(comm, gpu);
  });
}

}  // namespace headrace::test
