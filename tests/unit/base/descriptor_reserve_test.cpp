// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_reserve.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

/// A process that may open `free` more descriptors.
class FewDescriptors : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

  void leave(std::uint64_t free) {
    opened_.clear();
    limit_ = 0;
    for (int fd = 0; fd < 4096; ++fd)
      if (::fcntl(fd, F_GETFD) >= 0) limit_ = static_cast<rlim_t>(fd) + 1;
    rlimit tight = before_;
    tight.rlim_cur = limit_ + free;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    // Numbers that are free below the highest one.
    while (true) {
      UniqueFd fd(::dup(0));
      if (!fd || static_cast<rlim_t>(fd.get()) >= limit_) break;
      opened_.push_back(std::move(fd));
    }
  }
  /// Opens one, as accept does.
  static Result<UniqueFd> open_one() {
    UniqueFd fd(::dup(0));
    if (!fd) return os_error(errno, "accept");
    return fd;
  }

  std::vector<UniqueFd> opened_;
  rlim_t limit_ = 0;

 private:
  rlimit before_{};
};

TEST_F(FewDescriptors, a_link_that_leaves_fewer_than_are_kept_is_refused) {
  DescriptorReserve reserve("hub", 10);
  leave(12);
  std::vector<UniqueFd> links;
  for (int link = 0; link < 2; ++link) {
    links.push_back(reserve.accept(open_one).value());
    EXPECT_TRUE(reserve.check()) << link;
  }
  links.push_back(reserve.accept(open_one).value());
  const auto refused = reserve.check();
  ASSERT_EQ(refused.code(), Code::exhausted);
  EXPECT_NE(refused.error().message.find("agent hub has 9 file descriptors left"), std::string::npos)
      << refused.error().message;
  links.pop_back();
  EXPECT_TRUE(reserve.check());
}

TEST_F(FewDescriptors, a_connection_is_accepted_in_place_of_the_spare_and_refused) {
  DescriptorReserve reserve("hub", 0);
  leave(0);
  {
    const auto connection = reserve.accept(open_one);
    ASSERT_TRUE(connection);
    const auto refused = reserve.check();
    ASSERT_EQ(refused.code(), Code::exhausted);
    EXPECT_NE(refused.error().message.find("ulimit -n"), std::string::npos) << refused.error().message;
    EXPECT_EQ(reserve.accept(open_one).code(), Code::exhausted) << "the spare is spent";
  }
  EXPECT_TRUE(reserve.accept(open_one)) << "the spare was taken back";
}

TEST_F(FewDescriptors, the_spare_is_taken_back_if_no_connection_waits) {
  DescriptorReserve reserve("hub", 0);
  leave(0);
  bool full = true;
  const auto accept = [&]() -> Result<UniqueFd> {
    return os_error(std::exchange(full, false) ? EMFILE : EAGAIN, "accept");
  };
  EXPECT_EQ(reserve.accept(accept).code(), Code::would_block);
  EXPECT_EQ(open_one().code(), Code::exhausted);
}

TEST(DescriptorReserve, refusals_are_logged_once_a_second_with_their_number) {
  DescriptorReserve reserve("hub", 0);
  constexpr std::uint64_t second = 1'000'000'000;
  EXPECT_EQ(reserve.count_refusal(5 * second), 1U);
  EXPECT_EQ(reserve.count_refusal(5 * second + 1), 0U);
  EXPECT_EQ(reserve.count_refusal(6 * second - 1), 0U);
  EXPECT_EQ(reserve.count_refusal(6 * second), 3U);
}

}  // namespace
}  // namespace headrace
