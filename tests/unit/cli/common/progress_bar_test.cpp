// SPDX-License-Identifier: Apache-2.0
#include "cli/common/progress_bar.hpp"

#include <gmock/gmock.h>

namespace headrace::cli {
namespace {

TEST(ProgressLine, TheLineShowsProgressSpeedAndRemainingTime) {
  const std::string line = progress_line("pulling", 250'000'000, 1'000'000'000, 500e6, 80);
  EXPECT_NE(line.find(" 25 %, 500.0 MB/s, 1.5 s left"), std::string::npos) << line;
  EXPECT_NE(line.find("[###"), std::string::npos) << line;
}

TEST(ProgressLine, TheLineFitsTheTerminal) {
  for (std::size_t columns = 20; columns <= 120; ++columns)
    EXPECT_LT(progress_line("pulling", 1, 1'000'000'000, 12e6, columns).size(), columns);
}

}  // namespace
}  // namespace headrace::cli
