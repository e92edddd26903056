// SPDX-License-Identifier: Apache-2.0
// Registered tensors on backends to which registering means nothing: what is refused, and who keeps the
// memory.
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace::test {
namespace {

using testing::HasSubstr;

class RegisteredOver : public testing::TestWithParam<std::string> {
 protected:
  static Comm open() {
    CommOptions options = rank_options(0, 1, unique_comm_name());
    options.backend = GetParam();
    return must(Comm::open(options));
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RegisteredOver, testing::Values("host", "lazy", "fake", "auto"),
                         [](const auto& one) { return one.param; });

TEST_P(RegisteredOver, a_tensor_keeps_its_owner_until_it_is_taken_back) {
  Comm comm = open();
  std::vector<float> memory(8);
  auto owner = std::make_shared<int>();
  must(comm.tensor_register(memory, owner));
  EXPECT_EQ(owner.use_count(), 2);
  ok(comm.all_reduce(memory, ReduceOp::sum));
  must(comm.tensor_deregister(memory));
  EXPECT_EQ(owner.use_count(), 1);
  must(comm.tensor_register(memory));
}

TEST_P(RegisteredOver, owners_go_with_the_communicator) {
  std::vector<float> memory(8);
  auto owner = std::make_shared<int>();
  {
    Comm comm = open();
    must(comm.tensor_register(memory, owner));
    must(comm.finalize());
    EXPECT_EQ(owner.use_count(), 1);
  }
  Comm comm = open();
  must(comm.tensor_register(memory, owner));
  comm.close();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_P(RegisteredOver, a_tensor_is_registered_once_and_taken_back_as_it_was) {
  Comm comm = open();
  std::vector<float> memory(8);
  EXPECT_THAT(comm.tensor_deregister(memory).error().message, HasSubstr("0 tensors are: give one of these"));
  must(comm.tensor_register(memory));
  const auto again = comm.tensor_register(memory);
  EXPECT_EQ(again.code(), Code::invalid_argument);
  EXPECT_THAT(again.error().message, HasSubstr("registered already: call tensor_deregister first"));
  const auto shorter = comm.tensor_deregister({memory.data(), 4, DType::int32});
  EXPECT_EQ(shorter.code(), Code::invalid_argument);
  EXPECT_THAT(shorter.error().message, HasSubstr("is registered as 8 float32, and 4 int32 is given"));
  must(comm.tensor_deregister(memory));
}

TEST_P(RegisteredOver, tensors_without_elements_may_be_several) {
  Comm comm = open();
  const Elements none(nullptr, 0, DType::float32);
  must(comm.tensor_register(none));
  must(comm.tensor_register(none));
  must(comm.tensor_deregister(none));
  must(comm.tensor_deregister(none));
  EXPECT_EQ(comm.tensor_deregister(none).code(), Code::invalid_argument);
}

TEST_P(RegisteredOver, memory_that_cannot_be_is_refused) {
  Comm comm = open();
  float one = 0;
  EXPECT_THAT(comm.tensor_register({nullptr, 4, DType::float32}).error().message,
              HasSubstr("4 elements and a null address"));
  EXPECT_THAT(comm.tensor_register({&one, SIZE_MAX / 2, DType::float32}).error().message,
              HasSubstr("more than any memory"));
  EXPECT_THAT(comm.tensor_register({&one, 1, static_cast<DType>(99)}).error().message,
              HasSubstr("element type 99, which does not exist"));
}

TEST_P(RegisteredOver, nothing_is_registered_among_calls_that_are_kept_or_after_the_end) {
  Comm comm = open();
  std::vector<float> memory(8);
  must(comm.start_coalescing());
  EXPECT_THAT(comm.tensor_register(memory).error().message, HasSubstr("call end_coalescing first"));
  must(comm.cancel_coalescing());
  must(comm.tensor_register(memory));
  comm.abort("enough");
  EXPECT_THAT(comm.tensor_deregister(memory).error().message, HasSubstr("enough"));
  comm.close();
  EXPECT_FALSE(comm.tensor_register(memory).ok());
}

TEST(Registered, tensors_of_ranks_differ_in_length) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> memory(static_cast<std::size_t>(4 + comm.rank()), 1);
    must(comm.tensor_register(memory));
    ok(comm.all_reduce(Elements(memory.data(), 4, DType::float32), ReduceOp::sum));
    EXPECT_EQ(memory[3], 2);
    must(comm.tensor_deregister(memory));
  });
}

}  // namespace
}  // namespace headrace::test
