// SPDX-License-Identifier: Apache-2.0
#include "collectives/settings.hpp"

#include "base/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headrace::collectives {
namespace {

using testing::ElementsAre;

class BackendsOfComm : public testing::Test {
 protected:
  ~BackendsOfComm() override {
    if (before_) {
      ::setenv("HEADRACE_BACKENDS", before_->c_str(), 1);
    } else {
      ::unsetenv("HEADRACE_BACKENDS");
    }
  }
  static std::vector<std::string> where(const char* variable,
                                        const std::map<std::string, std::string>& hints = {}) {
    ::setenv("HEADRACE_BACKENDS", variable, 1);
    return Settings::read(hints).value().backends;
  }

 private:
  const std::optional<std::string> before_ = environment_variable("HEADRACE_BACKENDS");
};

TEST_F(BackendsOfComm, are_those_that_the_variable_leaves) {
  EXPECT_THAT(where(""), ElementsAre("shm", "tcp"));
  EXPECT_THAT(where("shm"), ElementsAre("shm"));
  EXPECT_THAT(where("posix, tcp,cuda_ipc"), ElementsAre("tcp"));
}

TEST_F(BackendsOfComm, are_the_default_if_the_variable_names_none_that_connects_ranks) {
  EXPECT_THAT(where("posix"), ElementsAre("shm", "tcp"));
}

TEST_F(BackendsOfComm, are_those_of_the_hint_first) {
  EXPECT_THAT(where("shm", {{"backends", "tcp"}}), ElementsAre("tcp"));
}

}  // namespace
}  // namespace headrace::collectives
