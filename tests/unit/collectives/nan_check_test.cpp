// SPDX-License-Identifier: Apache-2.0
// Operations on elements that are not numbers are refused.
#include "ranks.hpp"

#include <headrace/nan_check.hpp>

#include <gmock/gmock.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>

namespace headrace::test {
namespace {

using testing::HasSubstr;

constexpr float nan32 = std::numeric_limits<float>::quiet_NaN();

CommOptions one_rank() {
  CommOptions options;
  options.hints = {{"backends", "shm"}};
  return options;
}

TEST(NanCheck, names_operation_input_and_element_and_the_communicator_goes_on) {
  with_ranks(2, [](Comm& comm) {
    comm.add_hooks(nan_check(comm));
    std::vector<float> one(10'000, 1), other(10'000, 2), output(10'000);
    other[9'999] = nan32;
    const std::vector<ConstElements> inputs{one, other};
    const auto refused = comm.reduce_scatter(output, inputs, ReduceOp::sum);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("reduce_scatter of \"" + comm.name() +
                                                   "\": element 9999 of 10000 in input 1 (float32) is NaN"));
    other[9'999] = 0;
    ok(comm.reduce_scatter(output, inputs, ReduceOp::sum));
    ok(comm.barrier());
  });
}

/// What the check says to `bits` as the third of five elements; the others are zero.
template <class Bits>
Code code_for(Comm& comm, DType dtype, Bits bits) {
  std::vector<Bits> elements(5), output(5);
  elements[2] = bits;
  const auto result =
      comm.all_gather_single(Elements(output.data(), 5, dtype), ConstElements(elements.data(), 5, dtype));
  if (!result) {
    EXPECT_THAT(result.error().message, HasSubstr("element 2 of 5"));
  }
  return result.code();
}

TEST(NanCheck, knows_the_nans_of_each_type_and_takes_infinities_and_largest_numbers) {
  Comm comm = must(Comm::open(one_rank()));
  comm.add_hooks(nan_check(comm));
  const auto check = [&](DType dtype, auto nan, auto largest, auto sign) {
    using Bits = decltype(nan);
    for (const Bits bits : {nan, static_cast<Bits>(nan | sign)})
      EXPECT_EQ(code_for(comm, dtype, bits), Code::invalid_argument) << dtype_name(dtype);
    for (const Bits bits : {largest, static_cast<Bits>(largest | sign), sign})
      EXPECT_EQ(code_for(comm, dtype, bits), Code::ok) << dtype_name(dtype);
  };
  check(DType::float64, std::uint64_t{0x7ff0'0000'0000'0001}, std::uint64_t{0x7ff0'0000'0000'0000},
        std::uint64_t{1} << 63);
  check(DType::float32, std::uint32_t{0x7f80'0001}, std::uint32_t{0x7f80'0000}, std::uint32_t{1} << 31);
  check(DType::float16, std::uint16_t{0x7c01}, std::uint16_t{0x7c00}, std::uint16_t{0x8000});
  check(DType::bfloat16, std::uint16_t{0x7f81}, std::uint16_t{0x7f80}, std::uint16_t{0x8000});
  check(DType::float8_e4m3fn, std::uint8_t{0x7f}, std::uint8_t{0x7e}, std::uint8_t{0x80});
  check(DType::float8_e5m2, std::uint8_t{0x7d}, std::uint8_t{0x7c}, std::uint8_t{0x80});
  check(DType::float8_e5m2, std::uint8_t{0x7f}, std::uint8_t{0x7c}, std::uint8_t{0x80});
  EXPECT_EQ(code_for(comm, DType::uint8, std::uint8_t{0xff}), Code::ok);
  EXPECT_EQ(code_for(comm, DType::int32, std::uint32_t{0x7fff'ffff}), Code::ok);
}

TEST(NanCheck, counts_complex_numbers_and_looks_at_both_parts) {
  Comm comm = must(Comm::open(one_rank()));
  comm.add_hooks(nan_check(comm));
  std::vector<std::complex<double>> elements(5);
  elements[3] = {0, std::numeric_limits<double>::quiet_NaN()};
  const auto refused = comm.all_reduce(Elements(elements.data(), 5, DType::complex128), ReduceOp::sum);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("element 3 of 5 in input 0 (complex128)"));
}

/// Memory that must not be read on this rank has a NaN.
TEST(NanCheck, looks_at_nothing_that_the_operation_only_writes_on_this_rank) {
  with_ranks(2, [](Comm& comm) {
    comm.add_hooks(nan_check(comm));
    const bool root = comm.rank() == 0;
    std::vector<float> mine{root ? 1.F : nan32}, clean{1}, room{nan32}, other_room{nan32};
    ok(comm.broadcast(mine, 0));
    EXPECT_EQ(mine[0], 1);
    std::vector<Elements> outputs;
    std::vector<ConstElements> inputs;
    if (root) outputs = {Elements(room), Elements(other_room)};
    if (root) inputs = {ConstElements(clean), ConstElements(clean)};
    ok(comm.gather(outputs, clean, 0));
    room = {nan32};
    ok(comm.scatter(room, inputs, 0));
    room = {nan32};
    root ? ok(comm.send(clean, 1)) : ok(comm.recv(room, 0));
    std::vector<float> both{nan32, nan32};
    ok(comm.all_gather_single(both, clean));
  });
}

TEST(NanCheck, refuses_the_root_of_a_broadcast_and_every_rank_of_a_reduce) {
  with_ranks(2, [](Comm& comm) {
    comm.add_hooks(nan_check(comm));
    std::vector<float> elements{0, nan32};
    EXPECT_EQ(comm.broadcast(elements, comm.rank()).code(), Code::invalid_argument);
    EXPECT_EQ(comm.reduce(elements, 0, ReduceOp::sum).code(), Code::invalid_argument);
    EXPECT_EQ(comm.send(elements, 1 - comm.rank()).code(), Code::invalid_argument);
    ok(comm.barrier());
  });
}

}  // namespace
}  // namespace headrace::test
