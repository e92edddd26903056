// SPDX-License-Identifier: Apache-2.0
#include "base/epoll.hpp"
#include "base/event_fd.hpp"
#include "base/unique_fd.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace headrace {
namespace {

using std::chrono::milliseconds;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

UniqueFd open_null() { return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

TEST(UniqueFd, ADestroyedUniqueFdClosesItsDescriptor) {
  int number = -1;
  {
    const UniqueFd fd = open_null();
    number = fd.get();
    ASSERT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, AMoveLeavesOneOwner) {
  UniqueFd first = open_null();
  const int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), number);
  UniqueFd third = open_null();
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(third.get(), number);
  UniqueFd released(third.release());
  EXPECT_TRUE(is_open(number));
}

TEST(UniqueFd, AnAssignmentToItselfKeepsTheDescriptor) {
  UniqueFd fd = open_null();
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_TRUE(is_open(fd.get()));
}

TEST(UniqueFd, ADuplicateIsCloseOnExecAndOutlivesTheOriginal) {
  UniqueFd fd = open_null();
  Result<UniqueFd> copy = fd.dup();
  ASSERT_TRUE(copy.ok());
  fd.reset();
  EXPECT_EQ(::fcntl(copy->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(UniqueFd().dup().code(), Code::invalid_argument);
}

TEST(EventFd, SignalsBetweenTwoDrainsAddUp) {
  EventFd bell = EventFd::create().value();
  EXPECT_EQ(bell.drain(), 0U);
  bell.signal();
  bell.signal();
  EXPECT_EQ(bell.drain(), 2U);
  EXPECT_EQ(bell.drain(), 0U);
}

TEST(Epoll, EpollReportsTheKeyOfTheDescriptorThatIsReady) {
  Epoll epoll = Epoll::create().value();
  const EventFd bell = EventFd::create().value();
  ASSERT_TRUE(epoll.add(bell.fd(), EPOLLIN, 77).ok());
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(epoll.wait(events, Deadline::after(milliseconds(0))).value(), 0U);
  std::thread ringer([&] { bell.signal(); });
  ASSERT_EQ(epoll.wait(events, Deadline::never()).value(), 1U);
  ringer.join();
  EXPECT_EQ(std::uint64_t{events[0].data.u64}, 77U);
  EXPECT_NE(events[0].events & EPOLLIN, 0U);
  ASSERT_TRUE(epoll.modify(bell.fd(), EPOLLIN, 78).ok());
  ASSERT_EQ(epoll.wait(events, Deadline::never()).value(), 1U);
  EXPECT_EQ(std::uint64_t{events[0].data.u64}, 78U);
  ASSERT_TRUE(epoll.remove(bell.fd()).ok());
  EXPECT_EQ(epoll.wait(events, Deadline::after(milliseconds(0))).value(), 0U);
}

TEST(Epoll, AWaitEndsAtItsDeadlineAndNotBefore) {
  Epoll epoll = Epoll::create().value();
  std::array<epoll_event, 1> events{};
  const Deadline deadline = Deadline::after(milliseconds(2));
  EXPECT_EQ(epoll.wait(events, deadline).value(), 0U);
  EXPECT_TRUE(deadline.expired());
}

TEST(Epoll, AddingADescriptorThatIsNotOpenFailsAndNamesIt) {
  Epoll epoll = Epoll::create().value();
  EXPECT_EQ(epoll.add(-1, EPOLLIN, 0).error().message,
            "watch descriptor -1 in epoll: bad file descriptor (errno 9)");
}

}  // namespace
}  // namespace headrace
