// SPDX-License-Identifier: Apache-2.0
#include "base/backend_options.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

constexpr std::array backend_rows{headrace_option_v1{"depth", "64KiB", "bytes", "", 0, 0},
                                  headrace_option_v1{"workers", "auto", "count", "", 0, 0},
                                  headrace_option_v1{"peers", "7", "count", "", 0, 0},
                                  headrace_option_v1{"patience", "5s", "duration", "", 0, 0},
                                  headrace_option_v1{"spin", "auto", "duration", "", 0, 0},
                                  headrace_option_v1{"magic", "auto", "auto|off", "", 0, 0},
                                  headrace_option_v1{"smoke", "off", "on|off", "", 0, 0},
                                  headrace_option_v1{"names", "a, b", "list", "", 0, 0},
                                  headrace_option_v1{"token", "", "text", "", HEADRACE_OPTION_SECRET, 0}};

TEST(BackendOptions, a_value_that_the_host_does_not_give_is_the_default_of_the_table) {
  const plugin::CreateArgs nothing;
  BackendOptions options("fancy", backend_rows, nothing);
  EXPECT_EQ(options.bytes("depth", 0, UINT64_MAX), 65536U);
  EXPECT_EQ(options.count_or_auto("workers", 1, 64), std::nullopt);
  EXPECT_EQ(options.count("peers", 0, 7), 7U);
  EXPECT_EQ(options.duration("patience"), 5s);
  EXPECT_EQ(options.duration_or_auto("spin"), std::nullopt);
  EXPECT_TRUE(options.automatic("magic"));
  EXPECT_FALSE(options.enabled("smoke"));
  EXPECT_THAT(options.list("names"), ElementsAre("a", "b"));
  EXPECT_EQ(options.text("token"), "");
  EXPECT_EQ(options.checked(3).value(), 3);
}

TEST(BackendOptions, a_value_of_the_host_is_read_by_its_type) {
  const std::array given{headrace_setting_v1{"depth", "7"},     headrace_setting_v1{"workers", "3"},
                         headrace_setting_v1{"peers", "5"},     headrace_setting_v1{"patience", "3ms"},
                         headrace_setting_v1{"spin", "0"},      headrace_setting_v1{"magic", "off"},
                         headrace_setting_v1{"smoke", "on"},    headrace_setting_v1{"names", " c,,d "},
                         headrace_setting_v1{"token", " pass "}};
  const plugin::CreateArgs args{given, ""};
  BackendOptions options("fancy", backend_rows, args);
  EXPECT_EQ(options.bytes("depth", 7, 7), 7U);
  EXPECT_EQ(options.count_or_auto("workers", 3, 3), 3U);
  EXPECT_EQ(options.count("peers", 5, UINT64_MAX), 5U);
  EXPECT_EQ(options.duration("patience", 3ms, 3ms), 3ms);
  EXPECT_EQ(options.duration_or_auto("spin"), 0ns);
  EXPECT_FALSE(options.automatic("magic"));
  EXPECT_TRUE(options.enabled("smoke"));
  EXPECT_EQ(options.choice("smoke", {"up", "down", "on"}), 2U);
  EXPECT_THAT(options.list("names"), ElementsAre("c", "d"));
  EXPECT_EQ(options.text("token"), "pass");
  EXPECT_TRUE(options.checked(3).ok());
}

/// The sentence with which the option is refused.
std::string refusal(const char* name, const char* value, const std::function<void(BackendOptions&)>& read) {
  const std::array given{headrace_setting_v1{name, value}};
  const plugin::CreateArgs args{given, ""};
  BackendOptions options("fancy", backend_rows, args);
  read(options);
  const auto result = options.checked(3);
  EXPECT_EQ(result.code(), Code::invalid_argument);
  return result.ok() ? "" : result.error().message;
}

TEST(BackendOptions, a_wrong_value_is_refused_with_its_name_the_value_and_what_is_needed) {
  const auto depth = [](BackendOptions& options) { options.bytes("depth", 1, 6); };
  for (const char* const value : {"8", "0", "lots"})
    EXPECT_EQ(refusal("depth", value, depth), fmt::format("option fancy.depth is \"{}\" and must be a number "
                                                          "of bytes from 1 to 6, as 4096, 64KiB or 4M",
                                                          value));
  EXPECT_EQ(refusal("depth", "-1", [](BackendOptions& options) { options.bytes("depth", 0, UINT64_MAX); }),
            "option fancy.depth is \"-1\" and must be a number of bytes, as 4096, 64KiB or 4M");
  EXPECT_EQ(refusal("peers", "4K", [](BackendOptions& options) { options.count("peers", 1, UINT64_MAX); }),
            "option fancy.peers is \"4K\" and must be a number of at least 1");
  EXPECT_EQ(
      refusal("workers", "-1", [](BackendOptions& options) { options.count_or_auto("workers", 1, 64); }),
      "option fancy.workers is \"-1\" and must be auto or a number from 1 to 64");
  EXPECT_EQ(refusal("patience", "soon", [](BackendOptions& options) { options.duration("patience", 1ms); }),
            "option fancy.patience is \"soon\" and must be a duration of at least 1ms, as 50us or 5s");
  EXPECT_EQ(refusal("patience", "3s", [](BackendOptions& options) { options.duration("patience", 0s, 2s); }),
            "option fancy.patience is \"3s\" and must be a duration from 0s to 2s");
  EXPECT_EQ(refusal("spin", "soon", [](BackendOptions& options) { options.duration_or_auto("spin"); }),
            "option fancy.spin is \"soon\" and must be auto or a duration, as 50us or 5s");
  EXPECT_EQ(refusal("magic", "on", [](BackendOptions& options) { options.automatic("magic"); }),
            "option fancy.magic is \"on\" and must be off or auto");
  EXPECT_EQ(refusal("smoke", "auto",
                    [](BackendOptions& options) {
                      options.choice("smoke", {"a", "b", "c"});
                    }),
            "option fancy.smoke is \"auto\" and must be a, b or c");
}

TEST(BackendOptions, the_first_refusal_is_kept) {
  const plugin::CreateArgs nothing;
  BackendOptions options("fancy", backend_rows, nothing);
  options.refuse("peers", "odd");
  options.refuse("depth", "even");
  EXPECT_EQ(options.checked(3).error().message, "option fancy.peers is \"7\" and must be odd");
}

TEST(BackendOptions, a_secret_is_not_shown) {
  EXPECT_EQ(refusal("token", "pass", [](BackendOptions& options) { options.refuse("token", "longer"); }),
            "option fancy.token is \"(secret)\" and must be longer");
}

}  // namespace
}  // namespace headrace
