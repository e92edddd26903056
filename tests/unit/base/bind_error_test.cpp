// SPDX-License-Identifier: Apache-2.0
#include "base/bind_error.hpp"

#include "base/unique_fd.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace headrace {
namespace {

SocketAddress address_of(const std::string& host, std::uint16_t port) {
  return TcpAddress{host, port}.resolve(TcpAddress::Use::listen).value().at(0);
}

/// The error of a bind by the system.
Error refused_by_the_system(const SocketAddress& address) {
  const UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_LT(::bind(fd.get(), address.get(), address.length), 0);
  return bind_error(errno, address);
}

TEST(BindError, a_port_of_another_socket_is_said_with_what_to_do) {
  const UniqueFd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = address_of("127.0.0.1", 0);
  ASSERT_EQ(::bind(first.get(), any.get(), any.length), 0);
  const SocketAddress taken = SocketAddress::local_of(first.get()).value();
  const Error error = refused_by_the_system(taken);
  EXPECT_EQ(error.code, Code::invalid_argument);
  EXPECT_EQ(error.message,
            "bind to " + taken.text() +
                ": address already in use (errno 98); another process has this port: give another "
                "one, or 0 for a free one");
}

TEST(BindError, an_address_of_another_machine_is_said_with_what_to_do) {
  const Error error = refused_by_the_system(address_of("203.0.113.9", 0));
  EXPECT_EQ(error.code, Code::invalid_argument);
  EXPECT_EQ(error.message,
            "bind to 203.0.113.9:0: cannot assign requested address (errno 99); no network interface of this "
            "machine has this address: give one that it has, or 0.0.0.0 or [::] for all");
}

TEST(BindError, other_errors_have_the_systems_text_alone) {
  EXPECT_EQ(bind_error(ENOBUFS, address_of("127.0.0.1", 7)).message,
            "bind to 127.0.0.1:7: no buffer space available (errno 105)");
  EXPECT_NE(bind_error(EACCES, address_of("127.0.0.1", 7)).message.find("ports below 1024"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
