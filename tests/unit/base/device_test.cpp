// SPDX-License-Identifier: Apache-2.0
#include <headrace/tensor.hpp>

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Device, is_read_from_its_name_in_any_case) {
  EXPECT_EQ(device_from_text("CPU").value(), Device{});
  EXPECT_EQ(device_from_text("cuda").value(), (Device{Device::Kind::cuda, 0}));
  EXPECT_EQ(device_from_text("Cuda:3").value(), (Device{Device::Kind::cuda, 3}));
  EXPECT_EQ(device_text({Device::Kind::cuda, 3}), "cuda:3");
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"})
    EXPECT_EQ(device_from_text(text).code(), Code::invalid_argument) << text;
}

}  // namespace
}  // namespace headrace
