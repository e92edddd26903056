// SPDX-License-Identifier: Apache-2.0
#include "memory/faultless_copy.hpp"

#include "support/forbidden_call.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <vector>

namespace headrace {
namespace {

/// Two pages of the system. Accesses to the second are limited by `protection`.
class PagesWithAnEnd {
 public:
  explicit PagesWithAnEnd(int protection) {
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(::mprotect(end(), page_, protection), 0);
  }
  ~PagesWithAnEnd() { ::munmap(base_, 2 * page_); }
  PagesWithAnEnd(const PagesWithAnEnd&) = delete;
  PagesWithAnEnd& operator=(const PagesWithAnEnd&) = delete;
  [[nodiscard]] unsigned char* end() const { return static_cast<unsigned char*>(base_) + page_; }

 private:
  std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* base_ = ::mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

/// Contiguous bytes, and the places of an array that are to hold them: more places than one system call
/// takes, of zero to six bytes each.
struct Scattered {
  Scattered() {
    std::iota(whole.begin(), whole.end(), static_cast<unsigned char>(1));
    std::size_t at = 0;
    for (std::size_t i = 0; at < whole.size(); ++i) {
      const std::size_t bytes = std::min(i % 7, whole.size() - at);
      pieces.push_back({apart.data() + 2 * at + 1, bytes});
      at += bytes;
    }
  }
  /// Whether the places hold the bytes and no byte beside them has changed.
  [[nodiscard]] bool hold_the_row() const {
    std::vector<unsigned char> expected(apart.size());
    std::size_t at = 0;
    for (const iovec& piece : pieces) {
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(at), piece.iov_len,
                  expected.begin() + (static_cast<const unsigned char*>(piece.iov_base) - apart.data()));
      at += piece.iov_len;
    }
    return apart == expected;
  }
  std::vector<unsigned char> whole = std::vector<unsigned char>(10'001);
  std::vector<unsigned char> apart = std::vector<unsigned char>(2 * 10'001 + 1);
  std::vector<iovec> pieces;
};

bool scatters_and_gathers() {
  Scattered scattered;
  if (!scatter_unless_it_faults(scattered.pieces, scattered.whole.data()) || !scattered.hold_the_row())
    return false;
  std::vector<unsigned char> again(scattered.whole.size());
  return gather_unless_it_faults(again.data(), scattered.pieces) && again == scattered.whole;
}

TEST(FaultlessCopy, more_places_than_one_system_call_takes_are_scattered_and_gathered) {
  EXPECT_TRUE(scatters_and_gathers());
}

TEST(FaultlessCopy, the_copy_works_where_a_filter_forbids_the_system_call) {
  for (const int number : {SYS_process_vm_readv, SYS_process_vm_writev})
    for (const int error : {EPERM, ENOSYS})
      EXPECT_TRUE(test::without_call(number, error, scatters_and_gathers)) << number << ' ' << error;
}

TEST(FaultlessCopy, a_copy_from_or_to_protected_memory_fails_without_a_signal) {
  unsigned char bytes[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  {
    const PagesWithAnEnd pages(PROT_NONE);
    EXPECT_TRUE(copy_unless_it_faults(pages.end() - 10, bytes, 10));
    EXPECT_EQ(pages.end()[-1], 10);
    EXPECT_FALSE(copy_unless_it_faults(pages.end() - 5, bytes, 10));
    EXPECT_FALSE(copy_unless_it_faults(bytes, pages.end() - 5, 10));
    EXPECT_FALSE(copy_unless_it_faults(pages.end(), bytes, 1));
  }
  const PagesWithAnEnd pages(PROT_READ);
  EXPECT_FALSE(copy_unless_it_faults(pages.end() - 5, bytes, 10));
  EXPECT_TRUE(copy_unless_it_faults(bytes, pages.end() - 5, 10));
  const iovec pieces[] = {{pages.end() - 3, 3}, {pages.end() + 1, 2}};
  EXPECT_TRUE(gather_unless_it_faults(bytes, pieces));
  EXPECT_FALSE(scatter_unless_it_faults(pieces, bytes));
}

}  // namespace
}  // namespace headrace
