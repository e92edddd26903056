// SPDX-License-Identifier: Apache-2.0
// Communicators over the installed NCCL, on GPUs. With one GPU: one rank, and several where NCCL allows them
// (since 2.30, with NCCL_MULTI_RANK_GPU_ENABLE=1).
#include "ranks.hpp"

#include "base/options.hpp"
#include "gpu/device.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/gpus.hpp"
#include "gpu/stream.hpp"
#include "vendor/cuda/driver.hpp"
#include "vendor/nccl/library.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using testing::Each;
using testing::ElementsAre;

/// One rank's GPU with a stream of the caller.
class RankGpu {
 public:
  explicit RankGpu(int ordinal)
      : device_(must(gpu::Device::open(must(cuda::load_driver()), ordinal))),
        stream_(must(gpu::Stream::make(device_))) {}

  [[nodiscard]] OpOptions on_stream(bool async = false) const {
    OpOptions options;
    options.stream = stream_.handle();
    options.async = async;
    return options;
  }
  [[nodiscard]] cuda::Stream stream() const { return stream_.handle(); }
  [[nodiscard]] const std::shared_ptr<const gpu::Device>& device() const { return device_; }

  void copy(cuda::Address target, cuda::Address source, std::size_t bytes) const {
    const gpu::ContextGuard current(*device_);
    EXPECT_EQ(device_->driver().memcpy_async(target, source, bytes, stream_.handle()),
              cuda::Outcome::success);
  }
  void wait() const { must(stream_.wait_idle()); }

 private:
  const std::shared_ptr<const gpu::Device> device_;
  const gpu::Stream stream_;
};

/// Numbers in memory of a GPU. They come and go on the caller's stream.
template <class T>
class OnGpu {
 public:
  OnGpu(const RankGpu& gpu, std::vector<T> values)
      : gpu_(gpu),
        values_(std::move(values)),
        memory_(must(gpu::DeviceMemory::allocate(gpu.device(),
                                                 std::max<std::size_t>(values_.size(), 1) * sizeof(T)))) {
    gpu_.copy(memory_.address(), address_of(values_), values_.size() * sizeof(T));
  }
  [[nodiscard]] Elements elements(std::size_t first = 0, std::size_t count = SIZE_MAX) const {
    const std::size_t left = std::min(count, values_.size() - first);
    return {reinterpret_cast<void*>(memory_.address() + first * sizeof(T)), left, *dtype_of<T>};
  }
  std::vector<T> values() {
    gpu_.copy(address_of(values_), memory_.address(), values_.size() * sizeof(T));
    gpu_.wait();
    return values_;
  }

 private:
  static cuda::Address address_of(std::vector<T>& values) {
    return reinterpret_cast<cuda::Address>(values.data());
  }
  const RankGpu& gpu_;
  std::vector<T> values_;
  gpu::DeviceMemory memory_;
};

using Numbers = std::vector<int>;

Numbers filled(std::size_t count, int value) { return Numbers(count, value); }

