// SPDX-License-Identifier: Apache-2.0
#include "engine/backends.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

const headrace_backend_v1 first_backend = recording_table("first"),
                          second_backend = recording_table("second");

TEST(Backends, the_place_of_a_backend_is_its_index) {
  Parts parts;
  BackendInstance& first = parts.add(first_backend);
  BackendInstance& second = parts.add(second_backend);
  EXPECT_EQ(parts.backends.index(first), 0U);
  EXPECT_EQ(parts.backends.index(second), 1U);
  EXPECT_EQ(parts.backends.all(), (std::vector{&first, &second}));
}

TEST(Backends, a_backend_is_opened_once) {
  Parts parts;
  parts.add(first_backend);
  const auto again = parts.backends.open({"first", "linked in", &first_backend, ""}, {}, parts.events);
  EXPECT_EQ(again.code(), Code::invalid_argument);
  const auto refused = parts.backends.open({"other", "", nullptr, "it is broken"}, {}, parts.events);
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_EQ(refused.error().message, "it is broken");
}

TEST(Backends, exported_rows_have_the_connection_information_if_asked) {
  Parts parts;
  parts.add(first_backend);
  EXPECT_TRUE(parts.backends.exported(true).front().info.has_value());
  EXPECT_FALSE(parts.backends.exported(false).front().info.has_value());
}

TEST(Backends, an_instance_that_has_ended_may_still_be_driven) {
  {
    Parts parts;
    BackendInstance& instance = parts.add(first_backend);
    ASSERT_TRUE(parts.progress->add(instance).ok());
    parts.backends.end();
    EXPECT_EQ(Recorded::destroyed, 1);
    EXPECT_EQ(parts.progress->poll(), 0U);
    EXPECT_EQ(instance.arm(true), 0U);
  }
  EXPECT_EQ(Recorded::destroyed, 1);
}

}  // namespace
}  // namespace headrace::engine
