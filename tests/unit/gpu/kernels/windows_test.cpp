// SPDX-License-Identifier: Apache-2.0
#include "unit/gpu/kernels/kernels_test.hpp"

#include <headrace/plugin/kernels/windows_v1.h>

#include <cstdint>
#include <cstring>

namespace headrace::gpu {
namespace {

/// Words in GPU memory, and an abort word and a status in host memory.
class WindowsTest : public KernelsTest {
 protected:
  [[nodiscard]] std::uint64_t& word(std::size_t index = 0) {
    return reinterpret_cast<std::uint64_t*>(words.address())[index];
  }
  [[nodiscard]] std::uint64_t& abort() { return *reinterpret_cast<std::uint64_t*>(host.bytes().data()); }
  [[nodiscard]] headrace_windows_status_v1& status() {
    return *reinterpret_cast<headrace_windows_status_v1*>(host.bytes().data() + 64);
  }
  [[nodiscard]] headrace_windows_word_v1 args(std::int32_t kind, std::uint64_t value, std::size_t index = 0) {
    headrace_windows_word_v1 made{};
    made.struct_size = sizeof made;
    made.word = words.address() + index * sizeof(std::uint64_t);
    made.value = value;
    made.kind = kind;
    made.rank = 1;
    made.peer = 2;
    made.abort = host.address();
    made.status = host.address() + 64;
    made.timeout_ns = -1;
    return made;
  }
  template <auto Entry>
  [[nodiscard]] cuda::Outcome launch(const headrace_windows_word_v1& given, const Stream& on) const {
    return family.launch<Entry>(given, on.handle());
  }
  /// Runs a launch to its end; the reason in its status.
  template <auto Entry>
  std::uint64_t run(const headrace_windows_word_v1& given) {
    status() = {};
    EXPECT_EQ(launch<Entry>(given, stream), cuda::Outcome::success);
    EXPECT_TRUE(stream.wait_idle().ok());
    return status().reason;
  }
  std::uint64_t wait(std::int32_t kind, std::uint64_t value) {
    headrace_windows_word_v1 given = args(kind, value);
    given.timeout_ns = 0;
    return run<&headrace_windows_v1::wait_signal>(given);
  }

