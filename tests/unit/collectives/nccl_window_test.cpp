// SPDX-License-Identifier: Apache-2.0
// Windows over NCCL, on a fake library and a fake GPU.
#include "fake_nccl_backends.hpp"
#include "gpu_windows.hpp"

#include "gpu/shareable_memory.hpp"
#include "nccl/windows.hpp"

#include <gmock/gmock.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace headrace::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

struct NcclWindowRanks {
  const char* name;
  int size;
  const char* blocking;
};

class WindowOnNccl : public testing::TestWithParam<NcclWindowRanks> {
 protected:
  WindowOnNccl() { current_gpu = &gpu_; }

  void run(const std::function<void(Comm&, const RankGpu&)>& body, int size = 0,
           const std::string& backend = "nccl_newest") const {
    static_cast<void>(library_of(backend));
    const std::string name = unique_comm_name();
    const auto driver = cuda::bind_driver(cuda::FakeCuda::lookup());
    if (size == 0) size = GetParam().size;
    std::barrier<> ranks(size);
    on_threads(size, [&](int rank) {
      const RankGpu gpu(must(driver), rank, ranks);
      CommOptions options = rank_options(rank, size, name);
      options.backend = backend;
      options.device = "cuda:" + std::to_string(rank);
      options.hints = {{"blocking", GetParam().blocking}};
      Comm comm = must(Comm::open(options));
      body(comm, gpu);
    });
  }

  cuda::FakeCuda gpu_{3};  // one for each rank
};
INSTANTIATE_TEST_SUITE_P(Ways, WindowOnNccl,
                         testing::Values(NcclWindowRanks{"one", 1, "1"}, NcclWindowRanks{"two", 2, "1"},
                                         NcclWindowRanks{"three", 3, "1"},
                                         NcclWindowRanks{"three_that_go_on", 3, "0"}),
                         [](const auto& one) { return one.param.name; });

TEST_P(WindowOnNccl, puts_signals_and_maps) {
  run([](Comm& comm, const RankGpu& gpu) {
    put_signal_and_map(comm, gpu);
    must(comm.finalize());
  });
}

TEST_P(WindowOnNccl, signals_add_and_waits_compare_without_a_change) {
  run([](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    must(window.allocate(8, DType::int32));
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    ok(window.signal(next, {Signal::Kind::add, 40}, window_options(gpu)));
    EXPECT_EQ(must(window.wait_signal(previous, {Comparison::eq, 40})), 40U);
    gpu.meet();
    ok(window.signal(next, {Signal::Kind::add, 2}, window_options(gpu)));
    EXPECT_EQ(must(window.wait_signal(previous, {Comparison::gt, 41})), 42U);
    EXPECT_EQ(must(window.wait_signal(previous)), 42U);
    EXPECT_EQ(must(window.wait_signal(previous, {Comparison::le, 41})), 41U);
    const auto set = window.signal(next, {Signal::Kind::set, 0}, window_options(gpu));
    EXPECT_EQ(set.code(), Code::not_supported);
    EXPECT_THAT(set.error().message, HasSubstr("over NCCL a signal adds and does not set"));
    const auto added = window.atomic_add(next, 0, 1);
    EXPECT_EQ(added.code(), Code::not_supported);
    EXPECT_THAT(added.error().message, HasSubstr("NCCL has no atomic_add of windows: use backend p2p"));
    must(window.tensor_deregister());
  });
}

TEST_P(WindowOnNccl, a_wait_that_is_late_ends_nothing_else) {
  run([](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    must(window.allocate(8, DType::int32));
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    ok(window.signal(next, {Signal::Kind::add, 2}, window_options(gpu)));
    must(window.wait_signal(previous, {Comparison::eq, 2}));
    const auto late = window.wait_signal(previous, {Comparison::ge, 3}, milliseconds(50));
    EXPECT_EQ(late.code(), Code::timed_out);
    EXPECT_THAT(late.error().message, HasSubstr("the signal of rank " + std::to_string(previous) +
                                                " is 2, and >= 3 was awaited for 50 ms"));
    EXPECT_EQ(must(window.wait_signal(previous)), 2U);
    ok(comm.barrier(gpu.on_stream()));
    must(window.tensor_deregister());
  });
}

