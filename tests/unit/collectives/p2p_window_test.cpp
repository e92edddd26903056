// SPDX-License-Identifier: Apache-2.0
// Windows over p2p: by the CPU references of the kernels on fake GPUs.
#include "fake_p2p.hpp"
#include "gpu_windows.hpp"

#include "support/plugin_gpu.hpp"

#include <headrace/device/window.cuh>

#include <gmock/gmock.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using testing::HasSubstr;

/// Ranks on GPUs, which they share if there are more ranks than GPUs.
void with_window_ranks(int size, int gpus, const std::function<void(Comm&, const RankGpu&)>& body) {
  const std::string name = unique_comm_name();
  std::barrier<> ranks(size);
  on_threads(size, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank % gpus, ranks);
    CommOptions options = rank_options(rank, size, name);
    options.backend = fake_p2p();
    options.device = "cuda:" + std::to_string(rank % gpus);
    options.hints.clear();
    Comm comm = must(Comm::open(options));
    body(comm, gpu);
  });
}

struct WindowRanks {
  const char* name;
  int size, gpus;
};
class WindowOnP2p : public testing::TestWithParam<WindowRanks> {
 protected:
  static void run(const std::function<void(Comm&, const RankGpu&)>& body) {
    with_window_ranks(GetParam().size, GetParam().gpus, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, WindowOnP2p,
                         testing::Values(WindowRanks{"one", 1, 1}, WindowRanks{"two", 2, 3},
                                         WindowRanks{"three", 3, 3}, WindowRanks{"three_of_one_gpu", 3, 1}),
                         [](const auto& one) { return one.param.name; });

TEST_P(WindowOnP2p, does_all) {
  run([](Comm& comm, const RankGpu& gpu) {
    use_windows(comm, gpu);
    OnGpu<int> numbers(gpu, filled(100, 1));
    ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    EXPECT_THAT(numbers.values(), testing::Each(comm.size()));
    must(comm.finalize());
  });
}

TEST_P(WindowOnP2p, an_abort_ends_a_wait_with_its_reason) {
  if (GetParam().size > 1) run(abort_while_others_wait);
}

TEST(WindowsOnP2p, a_rank_that_left_is_named_and_the_others_go_on) {
  with_window_ranks(3, 3, [](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    must(window.allocate(8, DType::int32));
    OnGpu<int> numbers(gpu, filled(8, comm.rank()));
    gpu.meet();
    if (comm.rank() == 2) {
      must(comm.finalize());
      gpu.meet();
      return;
    }
    const auto waited = window.wait_signal(2);
    EXPECT_EQ(waited.code(), Code::peer_lost);
    EXPECT_THAT(waited.error().message, HasSubstr("rank 2 is gone: it has left"));
    EXPECT_EQ(window.put(numbers.elements(), 2, 0, window_options(gpu)).code(), Code::peer_lost);
    const int other = 1 - comm.rank();
    ok(window.put(numbers.elements(), other, 0, window_options(gpu)));
    ok(window.signal(other, {}, window_options(gpu)));
    must(window.wait_signal(other));
    EXPECT_THAT(read_from<int>(gpu, must(window.tensor())), testing::Each(other));
    gpu.meet();
  });
}

TEST(WindowsOnP2p, a_wait_of_another_thread_ends_when_the_window_is_deregistered) {
  with_window_ranks(2, 2, [](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    must(window.allocate(8, DType::int32));
    Result<std::uint64_t> waited = 0;
    {
      const std::jthread waiter([&] { waited = window.wait_signal(1 - comm.rank()); });
      // It may not have begun yet: then there is no window.
      must(window.tensor_deregister());
    }
    if (!waited.ok())
      EXPECT_THAT(waited.error().message, testing::AnyOf(HasSubstr("deregistered"), HasSubstr("no memory")));
    gpu.meet();
  });
}

TEST(WindowsOnP2p, ranks_that_register_other_types_are_all_told) {
  with_window_ranks(2, 2, [](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    const auto refused = window.allocate(8, comm.rank() == 0 ? DType::int32 : DType::float32);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("rank 1 registers float32, rank 0 int32"));
    must(window.allocate(8, DType::int32));
    must(window.tensor_deregister());
    gpu.meet();
  });
}

TEST(WindowsOnP2p, the_owner_of_registered_memory_is_kept_until_it_is_deregistered) {
  with_window_ranks(2, 2, [](Comm& comm, const RankGpu& gpu) {
    auto owner = std::make_shared<int>(0);
    const std::weak_ptr<int> watch = owner;
    OnGpu<int> numbers(gpu, filled(8, 0));
    {
      Window dropped = must(comm.new_window());
      must(dropped.tensor_register(numbers.elements(), owner));
    }
    EXPECT_EQ(owner.use_count(), 2);  // a window that is dropped stays registered
    OnGpu<int> others(gpu, filled(8, 0));
    Window window = must(comm.new_window());
    must(window.tensor_register(others.elements(), std::move(owner)));
    must(window.tensor_deregister());
    EXPECT_EQ(watch.use_count(), 1);
    gpu.meet();
    must(comm.finalize());
    EXPECT_TRUE(watch.expired());
  });
}

/// Fake GPUs have memory of the host, so the rank's thread does what a kernel would.
TEST(WindowsOnP2p, the_handle_for_kernels_reaches_all_ranks_and_knows_of_an_abort) {
  using device::Scope;
  with_window_ranks(3, 3, [](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    const Elements mine = must(window.allocate(100, DType::uint8));
    const device::Window kernel(must(window.get_device_window()));
    const auto rank = static_cast<unsigned>(comm.rank()), next = (rank + 1) % 3, previous = (rank + 2) % 3;
    EXPECT_EQ(kernel.rank(), rank);
    EXPECT_EQ(kernel.size(), 3U);
    EXPECT_EQ(kernel.peer_address(rank), mine.data);
    EXPECT_EQ(kernel.peer_bytes(next), 100U);
    const std::vector<unsigned char> sent(33, static_cast<unsigned char>(rank + 1));
    EXPECT_TRUE(kernel.put<Scope::thread>(next, 7, sent.data(), sent.size()));
    kernel.signal<Scope::thread>(next, 2, 1);
    EXPECT_TRUE(kernel.wait_signal<Scope::thread>(previous, 2, device::Comparison::eq, 1));
    EXPECT_THAT(read_from<unsigned char>(gpu, part_of<unsigned char>(mine, 7, 33)),
                testing::Each(previous + 1));
    EXPECT_TRUE(kernel.barrier<Scope::thread>(0));
    gpu.meet();
    if (rank == 2) comm.abort("it dies");
    EXPECT_FALSE(kernel.wait_signal<Scope::thread>(previous, 2, device::Comparison::ge, 2));
    gpu.meet();
  });
}

}  // namespace
}  // namespace headrace::test
