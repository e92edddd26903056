// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/connection_info.hpp"

#include <gtest/gtest.h>

namespace headrace::tcp {
namespace {

TEST(ConnectionInfo, what_is_written_is_read_back) {
  ConnectionInfo info;
  info.host = 0xfeed;
  info.addresses = {{"192.0.2.1", 4000}, {"2001:db8::1", 4000}, {"node-7.example", 5}, {"127.0.0.1", 4000}};
  const auto read = ConnectionInfo::parse(info.text());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->host, info.host);
  EXPECT_EQ(read->addresses, info.addresses);
}

TEST(ConnectionInfo, nonsense_is_refused_with_a_sentence) {
  for (const char* text :
       {"", "x", "headrace-tcp", "headrace-tcp 1", "headrace-tcp 1 zz", "headrace-tcp 1 1 nowhere",
        "headrace-tcp 1 1 h:0", "headrace-tcp 1 1 :7", "headrace-tcp 1 1 h:1  h:2"})
    EXPECT_FALSE(ConnectionInfo::parse(text).ok()) << text;
  EXPECT_EQ(ConnectionInfo::parse("headrace-tcp 2 1 h:1").code(), Code::not_supported);
  std::string many = "headrace-tcp 1 1";
  for (int i = 0; i < 100; ++i) many += " h:1";
  EXPECT_EQ(ConnectionInfo::parse(many).code(), Code::corrupt);
}

TEST(ConnectionInfo, loopback_comes_first_for_a_neighbour_and_not_at_all_for_others) {
  ConnectionInfo info;
  info.host = 1;
  info.addresses = {{"192.0.2.1", 1}, {"127.0.0.1", 1}, {"2001:db8::1", 1}, {"::1", 1}};
  const std::vector<TcpAddress> neighbour{{"127.0.0.1", 1}, {"::1", 1}, {"192.0.2.1", 1}, {"2001:db8::1", 1}};
  const std::vector<TcpAddress> stranger{{"192.0.2.1", 1}, {"2001:db8::1", 1}};
  EXPECT_EQ(info.for_host(1), neighbour);
  EXPECT_EQ(info.for_host(2), stranger);
  EXPECT_EQ(info.for_host(0), info.addresses) << "unknown: everything, as it was given";
  info.addresses = {{"127.0.0.1", 1}};
  EXPECT_EQ(info.for_host(2), info.addresses) << "better than nothing";
}

TEST(ConnectionInfo, this_machine_has_addresses_and_a_name_for_itself) {
  EXPECT_NE(this_host(), 0U);
  EXPECT_EQ(this_host(), this_host());
  bool loopback = false;
  for (const SocketAddress& address : interface_addresses(AF_UNSPEC))
    loopback = loopback || address.text().starts_with("127.");
  EXPECT_TRUE(loopback);
  EXPECT_TRUE(is_numeric({"::1", 1}));
  EXPECT_FALSE(is_numeric({"localhost", 1}));
}

}  // namespace
}  // namespace headrace::tcp
