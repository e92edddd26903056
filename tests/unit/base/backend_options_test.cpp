// SPDX-License-Identifier: Apache-2.0
#include "base/backend_options.hpp"

#include <gtest/gtest.h>

#include <array>

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr std::array backend_rows{headrace_option_v1{"depth", "64KiB", "bytes", "", 0, 0},
                                  headrace_option_v1{"patience", "5s", "duration", "", 0, 0},
                                  headrace_option_v1{"magic", "auto", "auto|off", "", 0, 0},
                                  headrace_option_v1{"smoke", "off", "on|off", "", 0, 0}};

TEST(BackendOptions, a_value_is_the_hosts_or_else_the_default_of_the_table) {
  const plugin::CreateArgs nothing;
  const BackendOptions standard("fancy", backend_rows, nothing);
  EXPECT_EQ(standard.number("depth", 0, UINT64_MAX).value(), 65536U);
  EXPECT_EQ(standard.duration("patience").value(), 5s);
  EXPECT_TRUE(standard.automatic("magic").value());
  EXPECT_FALSE(standard.enabled("smoke").value());
  const std::array given{headrace_setting_v1{"depth", "7"}, headrace_setting_v1{"patience", "3ms"},
                         headrace_setting_v1{"magic", "off"}, headrace_setting_v1{"smoke", "on"}};
  const plugin::CreateArgs args{given, ""};
  const BackendOptions options("fancy", backend_rows, args);
  EXPECT_EQ(options.number("depth", 7, 7).value(), 7U);
  EXPECT_EQ(options.duration("patience").value(), 3ms);
  EXPECT_FALSE(options.automatic("magic").value());
  EXPECT_TRUE(options.enabled("smoke").value());
}

TEST(BackendOptions, a_wrong_value_is_refused_with_its_name_and_the_value) {
  const std::array given{headrace_setting_v1{"depth", "8"}, headrace_setting_v1{"patience", "soon"},
                         headrace_setting_v1{"magic", "perhaps"}, headrace_setting_v1{"smoke", "auto"}};
  const plugin::CreateArgs args{given, ""};
  const BackendOptions options("fancy", backend_rows, args);
  const auto refused = [](const auto& result, const char* name, const char* value) {
    EXPECT_EQ(result.code(), Code::invalid_argument);
    EXPECT_NE(result.error().message.find(std::string("option fancy.") + name), std::string::npos);
    EXPECT_NE(result.error().message.find(value), std::string::npos) << result.error().message;
  };
  refused(options.number("depth", 0, 7), "depth", "8");
  refused(options.number("depth", 9, 100), "depth", "8");
  refused(options.duration("patience"), "patience", "soon");
  refused(options.automatic("magic"), "magic", "perhaps");
  refused(options.enabled("smoke"), "smoke", "auto");
}

}  // namespace
}  // namespace headrace
