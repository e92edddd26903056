// SPDX-License-Identifier: Apache-2.0
// The check of `headrace bench coll` finds wrong elements, and takes right ones of every type and reduction.
#include "cli/bench/coll_elements.hpp"

#include <headrace/comm.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::cli {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t count = 64;

class EveryType : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] static DType dtype() { return static_cast<DType>(GetParam()); }
  static Bytes input(const CollElements& elements, int rank) {
    Bytes bytes(count * element_bytes(dtype()));
    elements.fill(bytes, rank);
    return bytes;
  }
};

TEST_P(EveryType, ACopyIsRightAndAFlippedBitIsWrong) {
  const CollElements elements(dtype(), ReduceOp::sum, 3, 7);
  Bytes got = input(elements, 1);
  const ExpectedPart part{0, count, 1, 0};
  EXPECT_EQ(elements.wrong(got, part), 0U);
  got.back() ^= std::byte{1};
  EXPECT_EQ(elements.wrong(got, part), 1U);
  EXPECT_GT(elements.wrong(input(elements, 2), part), count / 4) << "another rank's elements";
  const CollElements fresh(dtype(), ReduceOp::sum, 3, 8);
  EXPECT_GT(fresh.wrong(input(elements, 1), part), count / 4) << "elements of the run before";
}

TEST_P(EveryType, APartBeginsWhereItSays) {
  const CollElements elements(dtype(), ReduceOp::sum, 2, 7);
  const Bytes all = input(elements, 0);
  const std::size_t width = element_bytes(dtype());
  Bytes got(all.size());
  std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(8 * width), 16 * width,
              got.begin() + static_cast<std::ptrdiff_t>(4 * width));
  EXPECT_EQ(elements.wrong(got, {4, 16, 0, 8}), 0U);
  EXPECT_GT(elements.wrong(got, {4, 16, 0, 9}), 0U);
}

INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::Range(0, static_cast<int>(dtype_count)),
                         [](const auto& type) {
                           return std::string(dtype_name(static_cast<DType>(type.param)));
                         });

/// Calls body(comm) on a thread for each of three ranks.
void on_three_ranks(const std::function<void(Comm& comm)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&body, rank] {
      auto comm = Comm::open({.rank = rank, .size = 3, .meeting = "memory:coll_elements"});
      ASSERT_TRUE(comm) << comm.error().message;
      body(*comm);
    });
}

/// What all ranks' elements become on the host.
Result<Bytes> reduced(Comm& comm, const CollElements& elements, DType dtype, ReduceOp op, int rank) {
  Bytes bytes(count * element_bytes(dtype));
  elements.fill(bytes, rank);
  if (auto work = comm.all_reduce(Elements{bytes.data(), count, dtype}, op); !work) return work.error();
  return bytes;
}

TEST(CollElementsOf, EveryReductionOfTheHostIsRightAndAnotherOneIsNot) {
  on_three_ranks([](Comm& comm) {
    for (std::size_t type = 0; type < dtype_count; ++type) {
      for (int kind = ReduceOp::sum; kind <= ReduceOp::premul_sum; ++kind) {
        const auto dtype = static_cast<DType>(type);
        const auto op = static_cast<ReduceOp::Kind>(kind);
        const std::string name = fmt::format("{} of {}", reduce_op_name(op), dtype_name(dtype));
        const CollElements elements(dtype, op, 3, 11);
        const ReduceOp scaled(op, op == ReduceOp::premul_sum ? premul_factor : 1);
        const auto got = reduced(comm, elements, dtype, scaled, comm.rank());
        ASSERT_EQ(reduces(op, dtype), got.ok()) << name;
        if (!got) continue;
        const ExpectedPart part{0, count, reduction_of_all, 0};
        EXPECT_EQ(elements.wrong(*got, part), 0U) << name;
        EXPECT_GT(elements.wrong(*got, {0, count - 1, reduction_of_all, 1}), 0U) << name << ", one further";
        // Rank 2 brings what rank 1 has.
        const auto without = reduced(comm, elements, dtype, scaled, std::min(comm.rank(), 1));
        EXPECT_GT(elements.wrong(*without, part), 0U) << name << " without the last rank";
      }
    }
  });
}

TEST(CollElementsOf, SumsThatTravelRoundedMayDifferByTheSteps) {
  const CollElements exact(DType::float32, ReduceOp::sum, 2, 3),
      rounded(DType::float32, ReduceOp::sum, 2, 3, DType::bfloat16);
  std::vector<float> a(count), b(count);
  exact.fill(std::as_writable_bytes(std::span(a)), 0);
  exact.fill(std::as_writable_bytes(std::span(b)), 1);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &b[i], sizeof bits);
    bits &= 0xFFFF0000;
    std::memcpy(&b[i], &bits, sizeof bits);
    a[i] += b[i];
  }
  const ExpectedPart part{0, count, reduction_of_all, 0};
  EXPECT_EQ(rounded.wrong(std::as_bytes(std::span(a)), part), 0U);
  EXPECT_GT(exact.wrong(std::as_bytes(std::span(a)), part), count / 2);
}

}  // namespace
}  // namespace headrace::cli
