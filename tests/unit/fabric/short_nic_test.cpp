// SPDX-License-Identifier: Apache-2.0
// The short forms in a descriptor: each is read as what it was made of.
#include "fabric/short_nic.hpp"

#include "fabric/address.hpp"
#include "rail/nic_list.hpp"
#include "rail/stream/memories.hpp"
#include "unit/fabric/two_fabrics.hpp"

namespace headrace::test_fabric {
namespace {

using namespace fabric;

constexpr const char* tcp_v4 = "tcp:192.0.2.1:4711/0123456789abcdef";
constexpr const char* tcp_v6 = "tcp:[2001:db8::1]:4711/0123456789abcdef";
constexpr const char* near = "shm:fedcba9876543210/0123456789abcdef";

std::string written(const std::string& address) {
  wire::ByteWriter out;
  write_short_address(out, address);
  return std::move(out).take();
}

TEST(FabricShortNic, addresses_come_back_as_they_were) {
  for (const std::string address :
       {tcp_v4, tcp_v6, near, "tcp:[2001:db8:0::1]:4711/0123456789abcdef",
        "tcp:192.0.2.1:4711/0123456789ABCDEF", "verbs:mlx5_0", "tcp:", "-", "\xff"}) {
    const std::string bytes = written(address);
    wire::PacketReader in(bytes);
    EXPECT_EQ(read_short_address(in), address);
    EXPECT_TRUE(in.complete()) << address;
  }
  EXPECT_EQ(written(tcp_v4).size(), 15U);
  EXPECT_EQ(written(tcp_v6).size(), 27U);
  EXPECT_EQ(written(near).size(), 17U);
}

TEST(FabricShortNic, keys_come_back_as_they_were_and_what_repeats_nothing_is_kept_whole) {
  const rail::stream::Key own{0x0123456789abcdef, 7, 4096, false};
  rail::stream::Key of_gpu = own, of_another = own, longer = own;
  of_gpu.gpu = true;
  ++of_another.life;
  ++longer.bytes;
  const std::string kept[] = {rail::stream::encode(of_another), rail::stream::encode(longer), "-", "a key"};
  const std::string shortened[] = {rail::stream::encode(own), rail::stream::encode(of_gpu)};
  for (const std::string address : {tcp_v4, tcp_v6, near}) {
    const auto check = [&](const std::string& key, std::size_t bytes) {
      wire::ByteWriter out;
      write_short_key(out, key, {address, 4096});
      EXPECT_EQ(out.view().size(), bytes);
      wire::PacketReader in(out.view());
      EXPECT_EQ(read_short_key(in, {address, 4096}), key);
      EXPECT_TRUE(in.complete());
    };
    for (const std::string& key : shortened) check(key, 5);
    for (const std::string& key : kept) check(key, 3 + key.size());
  }
}

TEST(FabricShortNic, forms_that_are_none_fail) {
  for (const std::string& bytes : {std::string("\x09") + std::string(40, 'x'), std::string("\x01zz"),
                                   std::string(1, '\x04') + std::string(4, '\1')}) {
    wire::PacketReader in(bytes);
    static_cast<void>(read_short_address(in));
    EXPECT_FALSE(in.complete());
  }
  const std::string key("\x04\1\0\0\0", 5);
  wire::PacketReader in(key);
  const std::string unknown = "verbs:mlx5_0";  // whose life nobody knows
  static_cast<void>(read_short_key(in, {unknown, 4096}));
  EXPECT_FALSE(in.good());
}

TEST(FabricShortNic, a_descriptor_is_short_and_says_all_that_its_maker_had) {
  for (const std::vector<std::string>& nics : std::vector<std::vector<std::string>>{
           {"127.0.0.1"}, {"127.0.0.1", "this host"}, {"::1", "this host"}}) {
    Fabric fabric = open_at(nics);
    Block block(fabric, std::vector<std::uint8_t>(64), FabricAccess::writable);
    const std::string bytes = block.memory.descriptor().bytes();
    EXPECT_LT(bytes.size(), 80U);
    const auto parts = value_of(read_descriptor(bytes));
    EXPECT_EQ(parts->owner, value_of(fabric::read_address(fabric.address().bytes()))->groups.front());
    const auto again = make_descriptor(parts->access, parts->length_bytes, parts->owner, parts->keys);
    EXPECT_EQ(again->bytes, bytes);
    EXPECT_EQ(value_of(rail::read_nic_list(parts->keys, "the keys")).size(), nics.size());
  }
}

}  // namespace
}  // namespace headrace::test_fabric
