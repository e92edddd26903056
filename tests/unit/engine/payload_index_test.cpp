// SPDX-License-Identifier: Apache-2.0
#include "engine/payload_index.hpp"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <optional>
#include <random>
#include <string>

namespace headrace::engine {
namespace {

struct Kept : PayloadIndex::Entry {
  std::string text;
};

/// What the index should find, by looking at everything.
std::optional<std::uint64_t> oldest_of(const std::map<std::uint64_t, Kept>& all, const std::string& prefix) {
  for (const auto& [number, kept] : all)
    if (kept.text.starts_with(prefix)) return number;
  return std::nullopt;
}

/// Few letters, so that prefixes meet; all values of a byte, so that signs matter.
std::string random_text(std::mt19937_64& random, std::size_t longest) {
  std::string text(random() % (longest + 1), '\0');
  for (char& c : text) c = "\0a\x7f\x80\xff"[random() % 5];
  return text;
}

TEST(PayloadIndex, it_finds_what_a_look_at_all_messages_finds) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  PayloadIndex index;
  std::map<std::uint64_t, Kept> all;
  std::uint64_t next = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 100 < (step / 2000 % 2 == 0 ? 70U : 30U) || all.empty()) {
      Kept& kept = all[next];
      kept.text = random_text(random, 6);
      kept.payload = kept.text;
      kept.number = next++;
      index.add(kept);
    } else {
      const auto at = std::next(
          all.begin(), static_cast<std::ptrdiff_t>(random() % std::min<std::size_t>(all.size(), 50)));
      index.remove(at->second);
      all.erase(at);
    }
    const std::string prefix = random_text(random, 4);
    const PayloadIndex::Entry* const found = index.oldest(prefix);
    const auto expected = oldest_of(all, prefix);
    ASSERT_EQ(found != nullptr, expected.has_value()) << "step " << step;
    if (found != nullptr) {
      ASSERT_EQ(found->number, *expected) << "step " << step;
    }
    ASSERT_EQ(index.empty(), all.empty());
  }
}

TEST(PayloadIndex, equal_payloads_leave_in_the_order_in_which_they_came) {
  PayloadIndex index;
  std::list<Kept> all(1000);
  std::uint64_t number = 0;
  for (Kept& kept : all) {
    kept.payload = "same";
    kept.number = number++;
    index.add(kept);
  }
  for (std::uint64_t expected = 0; expected < number; ++expected) {
    PayloadIndex::Entry* const found = index.oldest("sa");
    ASSERT_EQ(found->number, expected);
    index.remove(*found);
  }
  EXPECT_TRUE(index.empty());
}

}  // namespace
}  // namespace headrace::engine
