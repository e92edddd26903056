// SPDX-License-Identifier: Apache-2.0
#include "wire/metadata.hpp"

#include "tests/support/sealed_metadata.hpp"
#include "wire/byte_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <msgpack/pack.hpp>

#include <functional>
#include <new>
#include <random>

namespace headrace::wire {
namespace {

using ::headrace::testing::sealed_metadata;
using ::testing::HasSubstr;

/// Metadata with every field filled, no constant column, and gaps between the ids.
Metadata full_example() {
  Metadata m;
  m.name = "prefill-0";
  m.incarnation = 0xfeedfacecafebeef;
  m.version = 41;
  m.since = 7;
  m.partial = true;
  m.backends = {{"shm", "0.1", std::string("\x00\x01info", 6)}, {"tcp", "0.1", std::nullopt}, {"x", "", ""}};
  m.ids = {3, 4, 9, 4000000000U};
  m.addresses = {0x7f0000001000, 0x7f0000002000, 0, 0xffffffffffff0000};
  m.lengths = {4096, 8192, 0, 0xffff};
  m.kinds = {0, 1, 3, 4};
  m.masks = {1, 2, 3, 7};
  m.named = {{3, "kv/0", ""}, {9, "", std::string("no\0te", 5)}, {4000000000U, "weights", "f16"}};
  m.public_data = {{3, 0, "handle"}, {9, 0, ""}, {9, 1, "public"}};
  m.gone = {{1, 2}, {5, 4}, {10, 100}, {4294967295U, 1}};
  return m;
}

Metadata smallest() {
  Metadata m;
  m.name = "a";
  m.incarnation = 1;
  m.end = 1;
  return m;
}

/// `n` contiguous regions of one size, as a serving engine registers its pages.
Metadata rows(std::size_t n) {
  Metadata m = smallest();
  m.backends = {{"shm", "0.1", "info"}, {"tcp", "0.1", "info"}};
  for (std::size_t i = 0; i < n; ++i) {
    m.ids.push_back(static_cast<std::uint32_t>(i + 1));
    m.addresses.push_back(0x7f0000000000 + i * 65536);
    m.lengths.push_back(65536);
    m.kinds.push_back(0);
    m.masks.push_back(3);
  }
  m.end = n + 1;
  return m;
}

std::string encoded(const Metadata& m) {
  auto bytes = encode(m);
  EXPECT_TRUE(bytes.ok()) << bytes.error().message;
  return bytes.ok() ? *bytes : std::string();
}

void expect_round_trip(const Metadata& m) {
  const auto back = decode(encoded(m));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, m);
}

void expect_corrupt(std::string_view bytes, const char* because) {
  const auto decoded = decode(bytes);
  ASSERT_FALSE(decoded.ok()) << because;
  EXPECT_EQ(decoded.code(), Code::corrupt) << decoded.error().message;
  EXPECT_THAT(decoded.error().message, HasSubstr(because));
  EXPECT_THAT(decoded.error().message, HasSubstr("offset"));
}

/// A body written key by key, for bodies that `encode` would not write.
class Body {
 public:
  using Packer = msgpack::packer<ByteWriter>;
  Body() {
    with("name", [](Packer& p) { text(p, "a"); }).number("inc", 1).number("end", std::uint64_t{1} << 32);
  }

  Body& with(std::string_view key, const std::function<void(Packer&)>& value) {
    Packer packer(pairs_);
    text(packer, key);
    value(packer);
    ++count_;
    return *this;
  }
  Body& number(std::string_view key, std::uint64_t value) {
    return with(key, [&](Packer& p) { p.pack_uint64(value); });
  }
  Body& binary(std::string_view key, std::string_view bytes) {
    return with(key, [&](Packer& p) { bin(p, bytes); });
  }
  /// n regions with correct columns, except for those that the test replaces.
  Body& regions(std::uint64_t n, std::string_view id = std::string_view("\1\0\0\0", 4),
                std::string_view kind = std::string_view("\0", 1),
                std::string_view mask = std::string_view("\0\0", 2)) {
    return number("n", n)
        .binary("id", id)
        .binary("addr", std::string(8 * n, '\0'))
        .binary("len", std::string(8, '\1'))
        .binary("kind", kind)
        .binary("mask", mask);
  }

