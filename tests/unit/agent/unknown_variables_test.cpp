// SPDX-License-Identifier: Apache-2.0
#include "agent/unknown_variables.hpp"

#include "agent/core_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> said_of(const std::vector<std::string_view>& environment) {
  const std::vector<OptionTable> tables{
      {"", {core_options.begin(), core_options.end()}},
      {"tcp", {{"sockets", "auto", "count", ""}, {"listen", "", "list", ""}}}};
  return unknown_variables(environment, tables);
}

TEST(UnknownVariables, a_misspelt_option_is_said_with_the_right_one) {
  EXPECT_THAT(
      said_of({"HEADRACE_TCP_SOKETS=3"}),
      ElementsAre(HasSubstr("HEADRACE_TCP_SOKETS of the environment is no option and has no effect: did "
                            "you mean HEADRACE_TCP_SOCKETS?")));
  EXPECT_THAT(said_of({"HEADRACE_TPC_SOCKETS=3", "HEADRACE_RUNTIMEDIR=/tmp"}),
              ElementsAre(HasSubstr("HEADRACE_TCP_SOCKETS?"), HasSubstr("HEADRACE_RUNTIME_DIR?")));
  EXPECT_THAT(said_of({"HEADRACE_TCP_BUFFER_OF_A_SOCKET=1"}), ElementsAre(HasSubstr("did you mean")));
}

TEST(UnknownVariables, a_scope_that_others_share_has_only_its_near_names) {
  const auto said = [](std::string_view variable) {
    return unknown_variables(std::array{variable}, {{"comm", {{"trace", "0", "count", ""}}, false}});
  };
  EXPECT_THAT(said("HEADRACE_COMM_TRACES=1"), ElementsAre(HasSubstr("did you mean HEADRACE_COMM_TRACE?")));
  EXPECT_THAT(said("HEADRACE_COMM_LIB_MINE=/a.so"), IsEmpty());
  EXPECT_THAT(said("HEADRACE_COMM_NCCL=ON"), IsEmpty());
}

TEST(UnknownVariables, options_and_names_of_others_are_not_said) {
  EXPECT_THAT(
      said_of({"HEADRACE_TCP_SOCKETS=3", "HEADRACE_LOG=info", "HEADRACE_STORE=memory:a", "PATH=/bin"}),
      IsEmpty());
  EXPECT_THAT(said_of({"HEADRACE_CONFIG=a", "HEADRACE_CACHE_DIR=/a", "HEADRACE_MODEL_CACHE_DIR=/a",
                       "HEADRACE_MODEL_DEBUG=1", "HEADRACE_MODEL_LIBRARY=a"}),
              IsEmpty())
      << "read elsewhere";
  EXPECT_THAT(said_of({"HEADRACE_TESTS=ON", "HEADRACE_CLI=ON", "HEADRACE_BENCH=ON", "HEADRACE_EXAMPLES=ON",
                       "HEADRACE_WERROR=ON", "HEADRACE_FUZZ=ON", "HEADRACE_SANITIZE=thread",
                       "HEADRACE_CUDA_ARCHS=90a", "HEADRACE_DEVICE_COMPILER=nvcc", "HEADRACE_TEST_ARCHS=90a",
                       "HEADRACE_TEST_SEED=1", "HEADRACE_TEST_WITHOUT_GPU=1", "HEADRACE_CHAOS_SEED=1",
                       "HEADRACE_CONTRACT_BACKENDS=shm"}),
              IsEmpty())
      << "of the build and of the tests";
  EXPECT_THAT(said_of({"HEADRACE_SERVICE_HOST=10.0.0.1", "HEADRACE_SERVICE_PORT=7000",
                       "HEADRACE_PORT=tcp://10.0.0.1:7000", "HEADRACE_PORT_7000_TCP_ADDR=10.0.0.1"}),
              IsEmpty())
      << "of Kubernetes";
}

TEST(UnknownEntries, a_misspelt_table_or_option_of_the_file_is_said_with_its_line) {
  const std::vector<OptionTable> tables{
      {"", {core_options.begin(), core_options.end()}},
      {"tcp", {{"sockets", "auto", "count", ""}, {"listen", "", "list", ""}}}};
  const auto said = [&](const std::string& name) {
    return unknown_entries("/etc/headrace.toml", {{name, TomlEntry{.text = "3", .line = 7}}}, tables);
  };
  EXPECT_THAT(said("tpc.sockets"),
              ElementsAre("/etc/headrace.toml:7: tpc.sockets is no option and has no effect: did you mean "
                          "tcp.sockets?"));
  EXPECT_THAT(said("tcp.sockets"), IsEmpty());
  EXPECT_THAT(said("shm.threads"), IsEmpty()) << "of a backend that is not open";
  EXPECT_THAT(said("p2p.blocks"), IsEmpty()) << "of communicators";
  EXPECT_THAT(said("store"), IsEmpty()) << "of the agent: unknown ones are errors";
}

}  // namespace
}  // namespace headrace
