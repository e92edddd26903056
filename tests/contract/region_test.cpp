// SPDX-License-Identifier: Apache-2.0
// Regions: registered, exported, loaded, mapped, given up; and owners that check what a peer asks for.
#include "contract/fixture.hpp"
#include "support/open_descriptors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace headrace::contract {
namespace {

class Regions : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(Regions, HEADRACE_REMOTE);

TEST_P(Regions, come_and_go_by_the_thousand) {
  const Pair pair = open_pair();
  const Memory memory(Memory::Kind::plain, 64'000, 1), target(Memory::Kind::plain, 64, 2);
  const Region mine(*pair.a, target);
  for (int round = 0; round < 3; ++round) {
    std::vector<Region> regions;
    std::vector<Remote> remotes;
    for (std::uint64_t i = 0; i < 1000; ++i) regions.emplace_back(*pair.b, memory, i * 64, 64);
    for (const Region& region : regions) remotes.emplace_back(pair.ab, region.facts());
    for (const std::size_t i : {0U, 1U, 500U, 999U}) {
      Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 64, 64),
                      uniform_side(remotes[i].handle(), 0, 64, 64), 1);
      ASSERT_TRUE(request.run().status.ok());
      ASSERT_TRUE(same_bytes(target.bytes(), memory.bytes().subspan(i * 64, 64)));
    }
    std::vector<std::size_t> order(remotes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) remotes[i].unload();
  }
}

TEST_P(Regions, that_come_and_go_while_the_peer_is_stopped_leave_nothing_behind) {
  const Pair pair = open_pair();
  const std::size_t before = open_descriptors();
  // Of b nobody reads what a says. A socket holds some 300 packets.
  for (std::uint64_t round = 0; round < 600; ++round) {
    const Memory memory(Memory::Kind::shared, 4096, round);
    const Region region(*pair.a, memory);
    (void)pair.a->progress();
  }
  EXPECT_LT(open_descriptors(), before + 100);
  const Memory memory(Memory::Kind::shared, 4096, 7), target(Memory::Kind::plain, 4096, 8);
  const Region theirs(*pair.a, memory), mine(*pair.b, target);
  const Remote remote(pair.ba, theirs.facts());
  Request request(*pair.b, HEADRACE_READ, &pair.ba, uniform_side(mine.handle(), 0, 0, 4096),
                  uniform_side(remote.handle(), 0, 0, 4096), 1);
  ASSERT_TRUE(request.run().status.ok());
  EXPECT_TRUE(same_bytes(target.bytes(), memory.bytes()));
}

TEST_P(Regions, may_overlap_and_lie_inside_one_another) {
  const Pair pair = open_pair();
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const Memory memory(kind, 10'000, 1, 3), target(Memory::Kind::plain, 10'000, 2);
    const Region whole(*pair.b, memory), again(*pair.b, memory), inner(*pair.b, memory, 1001, 3000),
        mine(*pair.a, target);
    const Remote a(pair.ab, whole.facts()), b(pair.ab, again.facts()), c(pair.ab, inner.facts());
    PageSide local = uniform_side(mine.handle(), 0, 100, 100), remote = uniform_side(nullptr, 0, 0, 100);
    remote.regions = {a.handle(), b.handle(), c.handle()};
    remote.region_of = {0, 1, 2};
    remote.offsets = {1101, 1101, 100};  // the same bytes by three names
    Request request(*pair.a, HEADRACE_READ, &pair.ab, local, remote, 3);
    ASSERT_TRUE(request.run().status.ok());
    for (std::size_t i = 0; i < 3; ++i)
      ASSERT_TRUE(same_bytes(target.bytes().subspan(i * 100, 100), memory.bytes().subspan(1101, 100))) << i;
  }
}

TEST_P(Regions, are_loaded_once_a_link_and_unloaded_in_any_order) {
  Pair pair = open_pair();
  Link second = pair.a->connect(*pair.b);
  ASSERT_TRUE(world.until([&] { return second.ready(); }));
  const Memory memory(Memory::Kind::plain, 1000, 1), target(Memory::Kind::plain, 1000, 2);
  const Region theirs(*pair.b, memory), mine(*pair.a, target);
  Remote first_link(pair.ab, theirs.facts()), second_link(second, theirs.facts());
  first_link.unload();
  pair.ab.disconnect();
  Request request(*pair.a, HEADRACE_READ, &second, uniform_side(mine.handle(), 0, 1000, 1000),
                  uniform_side(second_link.handle(), 0, 1000, 1000), 1);
  ASSERT_TRUE(request.run().status.ok());
  EXPECT_TRUE(same_bytes(memory.bytes(), target.bytes()));
}

