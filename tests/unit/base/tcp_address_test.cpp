// SPDX-License-Identifier: Apache-2.0
#include "base/tcp_address.hpp"

#include "base/unique_fd.hpp"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(TcpAddress, EachFormOfAnAddressIsReadAndWrittenBack) {
  EXPECT_EQ(TcpAddress::parse("node7:4500").value(), (TcpAddress{"node7", 4500}));
  EXPECT_EQ(TcpAddress::parse(" [2001:db8::1]:80 ").value(), (TcpAddress{"2001:db8::1", 80}));
  EXPECT_EQ(TcpAddress::parse(":80").value(), (TcpAddress{"", 80}));
  EXPECT_EQ(TcpAddress::parse("node7", 9).value(), (TcpAddress{"node7", 9}));
  EXPECT_EQ(TcpAddress::parse("::1", 9).value(), (TcpAddress{"::1", 9}));
  EXPECT_EQ(TcpAddress::parse("[::1]", 9).value(), (TcpAddress{"::1", 9}));
  for (const char* text : {"node7:4500", "[2001:db8::1]:80", ":0", "10.0.0.1:65535"}) {
    EXPECT_EQ(TcpAddress::parse(text)->text(), text);
  }
}

TEST(TcpAddress, AWrongAddressIsRefusedWithTheExpectedForm) {
  EXPECT_EQ(TcpAddress::parse("node7").error().message,
            "\"node7\" is not an address: the port is missing; write host:port, [IPv6]:port or :port");
  EXPECT_EQ(TcpAddress::parse("node7:70000").error().message,
            "\"node7:70000\" is not an address: \"70000\" is not a port from 0 to 65535; write host:port, "
            "[IPv6]:port or "
            ":port");
  for (const char* wrong :
       {"", "::1", "::1:80:zz", "[::1", "[]:80", "[::1]80", "node:", "node:-1", "node:8x"}) {
    EXPECT_EQ(TcpAddress::parse(wrong).code(), Code::invalid_argument) << wrong;
  }
}

TEST(TcpAddress, NumericHostsResolveToThemselves) {
  const auto v4 = TcpAddress{"127.0.0.1", 80}.resolve(TcpAddress::Use::connect).value();
  ASSERT_EQ(v4.size(), 1U);
  EXPECT_EQ(v4[0].text(), "127.0.0.1:80");
  EXPECT_EQ(v4[0].family(), AF_INET);
  const auto v6 = TcpAddress{"::1", 81}.resolve(TcpAddress::Use::connect).value();
  ASSERT_EQ(v6.size(), 1U);
  EXPECT_EQ(v6[0].text(), "[::1]:81");
  EXPECT_EQ(v6[0].port(), 81);
}

TEST(TcpAddress, AnEmptyHostListensOnTheWildcardAndConnectsToLoopback) {
  const auto contains = [](const std::vector<SocketAddress>& addresses, std::string_view text) {
    for (const auto& address : addresses) {
      if (address.text() == text) return true;
    }
    return false;
  };
  EXPECT_TRUE(contains(TcpAddress({"", 5}).resolve(TcpAddress::Use::listen).value(), "0.0.0.0:5"));
  EXPECT_TRUE(contains(TcpAddress({"", 5}).resolve(TcpAddress::Use::connect).value(), "127.0.0.1:5"));
}

TEST(TcpAddress, AHostThatDoesNotExistIsNamedInTheError) {
  const auto refused = TcpAddress{"no such host.invalid", 80}.resolve(TcpAddress::Use::connect);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("no such host.invalid:80"), std::string::npos)
      << refused.error().message;
}

TEST(SocketAddress, TheAddressOfABoundSocketIsReadBack) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = TcpAddress{"127.0.0.1", 0}.resolve(TcpAddress::Use::listen).value().at(0);
  ASSERT_EQ(::bind(fd.get(), address.get(), address.length), 0);
  const SocketAddress bound = SocketAddress::local_of(fd.get()).value();
  EXPECT_NE(bound.port(), 0);
  EXPECT_EQ(bound.text(), fmt::format("127.0.0.1:{}", bound.port()));
  EXPECT_EQ(SocketAddress::peer_of(fd.get()).code(), Code::peer_lost);
  EXPECT_EQ(SocketAddress::local_of(-1).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace
