// SPDX-License-Identifier: Apache-2.0
#include "cli/common/quiet_notice.hpp"

#include <gtest/gtest.h>

#include <future>

namespace headrace::cli {
namespace {

using namespace std::chrono_literals;

TEST(QuietNotice, ItSaysOnceWhatIsWaitedFor) {
  std::promise<std::string> said;
  int times = 0;
  {
    QuietNotice notice(
        "waiting for a peer",
        [&](const std::string& sentence) {
          ++times;
          said.set_value(sentence);
        },
        1ms);
    EXPECT_EQ(said.get_future().get(), "waiting for a peer");
    notice.progress();
  }
  EXPECT_EQ(times, 1);
}

TEST(QuietNotice, ItIsSilentAndEndsAtOnceWhereSomethingHappens) {
  const auto begin = std::chrono::steady_clock::now();
  {
    QuietNotice notice(
        "never said", [](const std::string&) { ADD_FAILURE(); }, 1h);
    notice.progress();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1min);
}

}  // namespace
}  // namespace headrace::cli