TEST_P(Regions, requests_may_be_released_after_all_that_they_name_is_gone) {
  Pair pair = open_pair();
  const Memory memory(Memory::Kind::plain, 1000, 1);
  Region theirs(*pair.b, memory), mine(*pair.a, memory);
  Remote remote(pair.ab, theirs.facts());
  Request never_posted(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 10, 10),
                       uniform_side(remote.handle(), 500, 10, 10), 5);
  Request posted(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 10, 10),
                 uniform_side(remote.handle(), 500, 10, 10), 5);
  ASSERT_TRUE(posted.run().status.ok());
  pair.ab.disconnect();
  remote.unload();
  mine.deregister();
  never_posted.release();
  posted.release();
}

TEST_P(Regions, that_are_read_only_are_read_and_not_written) {
  const Pair pair = open_pair();
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const Memory memory(kind, 300'000, 1), source(Memory::Kind::plain, 300'000, 2);
    const Bytes before(memory.bytes().begin(), memory.bytes().end());
    const Region closed(*pair.b, memory, 0, 200'000, HEADRACE_REGION_READ_ONLY),
        open(*pair.b, memory, 200'000, 100'000), mine(*pair.a, source);
    const Remote closed_there(pair.ab, closed.facts()), open_there(pair.ab, open.facts());
    for (const std::uint64_t bytes : {std::uint64_t{17}, std::uint64_t{100'000}}) {
      PageSide remote = uniform_side(nullptr, 0, 0, bytes);
      remote.regions = {open_there.handle(), closed_there.handle()};
      remote.region_of = {0, 1};
      remote.offsets = {0, 100'000};
      Request write(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, bytes, bytes), remote,
                    2);
      const PostEnd refused = write.run();
      EXPECT_EQ(refused.status.code, Code::invalid_argument) << refused.text;
      EXPECT_EQ(refused.status.page, 1U);
      EXPECT_NE(refused.text.find("read-only"), std::string::npos) << refused.text;
      EXPECT_TRUE(same_bytes(memory.bytes().first(200'000), std::span(before).first(200'000)));
      Request read(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, bytes, bytes), remote, 2);
      EXPECT_TRUE(read.run().status.ok()) << "the link goes on";
      EXPECT_TRUE(same_bytes(source.bytes().subspan(bytes, bytes), memory.bytes().subspan(100'000, bytes)));
    }
  }
}

// ---------------------------------------------------------------------------------------------------
// forgeries

/// Also where the initiator reaches the memory by itself.
class ForgedRegions : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(ForgedRegions, HEADRACE_REMOTE);

TEST_P(ForgedRegions, that_metadata_makes_longer_give_nothing_of_what_lies_behind_them) {
  const Pair pair = open_pair();
  constexpr std::uint64_t registered = 8192;
  const Memory target(Memory::Kind::plain, registered, 2);
  const Bytes kept(target.bytes().begin(), target.bytes().end());
  const Region mine(*pair.a, target);
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const Memory memory(kind, 2 * registered, 1);
    const Bytes before(memory.bytes().begin(), memory.bytes().end());
    const Region theirs(*pair.b, memory, 0, registered);
    RegionFacts forged = theirs.facts();
    forged.length = 2 * registered;
    for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ}) {
      try {
        const Remote remote(pair.ab, forged);
        Request request(*pair.a, op, &pair.ab, uniform_side(mine.handle(), 0, registered, registered),
                        uniform_side(remote.handle(), registered, registered, registered), 1);
        const Status posted = request.try_post();
        EXPECT_FALSE((posted.ok() ? request.wait().status : posted).ok());
      } catch (const std::runtime_error& refused) {
        EXPECT_GT(std::string_view(refused.what()).size(), 20U);
      }
    }
    EXPECT_TRUE(same_bytes(memory.bytes(), before));
    EXPECT_TRUE(same_bytes(target.bytes(), kept));
  }
}

// --------------------------------------------------------------------------------------------------- owners

class CheckedRegions : public Contract {
 protected:
  /// Posts a write and a read of `bytes` at `offset` of the remote handle; both must fail at page 1, after a
  /// good page 0.
  void expect_refused(const Pair& pair, const Remote& remote, std::uint64_t offset, std::uint64_t bytes) {
    const Memory memory(Memory::Kind::plain, 2 * bytes, 9);
    const Region mine(*pair.a, memory);
    for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ}) {
      PageSide local = uniform_side(mine.handle(), 0, bytes, bytes),
               side = uniform_side(remote.handle(), 0, 0, bytes);
      side.offsets = {0, offset};
      Request request(*pair.a, op, &pair.ab, local, side, 2);
      const Status refused = request.try_post();
      const Status status = refused.ok() ? request.wait().status : refused;
      EXPECT_TRUE(one_of(status.code, {Code::invalid_argument, Code::not_found}));
      EXPECT_EQ(status.page, 1U);
    }
  }
};
HEADRACE_FOR_EACH_BACKEND_THAT(CheckedRegions, HEADRACE_REMOTE | HEADRACE_REVOKE_SAFE);