  static void text(Packer& p, std::string_view t) {
    p.pack_str(static_cast<std::uint32_t>(t.size()));
    p.pack_str_body(t.data(), static_cast<std::uint32_t>(t.size()));
  }
  static void bin(Packer& p, std::string_view b) {
    p.pack_bin(static_cast<std::uint32_t>(b.size()));
    p.pack_bin_body(b.data(), static_cast<std::uint32_t>(b.size()));
  }

  [[nodiscard]] std::string sealed(std::uint16_t minor = 0, std::uint16_t major = 1) const {
    ByteWriter body;
    Packer(body).pack_map(count_);
    body.bytes(pairs_.view());
    return sealed_metadata(body.view(), minor, major);
  }

 private:
  ByteWriter pairs_;
  std::uint32_t count_ = 0;
};

// --- decoding returns what was encoded

TEST(Metadata, EveryFieldIsDecodedAsItWasEncoded) { expect_round_trip(full_example()); }
TEST(Metadata, MetadataWithoutRegionsAndBackendsIsDecodedAsItWasEncoded) { expect_round_trip(smallest()); }
TEST(Metadata, OneRegionIsDecodedAsItWasEncoded) { expect_round_trip(rows(1)); }
TEST(Metadata, ManyContiguousRegionsAreDecodedAsTheyWereEncoded) { expect_round_trip(rows(1000)); }

TEST(Metadata, RandomTablesAreDecodedAsTheyWereEncoded) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    Metadata m = full_example();
    m.named.clear();
    m.public_data.clear();
    m.gone.clear();
    const bool constant = round % 2 == 0;
    const std::size_t n = random() % 40;
    m.ids.clear(), m.addresses.clear(), m.lengths.clear(), m.kinds.clear(), m.masks.clear();
    std::uint32_t id = 0;
    for (std::size_t i = 0; i < n; ++i) {
      id += 1 + static_cast<std::uint32_t>(constant ? 0 : random() % 3);
      m.ids.push_back(id);
      m.addresses.push_back(random() >> 1);
      m.lengths.push_back(constant ? 4096 : random() >> 2);
      m.kinds.push_back(constant ? 2 : static_cast<std::uint8_t>(random() % 5));
      m.masks.push_back(constant ? 5 : static_cast<std::uint16_t>(random() % 8));
      if (random() % 3 == 0)
        m.named.push_back({id, std::string(random() % 256, 'n'), std::string(random() % 300, 'x')});
      if (random() % 5 == 0 && (m.masks.back() & 4) != 0) m.public_data.push_back({id, 2, "pub"});
    }
    if (n != 0) m.gone.push_back({id + 1, 5});
    expect_round_trip(m);
  }
}

TEST(Metadata, ARegionTakesAtMost9Or17Or23BytesByItsConstantColumns) {
  constexpr std::size_t n = 100'000;
  Metadata m = rows(n);
  EXPECT_LE(encoded(m).size(), 9 * n);  // 8 bytes of address for each region, and little else
  for (std::size_t i = 0; i < n; ++i) m.lengths[i] = 65536 + i;
  EXPECT_LE(encoded(m).size(), 17 * n);
  for (std::size_t i = 0; i < n; ++i) {
    m.ids[i] = static_cast<std::uint32_t>(2 * i + 1);
    m.kinds[i] = static_cast<std::uint8_t>(i % 2);
    m.masks[i] = static_cast<std::uint16_t>(i % 4);
  }
  m.end = 2 * n;
  const std::size_t worst = encoded(m).size();
  EXPECT_GT(worst, 22 * n);
  EXPECT_LE(worst, 24 * n);
  EXPECT_LE(worst, 23 * n + 256);
}

// --- damage

