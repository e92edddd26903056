// SPDX-License-Identifier: Apache-2.0
#include "choice/rank_handle.hpp"

#include <gmock/gmock.h>

#include <string>

namespace headrace::choice {
namespace {

RankHandle some_handle() {
  return {"NVIDIA H200", "GPU-1", "a file", "{}", {{"nccl", std::string("\0\xff bytes", 8)}, {"other", ""}}};
}

TEST(ChoiceRankHandle, comes_back_as_it_was) {
  const RankHandle sent = some_handle();
  const auto come = RankHandle::decode(sent.encode());
  ASSERT_TRUE(come);
  EXPECT_EQ(come->gpu, sent.gpu);
  EXPECT_EQ(come->uuid, sent.uuid);
  EXPECT_EQ(come->from, sent.from);
  EXPECT_EQ(come->table, sent.table);
  EXPECT_EQ(come->backends, sent.backends);
}

TEST(ChoiceRankHandle, of_another_backend_or_cut_short_is_refused) {
  const std::string whole = some_handle().encode();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(RankHandle::decode(whole.substr(0, length))) << length;
  const auto other = RankHandle::decode("memory:0123");
  EXPECT_EQ(other.code(), Code::invalid_argument);
  EXPECT_EQ(other.error().message, "a handle of 11 bytes is none that init_handle of this backend returned");
}

}  // namespace
}  // namespace headrace::choice