TEST_P(CheckedRegions, keep_forged_ranges_out) {
  const Pair pair = open_pair();
  constexpr std::uint64_t registered = 4000;
  const Memory memory(Memory::Kind::plain, 3 * registered, 1);
  const Bytes before(memory.bytes().begin(), memory.bytes().end());
  const Region theirs(*pair.b, memory, registered, registered);  // the middle third
  RegionFacts forged = theirs.facts();
  forged.length = UINT64_MAX;
  const Remote remote(pair.ab, forged);
  // Page 0 of each request lies inside and may be written or not; it holds what the reference gets.
  expect_refused(pair, remote, registered - 99, 100);
  expect_refused(pair, remote, registered, 100);
  expect_refused(pair, remote, 2 * registered, 100);
  expect_refused(pair, remote, UINT64_MAX - 99, 100);
  expect_refused(pair, remote, UINT64_MAX - registered + 1, 100);
  expect_refused(pair, remote, UINT64_MAX / 2, 100);
  const auto bytes = memory.bytes();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + registered, before.begin()))
      << "bytes before the region were written";
  EXPECT_TRUE(std::equal(bytes.begin() + registered + 100, bytes.end(), before.begin() + registered + 100))
      << "bytes that no good page names were written";

  const Memory target(Memory::Kind::plain, 100, 2);
  const Region mine(*pair.a, target);
  Request good(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 100, 100),
               uniform_side(remote.handle(), registered - 100, 100, 100), 1);
  ASSERT_TRUE(good.run().status.ok()) << "the link must go on after a refused request";
  EXPECT_TRUE(same_bytes(target.bytes(), memory.bytes().subspan(2 * registered - 100, 100)));
}

TEST_P(CheckedRegions, keep_out_region_ids_that_never_were) {
  const Pair pair = open_pair();
  const Memory memory(Memory::Kind::plain, 4000, 1);
  const Region theirs(*pair.b, memory);
  for (const std::uint32_t id : {0U, theirs.id() + 1, 77'777U, UINT32_MAX}) {
    RegionFacts forged = theirs.facts();
    forged.id = id;
    const Remote remote(pair.ab, forged);
    const Memory target(Memory::Kind::plain, 100, 2);
    const Region mine(*pair.a, target);
    Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 100, 100),
                    uniform_side(remote.handle(), 0, 100, 100), 1);
    const Status refused = request.try_post();
    const Status status = refused.ok() ? request.wait().status : refused;
    EXPECT_EQ(status.code, Code::not_found) << "id " << id << ": " << code_name(status.code);
  }
}

TEST_P(CheckedRegions, are_out_of_reach_once_deregistered) {
  const Pair pair = open_pair();
  const Memory target(Memory::Kind::plain, 50'000, 2);
  const Region mine(*pair.a, target);
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    auto memory = std::make_unique<Memory>(kind, 50'000, 1);
    auto theirs = std::make_unique<Region>(*pair.b, *memory);
    const Remote remote(pair.ab, theirs->facts());
    Request request(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, 1000, 1000),
                    uniform_side(remote.handle(), 0, 1000, 1000), 50);
    ASSERT_TRUE(request.run().status.ok());
    theirs.reset();
    memory.reset();  // touching it now is an error that the address sanitizer sees
    const Status refused = request.try_post();
    const Status status = refused.ok() ? request.wait().status : refused;
    EXPECT_EQ(status.code, Code::not_found) << code_name(status.code);
    EXPECT_NE(status.page, no_page);
  }
}

