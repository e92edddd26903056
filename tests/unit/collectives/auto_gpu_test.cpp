// SPDX-License-Identifier: Apache-2.0
// Communicators over auto on GPUs, ranks as threads. Without NCCL, and where ranks share a GPU, p2p has all.
#include "gpu_ranks.hpp"

#include "gpu/gpus.hpp"

#include <headrace/comm_backend.hpp>

#include <random>

namespace headrace::test {
namespace {

class CommOnAutoRealGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::is_in_sight()) GTEST_SKIP() << "this machine has no GPU";
  }
  /// Calls of both backends, on two streams and the communicator's own, none of which waits on the host.
  static void many_calls(Comm& comm, const RankGpu& gpu) {
    std::minstd_rand random(7);  // the same on all ranks
    OnGpu<int> small(gpu, filled(1'000, 1)), large(gpu, filled(300'000, 1));
    gpu.wait();
    std::vector<Work> works;
    for (int i = 0; i < 200; ++i) {
      OpOptions options = gpu.on_stream(random() % 2 == 0);
      if (random() % 3 == 0) options.stream = gpu.other_stream().handle();
      const Elements elements = random() % 2 == 0 ? small.elements() : large.elements();
      works.push_back(must(comm.broadcast(elements, 0, options)));
    }
    for (const Work& work : works) must(work.wait());
    EXPECT_THAT(small.values(), testing::Each(1));
    EXPECT_THAT(large.values(), testing::Each(1));
  }
  static void run(int size, int gpus) {
    with_real_gpus("auto", size, gpus, [gpus](Comm& comm, const RankGpu& gpu) {
      reduce_all_ways(comm, gpu);
      move_all_ways(comm, gpu);
      if (gpus >= comm.size() && has_nccl()) send_around(comm, gpu);
      overlap(comm, gpu);
      many_calls(comm, gpu);
      capture(comm, gpu);
      split_backwards(comm, gpu);
      gpu.meet();
      must(comm.finalize());
    });
  }
  static bool has_nccl() {
    for (const CommBackendInfo& backend : survey_comm_backends())
      if (backend.name == "nccl") return backend.refusal.empty();
    return false;
  }
};

using CommOnAutoRealGpus_gpu1 = CommOnAutoRealGpus;

TEST_F(CommOnAutoRealGpus_gpu1, one_rank_does_all) { run(1, 1); }
TEST_F(CommOnAutoRealGpus_gpu1, ranks_that_share_a_gpu_do_all) { run(2, 1); }

using CommOnAutoRealGpus_gpu2 = CommOnAutoRealGpus;

TEST_F(CommOnAutoRealGpus_gpu2, ranks_on_two_gpus_do_all) {
  if (must(gpu::list_devices(must(cuda::load_driver()))).size() < 2)
    GTEST_SKIP() << "this machine has fewer than two GPUs";
  run(2, 2);
}

}  // namespace
}  // namespace headrace::test
