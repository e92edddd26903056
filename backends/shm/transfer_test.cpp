// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/transfer.hpp"

#include "backends/shm/regions.hpp"

#include <gtest/gtest.h>

#include <array>

namespace headrace::shm {
namespace {

/// Two pages of 100 bytes, on our side numbers 3 and 1, on the other 0 and 2.
class FirstTarget : public testing::Test {
 protected:
  headrace_prepare_v1 request(headrace_op_v1 op, void* remote) {
    remote_ = remote;
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = op;
    args.count = 2;
    args.bytes = 200;
    sides_ = {side(&local_, ours_.data()), side(&remote_, theirs_.data())};
    args.local = sides_.data();
    args.remote = &sides_[1];
    return args;
  }

  std::array<std::byte, 400> here{}, there{};
  LocalRegion near{1, here.data(), here.size(), nullptr, false};
  LocalRegion far{2, there.data(), there.size(), nullptr, false};

 private:
  static headrace_side_v1 side(void** region, const std::uint32_t* indices) {
    headrace_side_v1 side{};
    side.struct_size = sizeof side;
    side.regions = region;
    side.region_count = 1;
    side.columns.indices = indices;
    side.columns.stride_bytes = side.columns.page_bytes = 100;
    return side;
  }

  std::array<std::uint32_t, 2> ours_{3, 1}, theirs_{0, 2};
  void* local_ = &near;
  void* remote_ = nullptr;
  std::array<headrace_side_v1, 2> sides_{};
};

TEST_F(FirstTarget, lies_on_the_side_that_is_written) {
  RemoteRegion remote(far);
  const auto read = request(HEADRACE_READ, &remote);
  EXPECT_EQ(first_target(read, {0, 0}, {2, 0}), here.data() + 300);
  EXPECT_EQ(first_target(read, {1, 40}, {2, 0}), here.data() + 140);
  const auto write = request(HEADRACE_WRITE, &remote);
  EXPECT_EQ(first_target(write, {1, 40}, {2, 0}), there.data() + 240);
}

TEST_F(FirstTarget, is_nowhere_here_if_the_peer_is_reached_by_attach) {
  RemoteRegion remote(nullptr, 7, 0x1000, 400);
  EXPECT_EQ(first_target(request(HEADRACE_WRITE, &remote), {0, 0}, {2, 0}), nullptr);
}

}  // namespace
}  // namespace headrace::shm