TEST(Metadata, EveryTruncationIsRefused) {
  const std::string bytes = encoded(full_example());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = decode(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(decoded.ok()) << size;
    EXPECT_EQ(decoded.code(), Code::corrupt) << size << ": " << decoded.error().message;
  }
  expect_corrupt(bytes + '\0', "offset 8");
}

TEST(Metadata, EveryFlippedBitIsRefused) {
  std::string bytes = encoded(full_example());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const char mask = static_cast<char>(1 << (bit % 8));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
    EXPECT_FALSE(decode(bytes).ok()) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
  }
  EXPECT_TRUE(decode(bytes).ok());
}

TEST(Metadata, EveryTruncatedOrFlippedBodyWithACorrectChecksumIsReadWithinItsBounds) {
  // The checks behind the checksum: the sanitizers watch the reader, and an accepted body must be encoded and
  // decoded to the same metadata.
  const std::string body = encoded(full_example()).substr(MetadataLimits::envelope_bytes);
  for (std::size_t size = 0; size < body.size(); ++size) {
    EXPECT_EQ(decode(sealed_metadata(std::string_view(body).substr(0, size))).code(), Code::corrupt) << size;
  }
  int accepted = 0;
  for (std::size_t bit = 0; bit < 8 * body.size(); ++bit) {
    std::string flipped = body;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ static_cast<char>(1 << (bit % 8)));
    const auto decoded = decode(sealed_metadata(flipped));
    if (!decoded.ok()) continue;
    ++accepted;
    expect_round_trip(*decoded);
  }
  EXPECT_GT(accepted, 0);
}

TEST(Metadata, AnotherMajorVersionIsRefusedWithBothNumbers) {
  const auto decoded = decode(Body().sealed(3, 2));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.code(), Code::not_supported);
  EXPECT_THAT(decoded.error().message, HasSubstr("2.3"));
  EXPECT_THAT(decoded.error().message, HasSubstr("1.0"));
}

TEST(Metadata, UnknownKeysAreSkippedInAHigherMinorAndRefusedInOurs) {
  Body body;
  body.with("later", [](Body::Packer& p) {
    p.pack_array(2).pack_map(1).pack_nil().pack_double(1.5);
    p.pack_ext(3, 1).pack_ext_body("abc", 3);
  });
  const auto decoded = decode(body.sealed(1));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(decoded->name, "a");
  expect_corrupt(body.sealed(0), "no such key");
}

TEST(Metadata, RegionsOfAnUnknownKindAreLeftOutWithAllTheirData) {
  Metadata m = full_example();
  m.kinds[2] = 5;  // id 9
  const auto decoded = decode(encoded(m));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_THAT(decoded->ids, ::testing::ElementsAre(3, 4, 4000000000U));
  EXPECT_THAT(decoded->kinds, ::testing::ElementsAre(0, 1, 4));
  EXPECT_THAT(decoded->masks, ::testing::ElementsAre(1, 2, 7));
  EXPECT_EQ(decoded->named, (std::vector<Metadata::Named>{m.named[0], m.named[2]}));
  EXPECT_EQ(decoded->public_data, (std::vector<Metadata::PublicData>{m.public_data[0]}));
}

// --- rules

struct Rule {
  const char* sentence;
  std::function<void(Metadata&)> break_it;
};

