// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/settings.hpp"

#include <gtest/gtest.h>

#include <string>

namespace headrace::shm {
namespace {

TEST(Settings, are_read_rounded_and_refused_by_name) {
  const auto read = [](const char* name, const char* value) {
    const headrace_setting_v1 setting{name, value};
    return read_settings(plugin::CreateArgs{{&setting, 1}, "/"});
  };
  EXPECT_EQ(read("ring_bytes", "1MiB").value().links.ring_bytes, 1U << 20);
  EXPECT_EQ(read("ring_bytes", "4096").value().links.ring_bytes, 256U * 1024)
      << "two of the longest messages fit";
  EXPECT_EQ(read("ring_bytes", "1").code(), Code::invalid_argument);
  EXPECT_EQ(read("threads", "100000").code(), Code::invalid_argument);
  EXPECT_FALSE(read("map", "off").value().map);
  EXPECT_TRUE(read("attach", "auto").value().attach);
  EXPECT_TRUE(read("numa", "auto").value().numa);
  EXPECT_FALSE(read("numa", "off").value().numa);
  const auto refused = read("attach", "sometimes");
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.error().message.find("attach"), std::string::npos);
  EXPECT_EQ(read("ring_bytes", "64GiB").code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::shm