TEST_P(WindowOnNccl, an_abort_ends_a_wait_with_its_reason) {
  if (GetParam().size == 1) return;
  run([](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    must(window.allocate(8, DType::int32));
    gpu.meet();
    const std::jthread aborting([&] { comm.abort("it dies"); });
    const auto waited = window.wait_signal(0);
    EXPECT_EQ(waited.code(), Code::canceled);
    EXPECT_THAT(waited.error().message, HasSubstr("it dies"));
  });
}

TEST_P(WindowOnNccl, registers_memory_of_the_caller_beside_another_window) {
  run([](Comm& comm, const RankGpu& gpu) {
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    const std::size_t count = comm.rank() == 0 ? 5 : 7;
    const auto memory = must(gpu::ShareableMemory::allocate(gpu.device(), 4096));
    const Elements mine{reinterpret_cast<void*>(memory.address()), count, DType::int64};
    Window first = must(comm.new_window()), second = must(comm.new_window());
    must(first.allocate(0, DType::int32));
    must(second.tensor_register(mine));
    EXPECT_EQ(must(second.get_attr(0)).count, 5U);
    OnGpu<std::int64_t> sent(gpu, {comm.rank() + 1});
    ok(second.put(sent.elements(), next, 4, window_options(gpu)));
    ok(second.signal(next, {}, window_options(gpu)));
    EXPECT_EQ(must(second.wait_signal(previous)), 1U);
    EXPECT_THAT(read_from<std::int64_t>(gpu, mine), testing::Contains(previous + 1));
    EXPECT_EQ(first.wait_signal(previous, milliseconds(1)).code(), Code::timed_out);
    must(second.tensor_deregister());
    must(first.tensor_deregister());
  });
}

TEST_P(WindowOnNccl, bytes_that_the_library_does_not_know_go_in_several_puts) {
  run([](Comm& comm, const RankGpu& gpu) {
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    constexpr std::size_t count = (5 << 20) / sizeof(int);
    Window window = must(comm.new_window());
    const Elements mine = must(window.allocate(count, DType::int32));
    OnGpu<int> sent(gpu, filled(count, comm.rank() + 1));
    ok(window.put(sent.elements(), next, 0, window_options(gpu, true)));
    ok(window.signal(next, {}, window_options(gpu, true)));
    must(window.wait_signal(previous));
    EXPECT_THAT(read_from<int>(gpu, mine), testing::Each(previous + 1));
    // Its own elements it knows: one put more.
    gpu.meet();
    const int before = library_of("nccl_newest").calls("ncclPutSignal");
    gpu.meet();
    ok(window.put(part_of<int>(mine, 1, 2), next, 7, window_options(gpu)));
    gpu.meet();
    EXPECT_EQ(library_of("nccl_newest").calls("ncclPutSignal"), before + comm.size());
    must(window.tensor_deregister());
  });
}

TEST_P(WindowOnNccl, closing_waits_for_what_the_others_have_put) {
  run([](Comm& comm, const RankGpu& gpu) {
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    const auto memory = must(gpu::ShareableMemory::allocate(gpu.device(), 4096));
    const Elements mine{reinterpret_cast<void*>(memory.address()), 8, DType::int32};
    Window window = must(comm.new_window());
    must(window.tensor_register(mine));
    OnGpu<int> sent(gpu, filled(8, comm.rank() + 1));
    ok(window.put(sent.elements(), next, 0, window_options(gpu, true)));
    must(window.tensor_deregister());
    EXPECT_THAT(read_from<int>(gpu, mine), testing::Each(previous + 1));
  });
}

TEST_P(WindowOnNccl, what_one_rank_refuses_is_an_error_on_all) {
  run([](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(8, 0));
    const auto shared = must(gpu::ShareableMemory::allocate(gpu.device(), 1 << 16));
    const auto refused = [&](cuda::Address at, DType dtype) {
      Window window = must(comm.new_window());
      return window.tensor_register({reinterpret_cast<void*>(at), 8, dtype});
    };
    const bool last = comm.rank() == comm.size() - 1;
    const std::string name = "rank " + std::to_string(comm.size() - 1) + ": ";
    const auto ordinary = refused(
        last ? reinterpret_cast<cuda::Address>(numbers.elements().data) : shared.address(), DType::int32);
    EXPECT_EQ(ordinary.code(), Code::not_supported);
    EXPECT_THAT(ordinary.error().message, testing::AllOf(HasSubstr(name), HasSubstr("use Window::allocate")));
    const auto within = refused(shared.address() + (last ? 64 : 0), DType::int32);
    EXPECT_EQ(within.code(), Code::invalid_argument);
    EXPECT_THAT(within.error().message,
                HasSubstr(name + "the elements begin 64 bytes into their allocation"));
    if (comm.size() > 1) {
      const auto other = refused(shared.address(), last ? DType::float32 : DType::int32);
      EXPECT_EQ(other.code(), Code::invalid_argument);
      EXPECT_THAT(other.error().message, HasSubstr("registers float32, rank 0 int32"));
    }
    ok(comm.barrier(gpu.on_stream()));
  });
}

