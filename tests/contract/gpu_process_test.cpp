// SPDX-License-Identifier: Apache-2.0
// GPU memory of other processes: opened once, let go of when nobody needs it, never taken for what it is not.
#include "contract/fake_gpu_fixture.hpp"

#include "base/hash.hpp"

#include <unistd.h>

namespace headrace::contract {
namespace {

class GpuProcesses : public OverFakeGpus<ContractBetweenProcesses> {
 protected:
  GpuProcesses() : before(driver().live()) {}

  /// What is mapped here of other processes' memory, beyond what was there when the test began.
  [[nodiscard]] int imports() const { return driver().live().imports - before.imports; }
  [[nodiscard]] int mapped_pieces() const { return driver().live().mappings - before.mappings; }
  [[nodiscard]] int pinned() const { return driver().live().pinned - before.pinned; }

  /// How a read of the first bytes of a region ends.
  PostEnd read(Instance& a, const Link& ab, const Remote& remote, const Memory& into) {
    const Region mine(a, into);
    const std::uint64_t bytes = into.bytes().size();
    PageSide local = uniform_side(mine.handle(), 0, bytes, bytes),
             far = uniform_side(remote.handle(), 0, bytes, bytes);
    try {
      Request request(a, HEADRACE_READ, &ab, std::move(local), std::move(far), 1);
      return request.run();
    } catch (const std::runtime_error& refused) {  // what is known already is said when it is prepared
      const std::string text = refused.what();
      for (const Code code : {Code::not_found, Code::not_supported})
        if (text.ends_with(fmt::format("({})", code_name(code)))) return {{code}, text};
      throw;
    }
  }

