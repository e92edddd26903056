// SPDX-License-Identifier: Apache-2.0
#include "cli/common/tensor_note.hpp"

#include "unit/cli/served_tensor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Region region_of(const ServedTensor& tensor, bool with_name = false) {
  Region region;
  region.id = tensor.region;
  region.name = with_name ? "tensor" : tensor.info.name;
  region.note = write_note(tensor, with_name);
  region.length_bytes = std::max<std::uint64_t>(1, tensor.info.bytes);
  return region;
}

TEST(Notes, ATensorIsDescribedByItsRegionOnly) {
  const ServedTensor second = served("b", "F32", {0}, 1), first = served("a", "BF16", {3, 5}, 0);
  Region other;
  other.name = "cache";
  other.note = "something else";
  const auto all = read_notes(std::vector{region_of(second), other, region_of(first)});
  ASSERT_TRUE(all.ok()) << all.error().message;
  ASSERT_THAT(names_of(all->tensors), ElementsAre("a", "b"));
  EXPECT_EQ(all->tensors[0].info.shape, first.info.shape);
  EXPECT_EQ(all->tensors[0].checksum, first.checksum);
  EXPECT_EQ(all->tensors[0].region, first.region);
}

TEST(Notes, ANameTooLongForARegionStandsInTheNote) {
  const ServedTensor tensor = served(std::string(300, 'n'), "U8", {1}, 0);
  EXPECT_EQ(read_notes(std::vector{region_of(tensor, true)})->tensors[0].info.name, tensor.info.name);
}

TEST(Notes, ANoteThatContradictsItselfIsRefused) {
  for (const char* note :
       {R"({"dtype":"F32"})", R"({"dtype":"F32","shape":[2],"bytes":4,"xxh3":"0000000000000000","index":0})",
        R"({"dtype":"F32","shape":[2],"bytes":8,"xxh3":"zz","index":0})",
        R"({"dtype":"Q7","shape":[2],"bytes":8,"xxh3":"0000000000000000","index":0})",
        R"({"dtype":"F32","shape":[-2],"bytes":8,"xxh3":"0000000000000000","index":0})",
        R"({"dtype":"F32","shape":[3],"bytes":12,"xxh3":"0000000000000000","index":0})"}) {
    Region region;
    region.name = "t";
    region.length_bytes = 8;
    region.note = note;
    const auto all = read_notes(std::vector{region});
    ASSERT_FALSE(all.ok()) << note;
    EXPECT_EQ(all.code(), Code::corrupt);
  }
}

TEST(Notes, ANameThatATerminalWouldObeyIsRefusedAndShownEscaped) {
  for (const std::string name : {"a\x1b]0;title\x07", "two\nlines",
                                 "\xc2\x9b"
                                 "2J"}) {
    const auto all = read_notes(std::vector{region_of(served(name, "U8", {1}, 0), true)});
    ASSERT_FALSE(all.ok()) << name;
    EXPECT_EQ(all.code(), Code::corrupt);
    EXPECT_THAT(all.error().message, testing::Not(HasSubstr(name)));
  }
}

TEST(Notes, LengthsWhoseSumWrapsAreRefused) {
  std::vector<Region> regions;
  for (std::uint64_t i = 0; i < 17; ++i)
    regions.push_back(region_of(served("t" + std::to_string(i), "U8", {std::uint64_t{1} << 60}, i)));
  const auto all = read_notes(regions);
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.code(), Code::corrupt);
  EXPECT_THAT(all.error().message, HasSubstr("too large"));
}

TEST(Notes, TwoTensorsOfOneNameAreRefused) {
  const ServedTensor tensor = served("t", "U8", {1}, 0);
  EXPECT_THAT(read_notes(std::vector{region_of(tensor), region_of(tensor)}).error().message,
              HasSubstr("two tensors"));
}

}  // namespace
}  // namespace headrace::cli
