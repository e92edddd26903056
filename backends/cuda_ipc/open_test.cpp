// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/backend.hpp"
#include "support/plugin_host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

namespace headrace::cuda_ipc {
namespace {

using ::testing::HasSubstr;

TEST(CudaIpcSettings, refuse_nonsense_by_name) {
  test::PluginHost host{{}};
  const headrace_setting_v1 settings[] = {{"multiprocessors", "many"}};
  const auto backend = CudaIpcBackend::open(plugin::Host(host.table()), {settings, {}});
  ASSERT_FALSE(backend);
  EXPECT_THAT(backend.error().message, HasSubstr("option cuda_ipc.multiprocessors"));
}

TEST(CudaIpcOpen, where_there_is_no_gpu_it_does_not_open_and_says_so) {
  if (::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0 ||
      ::access("/dev/nvmap", F_OK) == 0)
    GTEST_SKIP() << "this machine has a GPU";
  test::PluginHost host{{}};
  const auto backend = CudaIpcBackend::open(plugin::Host(host.table()), {{}, {}});
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.code(), Code::not_supported);
  EXPECT_NE(backend.error().message.find("no NVIDIA GPU here"), std::string::npos) << backend.error().message;
}

}  // namespace
}  // namespace headrace::cuda_ipc