TEST_P(CheckedRegions, may_be_deregistered_while_a_peer_uses_them) {
  const Pair pair = open_pair();
  const Memory target(Memory::Kind::plain, 1 << 20, 2);
  const Region mine(*pair.a, target);
  world.start_driver();
  const bool must_be_used =
      GetParam().carried_out != CarriedOut::inside_calls && GetParam().carried_out != CarriedOut::unknown;
  const Deadline deadline = Deadline::after(World::default_limit);
  int used = 0;
  for (int round = 0; round < 20 || (must_be_used && used == 0 && !deadline.expired()); ++round) {
    auto memory = std::make_unique<Memory>(Memory::Kind::plain, 1 << 20, 1);
    auto theirs = std::make_unique<Region>(*pair.b, *memory);
    const Remote remote(pair.ab, theirs->facts());
    Request request(*pair.a, round % 2 == 0 ? HEADRACE_WRITE : HEADRACE_READ, &pair.ab,
                    uniform_side(mine.handle(), 0, 16 << 10, 16 << 10),
                    uniform_side(remote.handle(), 0, 16 << 10, 16 << 10), 64);
    request.post();
    if (request.in_flight()) ++used;
    theirs.reset();  // returns when no peer can reach it any more ...
    memory.reset();  // ... so that this is safe
    const Status status = request.wait().status;
    EXPECT_TRUE(one_of(status.code, {Code::ok, Code::not_found}));
  }
  EXPECT_TRUE(used > 0 || !must_be_used) << "no post was in flight when its region was deregistered";
  world.stop_driver();
}

// ------------------------------------------------------------------------------------------------- mappings

class MappedRegions : public Contract {
 protected:
  /// `map`, asking again while the peer's answer is on its way.
  std::span<std::byte> map(Instance& instance, const Remote& remote) {
    headrace_map_v1 args{};
    ErrorText error;
    std::int32_t code = HEADRACE_WOULD_BLOCK;
    const bool answered = world.until([&] {
      args = {sizeof(args), GetParam().vram ? 0 : -1, 3, nullptr, 0};
      code = table->map(instance.handle(), remote.handle(), &args, error.out());
      return code != HEADRACE_WOULD_BLOCK;
    });
    if (!answered || code != HEADRACE_OK) throw std::runtime_error("map: " + error.str());
    EXPECT_EQ(args.struct_size, sizeof(args));
    return {static_cast<std::byte*>(args.address), args.length};
  }
};
HEADRACE_FOR_EACH_BACKEND_THAT(MappedRegions, HEADRACE_REMOTE | HEADRACE_MAP);

TEST_P(MappedRegions, are_the_owners_memory) {
  const Pair pair = open_pair();
  const Memory memory(Memory::Kind::shared, 100'000, 1, 70);
  const Region whole(*pair.b, memory), part(*pair.b, memory, 50'001, 333);
  for (const Region* region : {&whole, &part}) {
    const Remote remote(pair.ab, region->facts());
    const auto mapped = map(*pair.a, remote);
    const auto owned =
        memory.bytes().subspan(region->facts().address - memory.address(), region->facts().length);
    ASSERT_EQ(mapped.size(), owned.size());
    EXPECT_TRUE(same_bytes(mapped, owned));
    mapped.back() = std::byte{0xab};
    EXPECT_EQ(owned.back(), std::byte{0xab});
    owned.front() = std::byte{0xcd};
    EXPECT_EQ(mapped.front(), std::byte{0xcd});
    table->unmap(pair.a->handle(), remote.handle(), mapped.data());
  }
}

TEST_P(MappedRegions, stay_readable_until_unmapped_even_without_their_owner) {
  Pair pair = open_pair();
  auto memory = std::make_unique<Memory>(Memory::Kind::shared, 10'000, 1);
  auto theirs = std::make_unique<Region>(*pair.b, *memory);
  Remote remote(pair.ab, theirs->facts());
  const auto mapped = map(*pair.a, remote);
  const Bytes before(mapped.begin(), mapped.end());
  pair.ab.disconnect();
  pair.ba.disconnect();
  theirs.reset();
  pair.b.reset();
  memory.reset();
  EXPECT_TRUE(same_bytes(mapped, before));
  table->unmap(pair.a->handle(), remote.handle(), mapped.data());
  remote.unload();
}

TEST_P(MappedRegions, that_were_merely_registered_are_mapped_or_refused_with_a_sentence) {
  const Pair pair = open_pair();
  const Memory memory(Memory::Kind::plain, 10'000, 1);
  const Region theirs(*pair.b, memory);
  const Remote remote(pair.ab, theirs.facts());
  try {
    const auto mapped = map(*pair.a, remote);
    EXPECT_TRUE(same_bytes(mapped, memory.bytes()));
    table->unmap(pair.a->handle(), remote.handle(), mapped.data());
  } catch (const std::runtime_error& refused) {
    EXPECT_GT(std::string_view(refused.what()).size(), std::string_view("map: ").size() + 10);
  }
}

}  // namespace
}  // namespace headrace::contract
