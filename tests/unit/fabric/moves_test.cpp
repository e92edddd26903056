// SPDX-License-Identifier: Apache-2.0
// Every operation against a plain copy, with fresh random bytes, sizes and places.
#include "unit/fabric/two_fabrics.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace::test_fabric {
namespace {

std::uint64_t below(std::mt19937_64& random, std::uint64_t end) { return end == 0 ? 0 : random() % end; }

struct Range {
  std::uint64_t here = 0, there = 0, bytes = 0;
};

Range some_range(TwoFabrics& two, std::uint64_t most) {
  const std::uint64_t all = two.here_block->bytes.size();
  Range range;
  range.bytes = below(two.random, most + 1);
  range.here = below(two.random, all - range.bytes + 1);
  range.there = below(two.random, all - range.bytes + 1);
  return range;
}

/// Different pages in any order, each at most once.
std::vector<std::uint32_t> some_pages(std::uint64_t count, std::uint64_t of, std::mt19937_64& random) {
  std::vector<std::uint32_t> all(of);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

TEST(FabricMoves, a_write_brings_its_bytes_and_no_others) {
  TwoFabrics two;
  for (int i = 0; i < 30; ++i) {
    const Range range = some_range(two, i % 3 == 0 ? 300'000 : 5000);
    auto expected = two.there_block->bytes;
    std::memcpy(expected.data() + range.there, two.here_block->bytes.data() + range.here, range.bytes);
    FabricPost post;
    post.spread = static_cast<FabricSpread>(i % 3);
    post.nic = static_cast<std::uint32_t>(i % 2);
    expect_done(
        two.here.write(two.here_block->memory, range.here, two.target(), range.there, range.bytes, post));
    ASSERT_EQ(two.there_block->bytes, expected) << i;
  }
  EXPECT_EQ(two.here.counters().done, 30U);
  EXPECT_EQ(two.here.counters().failed, 0U);
}

TEST(FabricMoves, a_read_brings_its_bytes_and_no_others) {
  TwoFabrics two;
  for (int i = 0; i < 20; ++i) {
    const Range range = some_range(two, i % 3 == 0 ? 300'000 : 5000);
    auto expected = two.here_block->bytes;
    std::memcpy(expected.data() + range.here, two.there_block->bytes.data() + range.there, range.bytes);
    expect_done(two.here.read(two.here_block->memory, range.here, two.target(), range.there, range.bytes));
    ASSERT_EQ(two.here_block->bytes, expected) << i;
  }
}

/// Page i of the one side to page i of the other; strides may leave gaps.
struct PagedMove {
  explicit PagedMove(TwoFabrics& two) {
    page_bytes = 1 + below(two.random, 3000);
    for (FabricPages* const side : {&here, &there}) {
      side->stride_bytes = page_bytes + below(two.random, 100);
      side->offset_bytes = below(two.random, 1000);
    }
    const std::uint64_t fitting =
        (two.here_block->bytes.size() - 1000) / std::max(here.stride_bytes, there.stride_bytes);
    count = 1 + below(two.random, std::min<std::uint64_t>(fitting, 400));
    from = some_pages(count, fitting, two.random);
    to = some_pages(count, fitting, two.random);
    here.indices = PageNumbers(from);
    there.indices = PageNumbers(to);
  }
  void copy(std::vector<std::uint8_t>& to_bytes, const FabricPages& to_pages,
            const std::vector<std::uint32_t>& to_index, const std::vector<std::uint8_t>& from_bytes,
            const FabricPages& from_pages, const std::vector<std::uint32_t>& from_index) const {
    for (std::uint64_t i = 0; i < count; ++i)
      std::memcpy(to_bytes.data() + to_pages.offset_bytes + to_index[i] * to_pages.stride_bytes,
                  from_bytes.data() + from_pages.offset_bytes + from_index[i] * from_pages.stride_bytes,
                  page_bytes);
  }
  FabricPages here, there;
  std::uint64_t page_bytes = 0, count = 0;
  std::vector<std::uint32_t> from, to;
};

TEST(FabricMoves, pages_go_from_any_places_to_any_places) {
  TwoFabrics two;
  for (int i = 0; i < 15; ++i) {
    const PagedMove move(two);
    auto expected = two.there_block->bytes;
    move.copy(expected, move.there, move.to, two.here_block->bytes, move.here, move.from);
    expect_done(two.here.write_pages(two.here_block->memory, move.here, two.target(), move.there,
                                     move.page_bytes, move.count));
    ASSERT_EQ(two.there_block->bytes, expected) << i;

    auto read = two.here_block->bytes;
    move.copy(read, move.here, move.from, two.there_block->bytes, move.there, move.to);
    expect_done(two.here.read_pages(two.here_block->memory, move.here, two.target(), move.there,
                                    move.page_bytes, move.count));
    ASSERT_EQ(two.here_block->bytes, read) << i;
  }
}

TEST(FabricMoves, pages_without_indices_are_all_pages_in_order) {
  TwoFabrics two(64 << 10);
  FabricPages spread_out;
  spread_out.stride_bytes = 1000;
  spread_out.offset_bytes = 24;
  expect_done(two.here.write_pages(two.here_block->memory, {}, two.target(), spread_out, 100, 65));
  for (std::size_t page = 0; page < 65; ++page)
    ASSERT_EQ(0, std::memcmp(two.there_block->bytes.data() + 24 + page * 1000,
                             two.here_block->bytes.data() + page * 100, 100));
}

TEST(FabricMoves, indices_may_change_once_the_post_has_returned) {
  TwoFabrics two(1 << 20);
  std::vector<std::int64_t> from(1000), to(1000);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.rbegin(), to.rend(), 0);
  FabricPages here, there;
  here.indices = PageNumbers(from);
  there.indices = PageNumbers(to);
  auto work = two.here.write_pages(two.here_block->memory, here, two.target(), there, 1000, 1000);
  std::fill(from.begin(), from.end(), -1);
  std::fill(to.begin(), to.end(), -1);
  expect_done(work);
  for (std::size_t page = 0; page < 1000; ++page)
    ASSERT_EQ(0, std::memcmp(two.there_block->bytes.data() + (999 - page) * 1000,
                             two.here_block->bytes.data() + page * 1000, 1000));
}

TEST(FabricMoves, zero_bytes_and_zero_pages_are_posts_that_are_counted) {
  TwoFabrics two(4096);
  const auto before = two.there_block->bytes;
  auto arrivals = value_of(two.there.expect({7, 1}, 3));
  FabricPost post;
  post.immediate = {7, 1};
  expect_done(two.here.write(two.here_block->memory, 4096, two.target(), 0, 0, post));
  expect_done(two.here.write_pages(two.here_block->memory, {}, two.target(), {}, 0, 10, post));
  expect_done(two.here.write_pages(two.here_block->memory, {}, two.target(), {}, 16, 0, post));
  EXPECT_TRUE(arrivals.wait(long_enough).ok());
  EXPECT_EQ(two.there_block->bytes, before);
  expect_done(two.here.read(two.here_block->memory, 0, two.target(), 4096, 0));
}

TEST(FabricMoves, a_scatter_brings_each_target_its_part_and_counts_at_each) {
  std::mt19937_64 random(std::random_device{}());
  Fabric sender = open_at({"127.0.0.1", "127.0.0.2"});
  Block source(sender, random_bytes(300'000, random), FabricAccess::local);
  std::vector<Fabric> receivers;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<FabricExpectation> arrivals;
  for (int i = 0; i < 3; ++i) {
    receivers.push_back(open_at({"127.0.0.1", "127.0.0.2"}));
    blocks.push_back(std::make_unique<Block>(receivers.back(), std::vector<std::uint8_t>(100'000),
                                             FabricAccess::writable));
    arrivals.push_back(value_of(receivers.back().expect({5, 0}, 1)));
  }
  for (const auto spread :
       {FabricSpread::free, FabricSpread::by_peer, FabricSpread::in_turn, FabricSpread::pinned}) {
    std::vector<FabricTarget> targets;
    for (std::uint64_t i = 0; i < 3; ++i)  // odd lengths: no remainder may be lost
      targets.push_back({blocks[i]->memory.descriptor(), i * 99'991, 7 - i, 99'991 - i});
    FabricPost post;
    post.immediate = {5, 0};
    post.spread = spread;
    post.nic = 1;
    expect_done(sender.scatter(source.memory, targets, post));
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(arrivals[i].wait(long_enough).ok());
      EXPECT_EQ(0,
                std::memcmp(blocks[i]->bytes.data() + 7 - i, source.bytes.data() + i * 99'991, 99'991 - i));
      std::fill(blocks[i]->bytes.begin(), blocks[i]->bytes.end(), 0);
    }
  }
}

/// Until the card of this host carries what may take any card.
void await_near(Fabric& sender, const Block& source, const Block& target) {
  const auto near_bytes = [&] { return sender.telemetry().counters.at("fabric.this host.written_bytes"); };
  for (const auto before = near_bytes(); near_bytes() == before;)
    expect_done(sender.write(source.memory, 0, target.memory.descriptor(), 0, 1));
}

TEST(FabricMoves, a_scatter_to_peers_of_this_host_leaves_by_their_card_however_it_is_shared_out) {
  Fabric sender = open_at({"this host", "127.0.0.1", "127.0.0.2"});
  Fabric near = open_at({"127.0.0.1", "this host"});
  std::mt19937_64 random(2);
  Block source(sender, random_bytes(200'000, random), FabricAccess::local);
  Block target(near, std::vector<std::uint8_t>(200'000), FabricAccess::writable);
  expect_done(sender.write(source.memory, 0, target.memory.descriptor(), 0, 1));  // by then it is connected
  const auto written = [&](const char* nic) {
    return sender.telemetry().counters.at("fabric." + std::string(nic) + ".written_bytes");
  };
  await_near(sender, source, target);
  const auto before = written("127.0.0.1") + written("127.0.0.2"), near_before = written("this host");
  for (const auto spread : {FabricSpread::by_peer, FabricSpread::pinned}) {
    FabricPost post;
    post.spread = spread;
    post.nic = 2;
    const std::vector<FabricTarget> targets{{target.memory.descriptor(), 0, 0, 100'000},
                                            {target.memory.descriptor(), 100'000, 100'000, 100'000}};
    expect_done(sender.scatter(source.memory, targets, post));
    EXPECT_EQ(source.bytes, target.bytes);
    std::fill(target.bytes.begin(), target.bytes.end(), 0);
  }
  EXPECT_EQ(written("127.0.0.1") + written("127.0.0.2"), before);
  EXPECT_EQ(written("this host"), near_before + 400'000);
}

TEST(FabricMoves, a_pinned_write_leaves_by_its_network_card_alone) {
  TwoFabrics two;
  FabricPost post;
  post.spread = FabricSpread::pinned;
  for (const std::uint32_t nic : {1U, 0U}) {
    const auto before = two.here.telemetry().counters;
    post.nic = nic;
    expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 1 << 20, post));
    const auto after = two.here.telemetry().counters;
    const std::string used = nic == 0 ? "127.0.0.1" : "127.0.0.2";
    const std::string other = nic == 0 ? "127.0.0.2" : "127.0.0.1";
    const auto grown = [&](const std::string& name) {
      const std::string key = "fabric." + name + ".written_bytes";
      return after.at(key) - before.at(key);
    };
    EXPECT_EQ(grown(used), std::uint64_t{1} << 20);
    EXPECT_EQ(grown(other), 0U);
  }
}

TEST(FabricMoves, a_fabric_writes_to_itself) {
  Fabric alone = open_at({"127.0.0.1"});
  std::mt19937_64 random(1);
  Block from(alone, random_bytes(10'000, random), FabricAccess::local);
  Block to(alone, std::vector<std::uint8_t>(10'000), FabricAccess::writable);
  expect_done(alone.write(from.memory, 0, to.memory.descriptor(), 0, 10'000));
  EXPECT_EQ(from.bytes, to.bytes);
}

TEST(FabricMoves, a_descriptor_travels_as_bytes) {
  TwoFabrics two(4096);
  const std::string bytes = two.target().bytes();
  const auto read = value_of(FabricDescriptor::from_bytes(bytes));
  EXPECT_EQ(read, two.target());
  expect_done(two.here.write(two.here_block->memory, 0, read, 0, 4096));
  EXPECT_EQ(two.here_block->bytes, two.there_block->bytes);
}

}  // namespace
}  // namespace headrace::test_fabric