TEST_P(WindowOnNccl, what_the_library_refuses_is_an_error_on_all) {
  const FakeNccl& library = library_of("nccl_newest");
  run([&](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    if (comm.rank() == 0) library.fail("ncclPutSignal", nccl::Outcome::invalid_argument);
    gpu.meet();
    const auto refused = window.allocate(8, DType::int32);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, testing::AllOf(HasSubstr("put 8 bytes to rank"),
                                                        HasSubstr("ncclPutSignal was told to fail")));
    gpu.meet();
    must(window.allocate(8, DType::int32));
    must(window.tensor_deregister());
  });
}

TEST_P(WindowOnNccl, a_library_that_registers_nothing_is_told) {
  const FakeNccl& library = library_of("nccl_newest");
  library.have_symmetric_memory(false);
  run([](Comm& comm, const RankGpu&) {
    Window window = must(comm.new_window());
    const auto refused = window.allocate(8, DType::int32);
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message,
                HasSubstr("and gives no window. It needs GPUs that reach one another"));
  });
  library.have_symmetric_memory(true);
}

TEST_P(WindowOnNccl, a_rank_that_does_not_come_ends_the_communicator) {
  if (GetParam().size == 1) return;
  run([](Comm& comm, const RankGpu& gpu) {
    if (comm.rank() == 0) {
      comm.set_timeout(milliseconds(100));
      Window window = must(comm.new_window());
      const auto late = window.allocate(8, DType::int32);
      EXPECT_EQ(late.code(), Code::timed_out);
      EXPECT_THAT(late.error().message, HasSubstr("another rank has not come in time"));
      EXPECT_TRUE(comm.is_aborted());
    }
    gpu.meet();
  });
}

TEST_P(WindowOnNccl, an_older_library_says_what_it_lacks) {
  run(
      [](Comm& comm, const RankGpu&) {
        Window window = must(comm.new_window());
        const auto refused = window.allocate(8, DType::int32);
        EXPECT_EQ(refused.code(), Code::not_supported);
        EXPECT_THAT(refused.error().message,
                    testing::AllOf(HasSubstr("a window, by ncclCommWindowRegister, needs NCCL 2.27.3, and "),
                                   HasSubstr("libfake_nccl_old.so is 2.20.5")));
        must(comm.finalize());
      },
      GetParam().size, "nccl_old");
}

TEST_P(WindowOnNccl, needs_a_gpu_that_exports_memory) {
  const nccl::Library library = must(library_of("rccl_newest").load());
  EXPECT_TRUE(nccl::check_window_operation(library, CommOperation::put));
  CommOptions options = rank_options(0, 1, unique_comm_name());
  options.backend = "rccl_newest";
  options.hints.clear();
  options.device = "cuda:0";
  Comm comm = must(Comm::open(options));
  Window window = must(comm.new_window());
  EXPECT_THAT(window.allocate(8, DType::int32).error().message,
              HasSubstr("GPU 0 exports no memory by descriptor"));
}

TEST_P(WindowOnNccl, is_not_captured) {
  run([](Comm& comm, const RankGpu& gpu) {
    Window window = must(comm.new_window());
    must(window.allocate(8, DType::int32));
    const gpu::ContextGuard current(*gpu.device());
    const cuda::DriverTable& driver = gpu.device()->driver();
    ASSERT_EQ(driver.stream_begin_capture(gpu.stream(), cuda::CaptureMode::relaxed), cuda::Outcome::success);
    const auto refused = window.signal(0, {}, window_options(gpu));
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr("use backend p2p in graphs"));
    cuda::Graph graph = nullptr;
    static_cast<void>(driver.stream_end_capture(gpu.stream(), &graph));
    must(window.tensor_deregister());
  });
}

}  // namespace
}  // namespace headrace::test
