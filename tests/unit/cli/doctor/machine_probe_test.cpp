// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/machine_probe.hpp"

#include "support/fake_cuda.hpp"
#include "support/fake_kernels.hpp"
#include "support/forbidden_call.hpp"
#include "unit/topology/recorded_machine.hpp"

#include <gtest/gtest.h>

#include <sys/syscall.h>

namespace headrace::cli {
namespace {

TEST(machine_probe, the_probe_lists_memory_cpus_and_gpus_of_each_node) {
  test::RecordedMachine machine("two_sockets");
  const auto add = [&](const std::string& slot, const std::string& vendor, const std::string& kind) {
    const std::string device = "/sys/bus/pci/devices/" + slot;
    machine.append(device + "/vendor", vendor);
    machine.append(device + "/class", kind);
    machine.append(device + "/numa_node", "1");
  };
  add("0000:9d:00.0", "0x10de", "0x030200");
  add("0000:1b:00.0", "0x10de", "0x030200");
  add("0000:1c:00.0", "0x10de", "0x068000");  // a bridge between GPUs, not a GPU
  add("0000:1d:00.0", "0x8086", "0x030000");
  const std::string text = probe_numa(machine.root()).value;
  EXPECT_EQ(text.find("node 0: 135.1 GB, CPUs 0-3,8-11; node 1: "), 0U) << text;
  EXPECT_TRUE(text.ends_with(", CPUs 4-7,12-15, GPU 0000:1b:00.0 and 0000:9d:00.0")) << text;
}

TEST(machine_probe, tells_by_which_signal_a_trial_was_ended) {
  EXPECT_TRUE(test::with_filter(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS, [] {
    const Finding found = probe_attach();
    return found.state == Finding::State::bad &&
           found.value == "the process that tried it ended by signal 31 (SIGSYS)" && !found.advice.empty();
  }));
}

TEST(machine_probe, tells_when_the_kernel_knows_no_nodes) {
  const test::RecordedMachine machine;
  EXPECT_EQ(probe_numa(machine.root()).value, "the kernel reports no nodes");
}

TEST(machine_probe, the_probe_lists_the_gpus_and_the_cuda_version_of_the_driver) {
  cuda::FakeCuda fake(2);
  const Finding found = probe_gpus(fake.load());
  EXPECT_EQ(found.state, Finding::State::good);
  EXPECT_EQ(found.value.find("0: Fake H200, "), 0U) << found.value;
  EXPECT_NE(found.value.find("; 1: Fake H200, "), std::string::npos) << found.value;
  EXPECT_TRUE(found.value.ends_with("; the driver supports CUDA 13.0")) << found.value;
}

TEST(machine_probe, the_probe_says_why_there_are_no_gpus) {
  cuda::FakeCuda fake(0);
  const Finding found = probe_gpus(fake.load());
  EXPECT_EQ(found.state, Finding::State::note);
  EXPECT_NE(found.value.find("GPU"), std::string::npos) << found.value;
}

TEST(machine_probe, the_probe_says_whether_the_kernels_fit_the_gpus) {
  cuda::FakeCuda fake(2);
  const auto library = gpu::KernelLibrary::from_table(cuda::fake_kernels_table(), "the library");
  const Finding good = probe_kernels(fake.load(), library);
  EXPECT_EQ(good.state, Finding::State::good);
  EXPECT_NE(good.value.find("sm_90a"), std::string::npos) << good.value;

  const auto missing = gpu::KernelLibrary::load("/nowhere/libheadrace_kernels.so");
  const Finding bad = probe_kernels(fake.load(), missing);
  EXPECT_EQ(bad.state, Finding::State::bad);
  EXPECT_NE(bad.value.find("/nowhere"), std::string::npos) << bad.value;
  EXPECT_FALSE(bad.advice.empty());

  headrace_kernels_v1 table = cuda::fake_kernels_table();
  table.image_count = 0;
  const Finding unfit = probe_kernels(fake.load(), gpu::KernelLibrary::from_table(table, "the library"));
  EXPECT_EQ(unfit.state, Finding::State::bad);
  EXPECT_NE(unfit.value.find("HEADRACE_CUDA_ARCHS"), std::string::npos) << unfit.value;
}

TEST(machine_probe, without_gpus_missing_kernels_are_not_a_fault) {
  cuda::FakeCuda fake(0);
  for (const auto& library : {gpu::KernelLibrary::from_table(cuda::fake_kernels_table(), "the library"),
                              gpu::KernelLibrary::load("/nowhere/libheadrace_kernels.so")}) {
    const Finding found = probe_kernels(fake.load(), library);
    EXPECT_EQ(found.state, Finding::State::note);
    EXPECT_TRUE(found.advice.empty()) << found.advice;
  }
}

}  // namespace
}  // namespace headrace::cli