  const cuda::FakeCuda::Live before;
};
INSTANTIATE_TEST_SUITE_P(backend, GpuProcesses, testing::ValuesIn(vram_cases()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuProcesses);

TEST_P(GpuProcesses, memory_is_opened_once_an_allocation_and_closed_with_its_last_handle) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const RegionFacts whole = b->region(Memory::Kind::plain, 10'000, 7), part = b->part(whole, 3000, 2000);
  const int opened = driver().calls("cuIpcOpenMemHandle");
  Remote first(ab, whole), second(ab, part), again(ab, whole);
  for (const Remote* remote : {&first, &second, &again})
    ASSERT_TRUE(read(*a, ab, *remote, memory).status.ok());
  Bytes expected(10'000);
  fill_pattern(expected, 7);
  ASSERT_TRUE(read(*a, ab, second, memory).status.ok());
  EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected).subspan(3000, 1000)));
  EXPECT_EQ(imports(), 1);
  EXPECT_EQ(driver().calls("cuIpcOpenMemHandle"), opened + 2) << "once to prove handles, once for the memory";
  first.unload();
  again.unload();
  EXPECT_EQ(imports(), 1);
  second.unload();
  EXPECT_EQ(imports(), 0);
}

TEST_P(GpuProcesses, memory_is_let_go_of_when_it_is_revoked_or_the_link_goes) {
  enum class End { revoked, disconnected, killed };
  for (const End end : {End::revoked, End::disconnected, End::killed}) {
    SCOPED_TRACE(static_cast<int>(end));
    const auto a = open();
    const auto b = start_peer();
    Link ab = connect(*a, *b);
    const Memory memory(Memory::Kind::plain, 1000, 1);
    const RegionFacts by_handle = b->region(Memory::Kind::plain, 10'000, 7),
                      by_pieces = b->region(Memory::Kind::shared, 500'000, 7);
    const Remote first(ab, by_handle), second(ab, by_pieces);
    ASSERT_TRUE(read(*a, ab, first, memory).status.ok());
    ASSERT_TRUE(read(*a, ab, second, memory).status.ok());
    ASSERT_EQ(imports(), 1);
    ASSERT_GT(mapped_pieces(), 1);
    if (end == End::revoked) {
      b->ask(fmt::format("deregister {}", by_handle.id));
      b->ask(fmt::format("deregister {}", by_pieces.id));
      ASSERT_TRUE(world.until([&] { return imports() == 0 && mapped_pieces() == 0; })) << world.describe();
      for (const Remote* remote : {&first, &second})
        EXPECT_EQ(read(*a, ab, *remote, memory).status.code, Code::not_found);
      EXPECT_FALSE(ab.lost());
    } else {
      if (end == End::killed) {
        b->kill();
        ASSERT_TRUE(world.until([&] { return ab.lost(); })) << world.describe();
      }
      ab.disconnect();
    }
    EXPECT_EQ(imports(), 0);
    EXPECT_EQ(mapped_pieces(), 0);
  }
}

TEST_P(GpuProcesses, memory_that_one_gpu_was_refused_is_let_go_of_by_the_one_that_has_it) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory of_one(Memory::Kind::plain, 1000, 1);
  FakeGpus::of_this_process().choose(1);
  const Memory of_other(Memory::Kind::plain, 1000, 2);
  FakeGpus::of_this_process().choose(0);
  const RegionFacts facts = b->region(Memory::Kind::plain, 10'000, 7);
  const Remote remote(ab, facts);
  ASSERT_TRUE(read(*a, ab, remote, of_one).status.ok());
  ASSERT_EQ(imports(), 1);
  b->ask("fail cuIpcGetMemHandle");
  const PostEnd refused = read(*a, ab, remote, of_other);
  ASSERT_EQ(refused.status.code, Code::not_supported) << refused.text;
  EXPECT_NE(refused.text.find("peer b says"), std::string::npos) << refused.text;
  b->ask(fmt::format("deregister {}", facts.id));
  EXPECT_TRUE(world.until([&] { return imports() == 0; })) << world.describe();
  EXPECT_EQ(read(*a, ab, remote, of_one).status.code, Code::not_found);
}

/// Each process may have the same number in a PID namespace of its own: then handles mislead the driver.
TEST_P(GpuProcesses, that_bear_one_number_share_by_descriptor_and_not_by_handle) {
  const auto a = open();
  const auto b = start_peer();
  b->ask(fmt::format("number {}", ::getpid()));
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const Remote by_handle(ab, b->region(Memory::Kind::plain, 10'000, 7)),
      by_pieces(ab, b->region(Memory::Kind::shared, 500'000, 9));
  const PostEnd refused = read(*a, ab, by_handle, memory);
  EXPECT_EQ(refused.status.code, Code::not_supported);
  EXPECT_NE(refused.text.find("PID namespaces"), std::string::npos) << refused.text;
  EXPECT_NE(refused.text.find("expandable_segments"), std::string::npos) << refused.text;
  ASSERT_TRUE(read(*a, ab, by_pieces, memory).status.ok());
  Bytes expected(1000);
  fill_pattern(expected, 9);
  EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected)));
  EXPECT_FALSE(ab.lost());
}

/// The same with a peer whose number is really of a namespace of its own: its sockets, too, name a process
/// that has no number here, or another one.
TEST_P(GpuProcesses, of_two_pid_namespaces_with_one_number_share_by_descriptor_and_not_by_handle) {
  const auto a = open();
  std::unique_ptr<PeerProcess> b;
  try {
    b = start_peer("b", PeerProcess::Numbers::its_own);
  } catch (const NoPidNamespace& refused) {
    GTEST_SKIP() << refused.what();
  }
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const RegionFacts handle = b->region(Memory::Kind::plain, 10'000, 7),
                    pieces = b->region(Memory::Kind::shared, 500'000, 9);
  Bytes expected(1000);
  fill_pattern(expected, 9);
  for (const int our_number : {1, ::getpid()}) {  // the same as the peer's, and another one
    SCOPED_TRACE(our_number);
    driver().set_process_number(our_number);
    const Remote by_handle(ab, handle), by_pieces(ab, pieces);
    const PostEnd refused = read(*a, ab, by_handle, memory);
    EXPECT_EQ(refused.status.code, Code::not_supported);
    EXPECT_NE(refused.text.find("PID namespaces"), std::string::npos) << refused.text;
    ASSERT_TRUE(read(*a, ab, by_pieces, memory).status.ok());
    EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected)));
    EXPECT_FALSE(ab.lost());
  }
  b->kill();
  EXPECT_TRUE(world.until([&] { return ab.lost(); })) << world.describe();
}

TEST_P(GpuProcesses, that_no_wire_joins_say_so) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const Remote remote(ab, b->region(Memory::Kind::plain, 10'000, 7));
  driver().fail("cuIpcOpenMemHandle", cuda::Outcome::peer_access_unsupported);
  const PostEnd refused = read(*a, ab, remote, memory);
  EXPECT_EQ(refused.status.code, Code::not_supported);
  EXPECT_NE(refused.text.find("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"), std::string::npos) << refused.text;
}

TEST_P(GpuProcesses, memory_that_was_freed_is_not_found_though_other_memory_has_its_address) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const RegionFacts facts = b->region(Memory::Kind::plain, 10'000, 7);
  ASSERT_EQ(std::stoull(b->ask(fmt::format("replace {} 14", facts.id))), facts.address);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const Bytes bytes(memory.bytes().begin(), memory.bytes().end());
  const Remote remote(ab, facts);
  const PostEnd refused = read(*a, ab, remote, memory);
  EXPECT_EQ(refused.status.code, Code::not_found);
  EXPECT_NE(refused.text.find("were freed"), std::string::npos) << refused.text;
  EXPECT_TRUE(same_bytes(memory.bytes(), std::span(bytes)));
}

TEST_P(GpuProcesses, a_post_of_a_peer_that_died_ends_when_the_gpu_has_ended_it) {
  const auto a = open();
  const auto b = start_peer();
  Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const Region mine(*a, memory);
  const Remote remote(ab, b->region(Memory::Kind::plain, 1000, 7));
  Request request(*a, HEADRACE_READ, &ab, uniform_side(mine.handle(), 0, 1000, 1000),
                  uniform_side(remote.handle(), 0, 1000, 1000), 1);
  ASSERT_TRUE(request.run().status.ok());
  driver().hold();
  request.post("for nobody");
  b->kill();
  ASSERT_TRUE(world.until([&] { return ab.lost(); })) << world.describe();
  EXPECT_TRUE(request.in_flight()) << "the GPU may still write";
  EXPECT_EQ(imports(), 1);
  driver().release();
  EXPECT_EQ(request.wait().status.code, Code::peer_lost);
  ab.disconnect();
  EXPECT_EQ(imports(), 0);
}

TEST_P(GpuProcesses, a_mapping_is_the_peers_memory_until_it_is_unmapped) {
  const auto a = open();
  const auto b = start_peer();
  Link ab = connect(*a, *b);
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const RegionFacts facts = b->region(kind, 300'000, 7);
    const Remote remote(ab, facts);
    headrace_map_v1 args{};
    ErrorText error;
    std::int32_t code = HEADRACE_WOULD_BLOCK;
    ASSERT_TRUE(world.until([&] {
      args = {sizeof args, 0, 3, nullptr, 0};
      code = table->map(a->handle(), remote.handle(), &args, error.out());
      return code != HEADRACE_WOULD_BLOCK;
    }));
    ASSERT_EQ(code, HEADRACE_OK) << error.str();
    const std::span<std::byte> mapped(static_cast<std::byte*>(args.address), args.length);
    EXPECT_EQ(mapped.size(), facts.length);
    fill_pattern(mapped, 99);
    EXPECT_EQ(b->hash(facts), hash64(mapped));
    if (kind == Memory::Kind::shared) {
      ab.disconnect();
      b->kill();
      Bytes expected(mapped.size());
      fill_pattern(expected, 99);
      EXPECT_TRUE(same_bytes(mapped, std::span(expected)));
    }
    table->unmap(a->handle(), remote.handle(), args.address);
  }
  EXPECT_EQ(imports(), 0);
}

TEST_P(GpuProcesses, a_gpu_reads_and_writes_the_memory_that_a_peer_allocated_on_its_host) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 10'001, 1);
  const RegionFacts facts = b->host_region(Memory::Kind::shared, 300'000, 7);
  int with_import = 0;
  {
    const Region mine(*a, memory);
    Remote remote(ab, facts);
    const auto moved = [&](headrace_op_v1 op, std::uint64_t at) {
      Request request(*a, op, &ab, uniform_side(mine.handle(), 0, 10'001, 10'001),
                      uniform_side(remote.handle(), at, 10'001, 10'001), 1);
      return request.run();
    };
    Bytes expected(300'000);
    fill_pattern(expected, 7);
    ASSERT_TRUE(moved(HEADRACE_READ, 777).status.ok());
    EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected).subspan(777, 10'001)));
    fill_pattern(memory.bytes(), 99);
    ASSERT_TRUE(moved(HEADRACE_WRITE, 200'003).status.ok());
    std::ranges::copy(memory.bytes(), expected.begin() + 200'003);
    EXPECT_EQ(b->hash(facts), hash64(expected));
    // The other region in the file finds it open.
    Remote part(ab, b->part(facts, 1000, 20'000));
    with_import = pinned();
    ASSERT_TRUE(read(*a, ab, part, memory).status.ok());
    EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected).subspan(1000, 10'001)));
    EXPECT_EQ(pinned(), with_import);
    part.unload();
    b->ask(fmt::format("deregister {}", facts.id));
    ASSERT_TRUE(world.until([&] { return read(*a, ab, remote, memory).status.code == Code::not_found; }));
  }
  EXPECT_TRUE(world.until([&] { return pinned() == with_import - 1; })) << pinned() << " of " << with_import;
}

TEST_P(GpuProcesses, a_peers_gpu_memory_is_moved_to_and_from_this_host) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  for (const Memory::Kind here : {Memory::Kind::plain, Memory::Kind::shared}) {
    for (const Memory::Kind there : {Memory::Kind::plain, Memory::Kind::shared}) {
      const Memory memory = host_memory(here, 10'001, 1);
      const RegionFacts facts = b->region(there, 300'000, 7);
      const Region mine(*a, memory);
      const Remote remote(ab, facts);
      for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
        Request request(*a, op, &ab, uniform_side(mine.handle(), 0, 10'001, 10'001),
                        uniform_side(remote.handle(), 50'001, 10'001, 10'001), 1);
        Bytes expected(300'000);
        fill_pattern(expected, 7);
        ASSERT_TRUE(request.run().status.ok());
        if (op == HEADRACE_READ) {
          EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected).subspan(50'001, 10'001)));
          fill_pattern(memory.bytes(), 98);
        } else {
          std::ranges::copy(memory.bytes(), expected.begin() + 50'001);
          EXPECT_EQ(b->hash(facts), hash64(expected));
        }
      }
    }
  }
}

TEST_P(GpuProcesses, host_memory_is_moved_by_the_gpu_at_the_far_side) {
  const auto a = open();
  const auto b = start_peer();  // its memory is of GPU 1
  const Link ab = connect(*a, *b);
  const Memory memory = host_memory(Memory::Kind::plain, 1000, 1);
  const Remote remote(ab, b->region(Memory::Kind::plain, 10'000, 7));
  driver().forbid_peer_access(0, 1);
  const PostEnd end = read(*a, ab, remote, memory);
  driver().allow_peer_access(0, 1);
  ASSERT_TRUE(end.status.ok()) << end.text;
  Bytes expected(1000);
  fill_pattern(expected, 7);
  EXPECT_TRUE(same_bytes(memory.bytes(), std::span(expected)));
}

TEST_P(GpuProcesses, host_memory_that_no_gpu_reaches_says_so) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory on_gpu(Memory::Kind::plain, 1000, 1), on_host = host_memory(Memory::Kind::plain, 1000, 1);
  const Remote registered(ab, b->host_region(Memory::Kind::plain, 1000, 7));
  EXPECT_EQ(read(*a, ab, registered, on_host).status.code, Code::not_supported) << "no GPU has to do with it";
  headrace_map_v1 map{};
  ErrorText error;
  std::int32_t code = HEADRACE_WOULD_BLOCK;
  ASSERT_TRUE(world.until([&] {
    map = {sizeof map, 0, 3, nullptr, 0};
    code = table->map(a->handle(), registered.handle(), &map, error.out());
    return code != HEADRACE_WOULD_BLOCK;
  }));
  EXPECT_EQ(code, HEADRACE_NOT_SUPPORTED);
  EXPECT_NE(error.str().find("`allocate`"), std::string::npos) << error.str();
  const Remote allocated(ab, b->host_region(Memory::Kind::shared, 1000, 7));
  EXPECT_EQ(read(*a, ab, allocated, on_host).status.code, Code::not_supported) << "no GPU has to do with it";
  driver().fail("cuMemHostRegister", cuda::Outcome::out_of_memory);
  const PostEnd unpinned = read(*a, ab, allocated, on_gpu);
  EXPECT_EQ(unpinned.status.code, Code::not_supported);
  EXPECT_NE(unpinned.text.find("GPUs cannot reach"), std::string::npos) << unpinned.text;
}

}  // namespace
}  // namespace headrace::contract
