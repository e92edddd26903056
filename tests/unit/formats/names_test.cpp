// SPDX-License-Identifier: Apache-2.0
#include "formats/names.hpp"

#include <gtest/gtest.h>

namespace headrace::formats {
namespace {

TEST(Names, ANameThatLeadsOutOfItsFolderIsFound) {
  for (const char* name : {"", "/etc/x", "../../x", "a/../../x", "a/..", "..\\x"})
    EXPECT_FALSE(stays_in_folder(name)) << name;
  for (const char* name : {"x", "a/b", "a..b", "..a/b", "model.layers.0"})
    EXPECT_TRUE(stays_in_folder(name)) << name;
}

}  // namespace
}  // namespace headrace::formats