TEST(Metadata, MetadataThatBreaksARuleIsNotEncoded) {
  const std::vector<Rule> rules = {
      {"name has 0 bytes", [](Metadata& m) { m.name.clear(); }},
      {"name has 256 bytes", [](Metadata& m) { m.name.assign(256, 'n'); }},
      {"incarnation is 0", [](Metadata& m) { m.incarnation = 0; }},
      {"since 42 is beyond version 41", [](Metadata& m) { m.since = 42; }},
      {"which no agent reaches", [](Metadata& m) { m.version = UINT64_MAX; }},
      {"in a part or update, which has none", [](Metadata& m) { m.end = 4; }},
      {"the ids end at 4000000000 in a whole export whose last one is 4000000000",
       [](Metadata& m) {
         m.since = 0;
         m.partial = false;
         m.end = 4000000000U;
       }},
      {"17 entries",
       [](Metadata& m) {
         for (int i = 3; i < 17; ++i)
           m.backends.push_back({std::string(1, static_cast<char>('a' + i)), "", {}});
       }},
      {"appears twice", [](Metadata& m) { m.backends[1].name = "shm"; }},
      {"65 bytes", [](Metadata& m) { m.backends[0].name.assign(65, 'b'); }},
      {"65 bytes", [](Metadata& m) { m.backends[0].version.assign(65, 'b'); }},
      {"65537 bytes", [](Metadata& m) { m.backends[0].info.emplace(65537, 'b'); }},
      {"ids rise", [](Metadata& m) { m.ids[0] = 0; }},
      {"ids rise", [](Metadata& m) { m.ids[1] = 3; }},
      {"5 addresses", [](Metadata& m) { m.addresses.push_back(1); }},
      {"3 kinds", [](Metadata& m) { m.kinds.pop_back(); }},
      {"pass the end of memory", [](Metadata& m) { m.lengths[3] = 0x10000; }},
      {"names a backend beyond", [](Metadata& m) { m.masks[1] = 8; }},
      {"id 8 is not listed", [](Metadata& m) { m.named[1].id = 8; }},
      {"out of order", [](Metadata& m) { m.named[1].id = 3; }},
      {"name has 256 bytes", [](Metadata& m) { m.named[0].name.assign(256, 'n'); }},
      {"note has 65537 bytes", [](Metadata& m) { m.named[0].note.assign(65537, 'n'); }},
      {"out of order", [](Metadata& m) { m.public_data[2].backend = 0; }},
      {"not registered with backend 2", [](Metadata& m) { m.public_data[2].backend = 2; }},
      {"not registered with backend 3", [](Metadata& m) { m.public_data[2].backend = 3; }},
      {"4097 bytes", [](Metadata& m) { m.public_data[2].bytes.assign(4097, 'p'); }},
      {"region 3 is both listed and gone", [](Metadata& m) { m.gone[0].count = 3; }},
      {"out of order", [](Metadata& m) { m.gone[1].first = 2; }},
      {"0 ids from 5", [](Metadata& m) { m.gone[1].count = 0; }},
      {"beyond the last id", [](Metadata& m) { m.gone[3].count = 2; }},
  };
  for (const Rule& rule : rules) {
    Metadata m = full_example();
    rule.break_it(m);
    const auto bytes = encode(m);
    ASSERT_FALSE(bytes.ok()) << rule.sentence;
    EXPECT_EQ(bytes.code(), Code::invalid_argument);
    EXPECT_THAT(bytes.error().message, HasSubstr(rule.sentence));
  }
}

