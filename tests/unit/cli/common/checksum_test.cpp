// SPDX-License-Identifier: Apache-2.0
#include "cli/common/checksum.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::cli {
namespace {

TEST(Checksums, ARunningChecksumEqualsTheChecksumOfAllBytes) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  RunningChecksum sum;
  EXPECT_EQ(sum.take(), checksum({}));
  for (const std::size_t split : {0U, 1U, 16U, 240U, 241U, 4999U, 5000U}) {
    sum.add(std::span(bytes).first(split));
    sum.add(std::span(bytes).subspan(split));
    EXPECT_EQ(sum.take(), checksum(bytes)) << split;
  }
}

}  // namespace
}  // namespace headrace::cli
