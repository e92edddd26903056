// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/kv_pool.hpp"

#include <gmock/gmock.h>

namespace headrace::cli::demo {
namespace {

using ::testing::ElementsAre;

// A model of eight billion parameters: 32 layers, 8 heads of 128 elements for keys and values, 16 tokens a
// page.
constexpr KvShape large{32, 8, 128, 16, 2, DType::bfloat16};

TEST(KvShape, the_bytes_of_a_page_follow_its_element_type) {
  EXPECT_EQ(large.page_bytes(), 65536U);
  KvShape wide = large;
  wide.dtype = DType::float32;
  EXPECT_EQ(wide.page_bytes(), 131072U);
  EXPECT_EQ(large.bytes(), 32U * 2 * 65536);
}

TEST(KvShape, a_note_holds_the_whole_shape_and_a_wrong_note_is_refused) {
  const auto read = read_kv_note(write_kv_note(large));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, large);
  KvShape other = large;
  other.dtype = DType::float16;
  EXPECT_FALSE(*read_kv_note(write_kv_note(other)) == large);
  for (const char* const note :
       {"", "{}", R"({"kv": [1, 1, 1, 1]})", R"({"kv": [1, 1, 1, 1, 1]})",
        R"({"kv": [1, 1, 1, 1, 1], "dtype": "float31"})", R"({"kv": [1, 1, 1, 1, 1], "dtype": 4})"})
    EXPECT_EQ(read_kv_note(note).code(), Code::corrupt) << note;
}

TEST(KvPool, the_view_of_a_layer_has_its_address_type_and_device) {
  const auto pool = KvPool::alone(large, {});
  ASSERT_TRUE(pool);
  const TensorView first = pool->layer(0), last = pool->layer(31);
  EXPECT_EQ(static_cast<const std::byte*>(last.data) - static_cast<const std::byte*>(first.data),
            31 * 2 * 65536);
  EXPECT_EQ(first.shape, Shape({2, 2, 16, 8, 128}));
  EXPECT_EQ(first.dtype, DType::bfloat16);
  EXPECT_EQ(first.device, Device{});
}

TEST(KvPool, pages_are_taken_lowest_first_and_given_back) {
  auto pool = KvPool::alone(large, {});
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->pages_for(17), 2U);
  EXPECT_FALSE(pool->take(3));
  const auto pages = pool->take(2);
  ASSERT_TRUE(pages);
  EXPECT_THAT(*pages, ElementsAre(0, 1));
  pool->give_back(*pages);
  EXPECT_EQ(pool->free_pages(), 2U);
}

}  // namespace
}  // namespace headrace::cli::demo