TEST(Metadata, MetadataThatBreaksARuleIsNotDecoded) {
  using Packer = Body::Packer;
  const auto entry = [](Packer& p, std::uint32_t id, std::string_view name) {
    p.pack_array(3).pack_uint32(id);
    Body::text(p, name);
    Body::bin(p, "");
  };
  const std::string three_ids("\1\0\0\0\2\0\0\0\3\0\0\0", 12);

  expect_corrupt(sealed_metadata("\x80"), "name has 0 bytes");
  expect_corrupt(sealed_metadata("\x80\xc0"), "follow the last value");
  expect_corrupt(sealed_metadata("\xc0"), "should be a map");
  expect_corrupt(sealed_metadata("\xc1"), "no msgpack value begins");
  expect_corrupt(Body().number("inc", 2).sealed(), "appears twice");
  expect_corrupt(Body().with("ver", [](Packer& p) { p.pack_int64(-1); }).sealed(), "not negative");
  expect_corrupt(Body().number("since", 1).sealed(), "since 1 is beyond version 0");
  expect_corrupt(Body().number("part", 1).sealed(), "should be true or false");
  expect_corrupt(Body()
                     .with("backends", [](Packer& p) { p.pack_array(1).pack_array(2).pack_nil().pack_nil(); })
                     .sealed(),
                 "2 values instead of 3");
  expect_corrupt(Body().number("n", 1).sealed(), "no \"addr\"");
  expect_corrupt(Body().binary("addr", "").sealed(), "without regions");
  expect_corrupt(Body().number("n", (std::uint64_t{64} << 20) + 1).sealed(), "at most 67108864");
  expect_corrupt(Body().number("n", 3).binary("addr", std::string(23, '\0')).sealed(), "addr has 23 bytes");
  expect_corrupt(Body().regions(3, std::string(8, '\1')).sealed(), "id has 8 bytes");
  expect_corrupt(Body()
                     .regions(3)
                     .with("named",
                           [](Body::Packer& p) {
                             p.pack_array(1);
                             p.pack_array(3);
                             p.pack_uint32(1);
                             Body::text(p, "caf\xe9");
                             Body::bin(p, "\xe9");
                           })
                     .sealed(),
                 "name is not UTF-8");
  expect_corrupt(Body()
                     .regions(3)
                     .with("named",
                           [](Body::Packer& p) {
                             p.pack_array(1);
                             p.pack_array(3);
                             p.pack_uint32(1);
                             Body::text(p, std::string_view("half\0name", 9));
                             Body::bin(p, "");
                           })
                     .sealed(),
                 "name \"half\\x00name\" has a control character");
  expect_corrupt(Body().regions(3, std::string_view("\0\0\0\0", 4)).sealed(), "ids rise from 1");
  expect_corrupt(Body().regions(3, "\xfe\xff\xff\xff").sealed(), "beyond the last id");
  expect_corrupt(Body().regions(3, three_ids, std::string_view("\0\0", 2)).sealed(), "kind has 2 bytes");
  expect_corrupt(
      Body().regions(3, three_ids, std::string_view("\0", 1), std::string_view("\1\0", 2)).sealed(),
      "names a backend beyond");
  expect_corrupt(
      Body().regions(1).with("named", [&](Packer& p) { p.pack_array(1), entry(p, 2, "x"); }).sealed(),
      "id 2 is not listed");
  expect_corrupt(Body()
                     .regions(1)
                     .with("named", [&](Packer& p) { p.pack_array(2), entry(p, 1, "x"), entry(p, 1, "y"); })
                     .sealed(),
                 "2 entries, at most 1");
  expect_corrupt(Body()
                     .regions(1)
                     .with("named", [&](Packer& p) { p.pack_array(1), entry(p, 1, std::string(256, 'x')); })
                     .sealed(),
                 "256 bytes");
  expect_corrupt(Body().binary("gone", "1234567").sealed(), "a multiple of 8");
  expect_corrupt(Body().binary("gone", std::string(8 * ((std::size_t{1} << 20) + 1), '\1')).sealed(),
                 "are allowed");
  expect_corrupt(Body()
                     .with("x",
                           [&](Packer& p) {
                             for (int i = 0; i < 40; ++i) p.pack_array(1);
                             p.pack_nil();
                           })
                     .sealed(1),
                 "nested deeper");
}

TEST(Metadata, ALengthBeyondTheInputReservesNoMemory) {
  // Each input claims gigabytes in a few bytes. bad_alloc or a slow test shows that the reader believed it.
  using Packer = Body::Packer;
  expect_corrupt(Body()
                     .number("n", std::uint64_t{64} << 20)
                     .binary("id", std::string("\1\0\0\0", 4))
                     .binary("addr", "12345678")
                     .sealed(),
                 "addr has 8 bytes");
  expect_corrupt(Body().regions(4).with("named", [](Packer& p) { p.pack_array(0xffffffff); }).sealed(),
                 "are left");
  expect_corrupt(Body().with("backends", [](Packer& p) { p.pack_array(0xffffffff); }).sealed(), "are left");
  expect_corrupt(Body().with("gone", [](Packer& p) { p.pack_bin(0xffffffff); }).sealed(), "are left");
  expect_corrupt(Body().with("x", [](Packer& p) { p.pack_map(0xffffffff); }).sealed(1), "are left");
  expect_corrupt(sealed_metadata("\xdf\xff\xff\xff\xff"), "are left");
}

}  // namespace
}  // namespace headrace::wire