void reduce_all_ways(Comm& comm, const RankGpu& gpu) {
  const int rank = comm.rank(), size = comm.size(), sum = size * (size + 1) / 2;
  const auto ranks = static_cast<std::size_t>(size);
  constexpr std::size_t count = 10'000;
  OnGpu<int> one(gpu, filled(count, rank + 1)), all(gpu, filled(count * ranks, rank + 1));
  OnGpu<int> to(gpu, filled(count, 0));
  ok(comm.all_reduce(one.elements(), to.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(to.values(), Each(sum));
  ok(comm.all_reduce(one.elements(), to.elements(), ReduceOp::max, gpu.on_stream()));
  EXPECT_THAT(to.values(), Each(size));
  OnGpu<float> floats(gpu, std::vector<float>(count, static_cast<float>(rank + 1)));
  ok(comm.all_reduce(floats.elements(), {ReduceOp::premul_sum, 0.5}, gpu.on_stream()));
  EXPECT_THAT(floats.values(), Each(static_cast<float>(sum) / 2));
  ok(comm.reduce_scatter_single(to.elements(), all.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(to.values(), Each(sum));
  std::vector<ConstElements> parts;
  for (std::size_t i = 0; i < ranks; ++i) parts.emplace_back(all.elements(i * count, count));
  ok(comm.reduce_scatter(to.elements(), parts, ReduceOp::min, gpu.on_stream()));
  EXPECT_THAT(to.values(), Each(1));
  ok(comm.reduce(one.elements(), size - 1, ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(one.values(), Each(rank == size - 1 ? sum : rank + 1));
}

Numbers each_rank(int size, std::size_t count) {
  Numbers all;
  for (int rank = 0; rank < size; ++rank) all.insert(all.end(), count, rank);
  return all;
}

void move_all_ways(Comm& comm, const RankGpu& gpu) {
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
  EXPECT_THAT(lists.values(), Each(rank));
  ok(comm.all_to_all_single(lists.elements(), all.elements(), gpu.on_stream()));
  EXPECT_THAT(lists.values(), Each(rank));
  const std::vector<std::size_t> splits(ranks, count);
  ok(comm.all_to_all_v_single(lists.elements(), all.elements(), splits, splits, gpu.on_stream()));
  EXPECT_THAT(lists.values(), Each(rank));
  ok(comm.scatter(to.elements(), rank == 0 ? inputs : std::vector<ConstElements>(), 0, gpu.on_stream()));
  EXPECT_THAT(to.values(), Each(rank));
  ok(comm.gather_single(lists.elements(), one.elements(), 0, gpu.on_stream()));
  ok(comm.gather(rank == 0 ? outputs : std::vector<Elements>(), one.elements(), 0, gpu.on_stream()));
  EXPECT_EQ(lists.values(), rank == 0 ? each_rank(size, count) : filled(count * ranks, rank));
  ok(comm.broadcast(to.elements(), size - 1, gpu.on_stream()));
  EXPECT_THAT(to.values(), Each(size - 1));
  ok(comm.barrier(gpu.on_stream()));
  if (size == 1) return;
  Batch batch = comm.batch();
  must(batch.send(one.elements(), (rank + 1) % size));
  must(batch.recv(to.elements(), (rank + size - 1) % size));
  ok(batch.issue(gpu.on_stream()));
  EXPECT_THAT(to.values(), Each((rank + size - 1) % size));
}

void overlap(Comm& comm, const RankGpu& gpu) {
  const gpu::Stream other = must(gpu::Stream::make(gpu.device()));
  OnGpu<int> numbers(gpu, filled(1'000, 1));
  const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream(true)));
  must(work.wait_on(other.handle()));
  must(work.wait_on(gpu.stream()));
  EXPECT_THAT(numbers.values(), Each(comm.size()));
  must(other.wait_idle());
  must(work.wait(std::chrono::seconds(10)));
}

/// A captured call, replayed twice.
void capture(Comm& comm, const RankGpu& gpu) {
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
  for (int i = 0; i < 2; ++i) EXPECT_EQ(driver.graph_launch(replays, gpu.stream()), cuda::Outcome::success);
  EXPECT_THAT(numbers.values(), Each(comm.size() * comm.size() * comm.size()));
  static_cast<void>(driver.graph_exec_destroy(replays));
  static_cast<void>(driver.graph_destroy(graph));
}

void split_and_shrink(Comm& comm, const RankGpu& gpu) {
  OnGpu<int> numbers(gpu, filled(100, 1));
  std::vector<int> backwards(static_cast<std::size_t>(comm.size()));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  auto part = must(comm.split(backwards, "backwards"));
  ASSERT_TRUE(part);
  EXPECT_EQ(part->rank(), comm.size() - 1 - comm.rank());
  ok(part->all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(numbers.values(), Each(comm.size()));
  must(part->finalize());
}

/// The last rank does not call: the others' call is late, and they go on without it.
void lose_a_rank(Comm& comm, const RankGpu& gpu) {
  const int last = comm.size() - 1;
  if (comm.rank() == last) return comm.abort("it dies");
  OnGpu<int> numbers(gpu, filled(100, 1));
  OpOptions options = gpu.on_stream();
  options.timeout = std::chrono::milliseconds(500);
  EXPECT_EQ(must(comm.all_reduce(numbers.elements(), ReduceOp::sum, options)).wait().code(), Code::timed_out);
  Comm left = must(comm.shrink(std::array{last}));
  EXPECT_EQ(left.size(), last);
  OnGpu<int> others(gpu, filled(100, 1));
  ok(left.all_reduce(others.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(others.values(), Each(last));
  must(left.finalize());
}

class CommOnNcclGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::is_in_sight()) GTEST_SKIP() << "this machine has no GPU";
    const auto loaded =
        nccl::load_library(nccl::flavours[0], environment_variable("HEADRACE_NCCL_LIBRARY").value_or(""));
    if (!loaded) GTEST_SKIP() << "NCCL is not installed";
    version_ = loaded->version;
  }
  /// Runs all of the above. `gpus`: on how many; ranks share them.
  static void run(int size, int gpus) {
    const std::string name = unique_comm_name();
    on_threads(size, [&](int rank) {
      const int ordinal = rank % gpus;
      CommOptions options = rank_options(rank, size, name);
      options.backend = "nccl";
      options.device = "cuda:" + std::to_string(ordinal);
      options.hints.clear();
      Comm comm = must(Comm::open(options));
      const RankGpu gpu(ordinal);
      reduce_all_ways(comm, gpu);
      move_all_ways(comm, gpu);
      overlap(comm, gpu);
      capture(comm, gpu);
      split_and_shrink(comm, gpu);
      if (size > 1)
        lose_a_rank(comm, gpu);
      else
        must(comm.finalize());
    });
  }
  int version_ = 0;
};

using CommOnNcclGpus_gpu1 = CommOnNcclGpus;

TEST_F(CommOnNcclGpus_gpu1, one_rank_does_all) { run(1, 1); }

TEST_F(CommOnNcclGpus_gpu1, several_ranks_share_a_gpu_where_nccl_allows_it) {
  const bool allowed = environment_variable("NCCL_MULTI_RANK_GPU_ENABLE").value_or("0") == "1";
  if (version_ < 23000 || !allowed) GTEST_SKIP() << "NCCL allows one rank on a GPU";
  run(2, 1);
}

using CommOnNcclGpus_gpu2 = CommOnNcclGpus;

TEST_F(CommOnNcclGpus_gpu2, ranks_on_two_gpus_do_all) {
  if (must(gpu::list_devices(must(cuda::load_driver()))).size() < 2)
    GTEST_SKIP() << "this machine has fewer than two GPUs";
  run(2, 2);
}

}  // namespace
}  // namespace headrace::test