  DeviceMemory words = DeviceMemory::allocate(device, 64).value();
  PinnedMemory host = PinnedMemory::allocate(device, 256).value();
  const KernelFamily<headrace_windows_v1> family =
      KernelFamily<headrace_windows_v1>::of(kernels, HEADRACE_WINDOWS_FAMILY, HEADRACE_WINDOWS_FAMILY_VERSION)
          .value();
};

TEST_F(WindowsTest, signals_add_to_a_word_or_set_it) {
  word() = 5;
  word(1) = 9;
  run<&headrace_windows_v1::signal>(args(HEADRACE_COMM_SIGNAL_ADD, 3));
  EXPECT_EQ(word(), 8U);
  run<&headrace_windows_v1::signal>(args(HEADRACE_COMM_SIGNAL_SET, 2));
  EXPECT_EQ(word(), 2U);
  EXPECT_EQ(word(1), 9U);
}

TEST_F(WindowsTest, every_comparison_holds_for_its_values_alone) {
  struct Case {
    std::int32_t kind;
    bool below, at, above;  // whether 4, 5 and 6 compare so with 5
  };
  for (const auto& [kind, below, at, above] :
       {Case{HEADRACE_COMM_EQ, false, true, false}, Case{HEADRACE_COMM_NE, true, false, true},
        Case{HEADRACE_COMM_LT, true, false, false}, Case{HEADRACE_COMM_LE, true, true, false},
        Case{HEADRACE_COMM_GT, false, false, true}, Case{HEADRACE_COMM_GE, false, true, true}}) {
    const bool expected[] = {below, at, above};
    for (std::uint64_t seen = 4; seen <= 6; ++seen) {
      word() = seen;
      const std::uint64_t reason = expected[seen - 4] ? HEADRACE_WINDOWS_DONE : HEADRACE_WINDOWS_TIMED_OUT;
      EXPECT_EQ(wait(kind, 5), reason) << "comparison " << kind << " of " << seen;
      EXPECT_EQ(status().seen, seen);
      EXPECT_EQ(word(), seen);
    }
  }
}

TEST_F(WindowsTest, a_wait_that_takes_takes_one) {
  word() = 2;
  EXPECT_EQ(wait(HEADRACE_COMM_TAKE, 0), HEADRACE_WINDOWS_DONE);
  EXPECT_EQ(status().seen, 2U);
  EXPECT_EQ(wait(HEADRACE_COMM_TAKE, 0), HEADRACE_WINDOWS_DONE);
  EXPECT_EQ(word(), 0U);
  EXPECT_EQ(wait(HEADRACE_COMM_TAKE, 0), HEADRACE_WINDOWS_TIMED_OUT);
  EXPECT_EQ(word(), 0U);
}

TEST_F(WindowsTest, a_wait_that_is_late_says_who_waited_for_whom_and_what_it_saw) {
  word() = 7;
  headrace_windows_word_v1 given = args(HEADRACE_COMM_GE, 8);
  given.timeout_ns = 1'000'000;
  EXPECT_EQ(run<&headrace_windows_v1::wait_signal>(given), HEADRACE_WINDOWS_TIMED_OUT);
  EXPECT_EQ(status().rank, 1U);
  EXPECT_EQ(status().peer, 2U);
  EXPECT_EQ(status().expected, 8U);
  EXPECT_EQ(status().seen, 7U);
}

TEST_F(WindowsTest, a_wait_sees_a_signal_of_another_stream_and_leaves_at_an_abort) {
  const Stream other = Stream::make(device).value();
  word() = 0;
  status() = {};
  ASSERT_EQ(launch<&headrace_windows_v1::wait_signal>(args(HEADRACE_COMM_GE, 1), stream),
            cuda::Outcome::success);
  ASSERT_EQ(launch<&headrace_windows_v1::signal>(args(HEADRACE_COMM_SIGNAL_ADD, 1), other),
            cuda::Outcome::success);
  ASSERT_TRUE(stream.wait_idle().ok());
  EXPECT_EQ(status().reason, HEADRACE_WINDOWS_DONE);
  abort() = 1;
  EXPECT_EQ(run<&headrace_windows_v1::wait_signal>(args(HEADRACE_COMM_GE, 2)), HEADRACE_WINDOWS_ABORTED);
}

TEST_F(WindowsTest, additions_return_the_value_before_and_wrap_around_in_their_width) {
  word() = 0x1'ffff'fffeU;
  EXPECT_EQ(run<&headrace_windows_v1::atomic_add>(args(4, 3)), HEADRACE_WINDOWS_DONE);
  EXPECT_EQ(status().seen, 0xffff'fffeU);
  EXPECT_EQ(word(), 0x1'0000'0001U);  // the word beside it is left
  EXPECT_EQ(run<&headrace_windows_v1::atomic_add>(args(8, UINT64_MAX)), HEADRACE_WINDOWS_DONE);
  EXPECT_EQ(status().seen, 0x1'0000'0001U);
  EXPECT_EQ(word(), 0x1'0000'0000U);
}

TEST_F(WindowsTest, what_cannot_be_is_refused) {
  const auto refused = [&](auto launched) { EXPECT_EQ(launched, cuda::Outcome::invalid_value); };
  refused(launch<&headrace_windows_v1::signal>(args(2, 1), stream));
  refused(launch<&headrace_windows_v1::wait_signal>(args(HEADRACE_COMM_TAKE + 1, 1), stream));
  refused(launch<&headrace_windows_v1::atomic_add>(args(2, 1), stream));
  headrace_windows_word_v1 given = args(HEADRACE_COMM_GE, 1);
  given.word += 4;
  refused(launch<&headrace_windows_v1::wait_signal>(given, stream));
  given = args(HEADRACE_COMM_GE, 1);
  given.status = 0;
  refused(launch<&headrace_windows_v1::wait_signal>(given, stream));
  given = args(HEADRACE_COMM_SIGNAL_ADD, 1);
  given.struct_size = 8;
  refused(launch<&headrace_windows_v1::signal>(given, stream));
}

}  // namespace
}  // namespace headrace::gpu
