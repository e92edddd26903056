// SPDX-License-Identifier: Apache-2.0
#include "agent/ports.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Where the data port is if the option tcp.listen has this value from this source.
std::string data_port(const Meeting& meeting, const std::string& value = "",
                      const std::string& source = "default") {
  OptionInfo option;
  option.name = "tcp.listen";
  option.value = value;
  option.source = source;
  return meeting.data_port(option);
}

TEST(Meeting, on_loopback_and_without_a_store_keeps_the_data_port_on_loopback) {
  EXPECT_EQ(data_port(Meeting::at("127.0.0.1:7000", "")), "127.0.0.1:0");
  EXPECT_EQ(data_port(Meeting::at("[::1]:0", "")), "[::1]:0");
  EXPECT_EQ(data_port(Meeting::at("localhost:0", "")), "localhost:0");
  EXPECT_EQ(data_port(Meeting::at("127.0.0.1:0", "memory:here")), "127.0.0.1:0");
}

TEST(Meeting, beyond_this_host_or_by_hand_leaves_the_data_port_on_every_interface) {
  EXPECT_EQ(data_port(Meeting::at("", "")), "");
  EXPECT_EQ(data_port(Meeting::at("0.0.0.0:0", "")), "");
  EXPECT_EQ(data_port(Meeting::at(":0", "")), "");
  EXPECT_EQ(data_port(Meeting::at("127.0.0.1:0", "etcd://10.0.0.1:2379")), "");
}

TEST(Meeting, leaves_the_data_port_where_the_option_says) {
  for (const char* const source : {"caller", "environment", "file"}) {
    EXPECT_EQ(data_port(Meeting::at("127.0.0.1:0", ""), "10.0.0.1:0", source), "10.0.0.1:0");
    EXPECT_EQ(data_port(Meeting::at("127.0.0.1:0", ""), "", source), "")
        << "every interface, as it was asked";
  }
}

/// What an agent with a data port and a metadata socket on every interface says.
class OpenPorts : public testing::Test {
 protected:
  OpenPorts() {
    logger_.set_sink([this](LogLevel, std::string_view, std::string_view text) { said_.emplace_back(text); });
  }
  std::vector<std::string> warned(const Meeting& meeting, const std::string& token = "") {
    std::vector<OpenPort> ports = data_ports("tcp", "127.0.0.1:7,[::]:41823");
    ports.push_back(metadata_port("0.0.0.0:7000"));
    warn_of_open_ports(Log(logger_, "agent"), meeting, {token, false}, ports);
    return std::exchange(said_, {});
  }

 private:
  Logger logger_;
  std::vector<std::string> said_;
};

// One test: a process is warned once.
TEST_F(OpenPorts, are_said_once_with_their_numbers_where_peers_of_other_hosts_are_asked_to_come) {
  EXPECT_THAT(warned(Meeting::at("", "")), IsEmpty()) << "metadata by hand";
  EXPECT_THAT(warned(Meeting::at("127.0.0.1:0", "")), IsEmpty());
  EXPECT_THAT(warned(Meeting::at("0.0.0.0:0", ""), "secret"), IsEmpty());
  EXPECT_THAT(warned(Meeting::at("", "file:///shared")),
              ElementsAre(testing::AllOf(HasSubstr("tcp [::]:41823, metadata 0.0.0.0:7000;"),
                                         HasSubstr("tcp.listen=127.0.0.1:0 (HEADRACE_TCP_LISTEN)"),
                                         Not(HasSubstr("127.0.0.1:7,")))));
  EXPECT_THAT(warned(Meeting::at("0.0.0.0:0", "")), IsEmpty());
}

}  // namespace
}  // namespace headrace
