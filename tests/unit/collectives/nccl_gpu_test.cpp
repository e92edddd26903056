// SPDX-License-Identifier: Apache-2.0
// Communicators over the installed NCCL, on GPUs. With one GPU: one rank, and several where NCCL allows them
// (since 2.30, with NCCL_MULTI_RANK_GPU_ENABLE=1).
#include "gpu_ranks.hpp"
#include "gpu_windows.hpp"

#include "base/options.hpp"
#include "gpu/gpus.hpp"
#include "vendor/nccl/library.hpp"

#include <functional>

namespace headrace::test {
namespace {

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
    with_ranks(size, gpus, [&](Comm& comm, const RankGpu& gpu) {
      reduce_all_ways(comm, gpu);
      move_all_ways(comm, gpu);
      send_around(comm, gpu);
      overlap(comm, gpu);
      capture(comm, gpu);
      split_backwards(comm, gpu);
      // Ranks of one process on one GPU write to one another's memory by its plain addresses. One that aborts
      // frees it, and the kernel of another one, which waits, ends the process's context (NCCL 2.32.3).
      if (size > 1 && gpus > 1)
        lose_a_rank(comm, gpu);
      else
        must(comm.finalize());
    });
  }
  void run_windows(int size, int gpus) const {
    if (version_ < 22902) GTEST_SKIP() << "NCCL has no windows before 2.29.2";
    with_ranks(size, gpus, [](Comm& comm, const RankGpu& gpu) {
      put_signal_and_map(comm, gpu);
      must(comm.finalize());
    });
  }
  static void with_ranks(int size, int gpus, const std::function<void(Comm&, const RankGpu&)>& body) {
    const std::string name = unique_comm_name();
    std::barrier<> ranks(size);
    on_threads(size, [&](int rank) {
      const int ordinal = rank % gpus;
      CommOptions options = rank_options(rank, size, name);
      options.backend = "nccl";
      options.device = "cuda:" + std::to_string(ordinal);
      options.hints.clear();
      const RankGpu gpu(must(cuda::load_driver()), ordinal, ranks);
      Comm comm = must(Comm::open(options));
      body(comm, gpu);
    });
  }
  int version_ = 0;
};

using CommOnNcclGpus_gpu1 = CommOnNcclGpus;

TEST_F(CommOnNcclGpus_gpu1, one_rank_does_all) { run(1, 1); }
TEST_F(CommOnNcclGpus_gpu1, one_rank_has_windows) { run_windows(1, 1); }

TEST_F(CommOnNcclGpus_gpu1, several_ranks_share_a_gpu_where_nccl_allows_it) {
  const bool allowed = environment_variable("NCCL_MULTI_RANK_GPU_ENABLE").value_or("0") == "1";
  if (version_ < 23000 || !allowed) GTEST_SKIP() << "NCCL allows one rank on a GPU";
  run(2, 1);
  run_windows(2, 1);
}

using CommOnNcclGpus_gpu2 = CommOnNcclGpus;

TEST_F(CommOnNcclGpus_gpu2, ranks_on_two_gpus_do_all) {
  if (must(gpu::list_devices(must(cuda::load_driver()))).size() < 2)
    GTEST_SKIP() << "this machine has fewer than two GPUs";
  run(2, 2);
}
TEST_F(CommOnNcclGpus_gpu2, ranks_on_two_gpus_have_windows) {
  if (must(gpu::list_devices(must(cuda::load_driver()))).size() < 2)
    GTEST_SKIP() << "this machine has fewer than two GPUs";
  run_windows(2, 2);
}

}  // namespace
}  // namespace headrace::test
