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

TEST(KvPool, a_rank_gets_its_heads_of_every_token) {
  constexpr KvShape shape{2, 4, 8, 3, 5, DType::float32};
  auto whole = KvPool::alone(shape, {});
  auto part = KvPool::alone(shape.split(2), {});
  ASSERT_TRUE(whole && part);
  constexpr std::size_t all = 4 * 8, half = 2 * 8, tokens = 2 * 5 * 2 * 3;
  auto* from = static_cast<float*>(const_cast<void*>(whole->layer(0).data));
  for (std::size_t i = 0; i < tokens * all; ++i) from[i] = static_cast<float>(i);
  whole->copy_heads({1, 2}, *part);
  const auto* to = static_cast<const float*>(part->layer(0).data);
  for (std::size_t i = 0; i < tokens * half; ++i) {
    const std::size_t token = i / half, from_its_second_half = token * all + half + i % half;
    ASSERT_EQ(to[i], static_cast<float>(from_its_second_half)) << i;
  }
}

TEST(LayerPages, the_heads_of_a_rank_are_a_view_of_each_page) {
  constexpr KvShape shape{2, 4, 8, 3, 5, DType::float32};
  const PageSpec pages = layer_pages(RegionId{7}, shape, 1, {1, 2});
  const auto& uniform = std::get<UniformPages>(pages.pages());
  EXPECT_EQ(uniform.base_bytes, shape.layer_bytes() + shape.token_bytes() / 2);
  EXPECT_EQ(uniform.stride_bytes, shape.page_bytes());
  ASSERT_NE(pages.view(), nullptr);
  EXPECT_THAT(pages.view()->shape, ElementsAre(2 * 3));
  EXPECT_EQ(pages.view()->item_bytes * 2 * 3, shape.split(2).page_bytes());
  EXPECT_EQ(layer_pages(RegionId{7}, shape, 1).view(), nullptr);
}

TEST(Sequence, tokens_get_slots_in_the_pages_in_their_order) {
  Sequence sequence;
  sequence.pages = {4, 0};
  sequence.add_slots(3, {1, 1, 1, 2, 5, DType::float32});
  EXPECT_THAT(sequence.slots, ElementsAre(8, 9, 0));
}

}  // namespace
}  // namespace headrace::cli::demo
