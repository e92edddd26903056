// SPDX-License-Identifier: Apache-2.0
// Posts of more than 4 GiB, in memory that is few bytes mapped again and again, and of a million pages.
#include "unit/fabric/two_fabrics.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

namespace headrace::test_fabric {
namespace {

constexpr std::uint64_t window = 64 << 20;

/// `windows` times the same bytes, one behind the other.
class Repeated {
 public:
  explicit Repeated(std::uint64_t windows) : bytes_(windows * window), fd_(::memfd_create("repeated", 0)) {
    EXPECT_EQ(::ftruncate(fd_, window), 0);
    all_ = static_cast<std::uint8_t*>(
        ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::uint64_t at = 0; at < bytes_; at += window)
      EXPECT_NE(::mmap(all_ + at, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0),
                MAP_FAILED);
  }
  ~Repeated() {
    ::munmap(all_, bytes_);
    ::close(fd_);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  [[nodiscard]] MemoryRange range() const { return {.address = all_, .length_bytes = bytes_}; }
  [[nodiscard]] std::uint8_t* data() const { return all_; }

 private:
  const std::uint64_t bytes_;
  const int fd_;
  std::uint8_t* all_ = nullptr;
};

TEST(FabricLarge_slow, a_write_of_more_than_4_GiB_has_all_its_bytes_and_is_counted_once) {
  constexpr std::uint64_t windows = 66;  // 4 GiB and 128 MiB
  Fabric here = open_at({"127.0.0.1", "127.0.0.2"}), there = open_at({"127.0.0.1", "127.0.0.2"});
  const Repeated source(windows), target(windows);
  for (std::uint64_t i = 0; i < window; ++i)
    source.data()[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
  const auto from = value_of(here.register_memory(source.range()));
  const auto to = value_of(there.register_memory(target.range(), FabricAccess::writable));
  auto arrivals = value_of(there.expect({1, 0}, 1));
  FabricPost post;
  post.immediate = {1, 0};
  const std::uint64_t bytes = windows * window - 3;
  const auto work = value_of(here.write(from, 0, to.descriptor(), 3, bytes, post));
  EXPECT_TRUE(work.wait(std::chrono::minutes(20)).ok()) << work.error().message;
  EXPECT_TRUE(arrivals.wait(long_enough).ok());
  EXPECT_EQ(here.telemetry().counters.at("fabric.127.0.0.1.written_bytes") +
                here.telemetry().counters.at("fabric.127.0.0.2.written_bytes"),
            bytes);
  EXPECT_EQ(0, std::memcmp(target.data() + 3, source.data(), window - 3));
  EXPECT_EQ(arrivals.remove(), 0U);
}

TEST(FabricLarge_slow, a_million_pages_are_one_post) {
  constexpr std::uint64_t count = 1'000'000;
  TwoFabrics two(count * 4);
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), two.random);
  FabricPages there;
  there.indices = PageNumbers(order);
  auto arrivals = value_of(two.there.expect({1, 0}, count));
  FabricPost post;
  post.immediate = {1, 0};
  post.count_by = FabricCountBy::page;
  expect_done(two.here.write_pages(two.here_block->memory, {}, two.target(), there, 4, count, post));
  EXPECT_TRUE(arrivals.wait(long_enough).ok());
  for (std::size_t page = 0; page < count; ++page)
    ASSERT_EQ(0, std::memcmp(two.there_block->bytes.data() + order[page] * 4,
                             two.here_block->bytes.data() + page * 4, 4));
}

}  // namespace
}  // namespace headrace::test_fabric
