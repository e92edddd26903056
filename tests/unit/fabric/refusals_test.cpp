// SPDX-License-Identifier: Apache-2.0
// Wrong calls are refused with a sentence, before a byte leaves.
#include "unit/fabric/two_fabrics.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace headrace::test_fabric {
namespace {

TEST(FabricRefusals, a_range_outside_of_either_memory) {
  TwoFabrics two(4096);
  const auto& memory = two.here_block->memory;
  expect_refused(two.here.write(memory, 1, two.target(), 0, 4096), Code::invalid_argument,
                 "4096 bytes from byte 1 on of the source, whose memory has 4096");
  expect_refused(two.here.write(memory, 0, two.target(), 4097, 0), Code::invalid_argument, "of the target");
  expect_refused(two.here.write(memory, UINT64_MAX, two.target(), 0, 2), Code::invalid_argument,
                 "of the source");
  expect_refused(two.here.read(memory, 0, two.target(), 4000, 97), Code::invalid_argument, "of the source");
  EXPECT_EQ(two.here.counters().failed, 0U);
}

TEST(FabricRefusals, a_page_outside_names_the_page_and_its_index) {
  TwoFabrics two(4096);
  const std::vector<std::uint32_t> good{0, 1, 2}, bad{0, 41, 2};
  FabricPages here, there;
  here.indices = PageNumbers(good);
  there.indices = PageNumbers(bad);
  const auto refused = two.here.write_pages(two.here_block->memory, here, two.target(), there, 100, 3);
  expect_refused(refused, Code::invalid_argument,
                 "page 1 of the target (index 41) has 100 bytes from byte 4100 on, and the memory has 4096");
  EXPECT_EQ(refused.error().page, 1U);
  const auto without = two.here.write_pages(two.here_block->memory, {}, two.target(), {}, 100, 41);
  expect_refused(without, Code::invalid_argument, "page 40 of the source (index 40)");
  FabricPages enormous;
  enormous.stride_bytes = UINT64_MAX;
  expect_refused(two.here.write_pages(two.here_block->memory, {}, two.target(), enormous, 100, 3),
                 Code::invalid_argument, "page 1 of the target (index 1)");
}

TEST(FabricRefusals, lists_that_differ_and_indices_that_are_none) {
  TwoFabrics two(4096);
  const std::vector<std::uint32_t> two_pages{0, 1};
  const std::vector<std::int64_t> negative{0, 1, -3}, large{0, 1, std::int64_t{1} << 32};
  FabricPages pages;
  pages.indices = PageNumbers(two_pages);
  expect_refused(two.here.write_pages(two.here_block->memory, {}, two.target(), pages, 100, 3),
                 Code::invalid_argument, "the target has 2 indices for 3 pages");
  pages.indices = PageNumbers(negative);
  const auto refused = two.here.write_pages(two.here_block->memory, pages, two.target(), {}, 100, 3);
  expect_refused(refused, Code::invalid_argument, "page 2 of the source has index -3");
  EXPECT_EQ(refused.error().page, 2U);
  pages.indices = PageNumbers(large);
  expect_refused(two.here.write_pages(two.here_block->memory, pages, two.target(), {}, 100, 3),
                 Code::invalid_argument, "page 2 of the source has index 4294967296");
}

TEST(FabricRefusals, memory_that_is_not_what_the_post_needs) {
  TwoFabrics two(4096);
  const auto& memory = two.here_block->memory;
  EXPECT_FALSE(memory.descriptor()) << "memory that is local has no descriptor";
  expect_refused(two.here.write(memory, 0, FabricDescriptor(), 0, 1), Code::invalid_argument, "empty");
  expect_refused(two.here.write(FabricMemory(), 0, two.target(), 0, 1), Code::invalid_argument, "empty");
  expect_refused(two.there.write(memory, 0, two.target(), 0, 1), Code::invalid_argument, "another fabric");
  Block readable(two.there, std::vector<std::uint8_t>(64), FabricAccess::readable);
  expect_refused(two.here.write(memory, 0, readable.memory.descriptor(), 0, 1), Code::invalid_argument,
                 "not writable");
  expect_done(two.here.read(memory, 0, readable.memory.descriptor(), 0, 64));
  const auto fixed = value_of(two.here.register_memory(
      {.address = two.here_block->bytes.data(), .length_bytes = 64, .writable = false}));
  expect_refused(two.here.read(fixed, 0, two.target(), 0, 1), Code::invalid_argument, "not writable");
  expect_done(two.here.write(fixed, 0, two.target(), 0, 64));
}

TEST(FabricRefusals, memory_that_cannot_be_registered) {
  Fabric fabric = open_at({"127.0.0.1"});
  std::vector<std::uint8_t> bytes(16);
  expect_refused(fabric.register_memory({.address = nullptr, .length_bytes = 1}), Code::invalid_argument,
                 "at least one byte");
  expect_refused(fabric.register_memory({.address = bytes.data(), .length_bytes = 0}), Code::invalid_argument,
                 "at least one byte");
  expect_refused(
      fabric.register_memory({.address = bytes.data(), .length_bytes = 1, .kind = MemoryKind::file}),
      Code::invalid_argument, "dram and vram, not file");
  expect_refused(
      fabric.register_memory({.address = bytes.data(), .length_bytes = 16}, FabricAccess::local, 3),
      Code::invalid_argument, "there is no group 3");
  expect_refused(fabric.register_memory(
                     {.address = bytes.data(), .length_bytes = 1, .kind = MemoryKind::vram, .device = 0}),
                 Code::invalid_argument, "no group of the fabric is near GPU 0");
  expect_refused(fabric.register_memory(
                     {.address = bytes.data(), .length_bytes = 1, .kind = MemoryKind::vram, .device = 0},
                     FabricAccess::local, 0),
                 Code::not_supported, "host memory alone");
  expect_refused(fabric.register_memory({.address = bytes.data(), .length_bytes = 1, .writable = false},
                                        FabricAccess::writable),
                 Code::invalid_argument, "register it as readable");
}

TEST(FabricRefusals, memory_that_is_not_of_this_process) {
  Fabric fabric = open_at({"127.0.0.1"});
  const auto refuse = [&](const void* begin, std::size_t bytes, const char* words) {
    expect_refused(fabric.register_memory({.address = const_cast<void*>(begin), .length_bytes = bytes},
                                          FabricAccess::writable),
                   Code::invalid_argument, words);
  };
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const two = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(two, MAP_FAILED);
  std::byte* const second = static_cast<std::byte*>(two) + page;
  ASSERT_EQ(::munmap(second, page), 0);
  refuse(second, 1, "not all memory of this process");
  refuse(two, page + 1, "not all memory of this process");
  refuse(two, SIZE_MAX, "over the end of the address space");
  EXPECT_TRUE(fabric.register_memory({.address = two, .length_bytes = page}, FabricAccess::writable));
  fabric.close();
  ::munmap(two, page);
}

TEST(FabricRefusals, a_barrier_of_peers_of_another_fabric) {
  TwoFabrics two(64);
  const FabricAddress addresses[] = {two.there.address()};
  const auto group = value_of(two.here.peer_group(0, addresses));
  expect_refused(two.there.barrier(group, 1), Code::invalid_argument, "of another fabric");
}

TEST(FabricRefusals, peers_without_a_network_card_of_a_kind_of_ours) {
  Fabric near = open_at({"this host"}), far = open_at({"127.0.0.1"}), both = open_at({"this host", "lo"});
  expect_refused(near.connect(far.address()), Code::not_supported, "no network card of the fabric reaches");
  const FabricAddress addresses[] = {both.address(), near.address()};
  expect_refused(far.peer_group(0, addresses), Code::not_supported, "tcp:");
  EXPECT_TRUE(near.connect(both.address()));
  EXPECT_TRUE(far.connect(both.address()));
}

TEST(FabricRefusals, memory_that_was_deregistered) {
  TwoFabrics two(4096);
  const auto target = two.target();
  ASSERT_TRUE(two.here.deregister(two.here_block->memory));
  expect_refused(two.here.write(two.here_block->memory, 0, target, 0, 1), Code::not_found, "deregistered");
  expect_refused(two.here.deregister(two.here_block->memory), Code::not_found, "deregistered");
  expect_refused(two.here.deregister(two.there_block->memory), Code::invalid_argument, "another fabric");
}

TEST(FabricRefusals, what_a_post_cannot_have) {
  TwoFabrics two(4096);
  FabricPost post;
  post.spread = FabricSpread::pinned;
  post.nic = 2;
  expect_refused(two.here.write(two.here_block->memory, 0, two.target(), 0, 1, post), Code::invalid_argument,
                 "there is no network card 2: the group has 2");
  FabricPost scoped;
  scoped.immediate = {1, 0x8000'0000};
  expect_refused(two.here.write(two.here_block->memory, 0, two.target(), 0, 1, scoped),
                 Code::invalid_argument, "scope 2147483648");
  expect_refused(two.here.scatter(two.here_block->memory, {}), Code::invalid_argument, "at least one target");
  const FabricTarget wrong{two.target(), 0, 4090, 7};
  expect_refused(two.here.scatter(two.here_block->memory, std::span(&wrong, 1)), Code::invalid_argument,
                 "target 0: 7 bytes from byte 4090 on of the target");
  expect_refused(two.here.post_immediate(FabricPeer(), {1, 0}), Code::invalid_argument, "empty");
}

TEST(FabricRefusals, addresses_and_descriptors_that_are_damaged) {
  Fabric fabric = open_at({"127.0.0.1"});
  Block block(fabric, std::vector<std::uint8_t>(64), FabricAccess::writable);
  const std::string descriptor = block.memory.descriptor().bytes();
  const std::string address = fabric.address().bytes();
  for (std::size_t length = 0; length < descriptor.size(); ++length)
    expect_refused(FabricDescriptor::from_bytes(descriptor.substr(0, length)), Code::corrupt, "descriptor");
  for (std::size_t length = 0; length < address.size(); ++length)
    expect_refused(FabricAddress::from_bytes(address.substr(0, length)), Code::corrupt, "address");
  expect_refused(FabricDescriptor::from_bytes(descriptor + "x"), Code::corrupt, "damaged");
  expect_refused(FabricDescriptor::from_bytes(address), Code::corrupt, "damaged");
  expect_refused(FabricAddress::from_bytes(descriptor), Code::corrupt, "damaged");
  std::string later = descriptor;
  later[2] = 9;
  expect_refused(FabricDescriptor::from_bytes(later), Code::not_supported, "version 9");
  const std::string text = fabric.address().to_text();
  EXPECT_EQ(value_of(FabricAddress::from_text(text)), fabric.address());
  expect_refused(FabricAddress::from_text(text.substr(1)), Code::corrupt, "digits");
  expect_refused(FabricAddress::from_text("zz"), Code::corrupt, "wrong at 0");
}

TEST(FabricRefusals, groups_that_cannot_be) {
  const auto open = [](std::vector<FabricGroupOptions> groups, std::vector<int> devices = {}) {
    return Fabric::open({.devices = std::move(devices), .groups = std::move(groups)});
  };
  expect_refused(open({{.nics = {}}}), Code::invalid_argument, "no network card");
  expect_refused(open({{.nics = {"127.0.0.1", "127.0.0.1"}}}), Code::invalid_argument, "given twice");
  expect_refused(open({{.nics = {"lo"}}, {.nics = {"127.0.0.1"}}}), Code::invalid_argument,
                 "given twice (once as lo)");
  expect_refused(open({{.nics = {"no_such_card"}}}), Code::not_found, "no_such_card");
  const auto not_ours = open({{.nics = {"192.0.2.1"}}});
  ASSERT_FALSE(not_ours);
  EXPECT_NE(not_ours.error().message.find("192.0.2.1"), std::string::npos) << not_ours.error().message;
  expect_refused(open({{.nics = {"lo"}, .cpus = {4095}}}), Code::invalid_argument, "4095");
  expect_refused(open({{.nics = {"lo"}}}, {0}), Code::invalid_argument, "exclude each other");
  expect_refused(open({{.nics = {"lo"}, .device = 77}}), Code::invalid_argument, "GPU 77");
  expect_refused(open({}, {77}), Code::invalid_argument, "GPU 77");
  expect_refused(open({}, {3, 3}), Code::invalid_argument, "GPU");
}

}  // namespace
}  // namespace headrace::test_fabric
