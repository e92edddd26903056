// SPDX-License-Identifier: Apache-2.0
// Posts as ranges of a profiler: a tool in this process takes the place of Nsight Systems.
#include "telemetry/nvtx.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace headrace::test_fabric {
namespace {

struct SeenRange {
  std::string name;
  int ends = 0;
};

/// What the tool was told. One for the process, as the tool is.
class Timeline {
 public:
  static Timeline& one() {
    static Timeline timeline;
    return timeline;
  }
  std::uint64_t start(const char* name) {
    const std::lock_guard lock(mutex_);
    ranges_.emplace(++last_, SeenRange{name});
    return last_;
  }
  void end(std::uint64_t range) {
    const std::lock_guard lock(mutex_);
    ++ranges_[range].ends;
  }
  std::vector<SeenRange> take() {
    const std::lock_guard lock(mutex_);
    std::vector<SeenRange> all;
    for (auto& [number, range] : ranges_) all.push_back(std::move(range));
    ranges_.clear();
    return all;
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, SeenRange> ranges_;
};

/// As tools do it, by the layout of nvtxTypes.h.
int attach_tool(nvtx::GetTable get_table) {
  using Function = void (*)();
  struct Callbacks {
    std::size_t struct_size;
    int (*get_functions)(int module, Function*** table, unsigned* last);
  };
  const auto* const callbacks = static_cast<const Callbacks*>(get_table(1));
  Function** table = nullptr;
  unsigned last = 0;
  if (get_table(2) != nullptr || get_table(3) == nullptr || callbacks->get_functions(2, &table, &last) != 0 ||
      callbacks->get_functions(1, &table, &last) != 1 || last != 15)
    return 0;
  *table[5] = reinterpret_cast<Function>(
      +[](const char* name) -> std::uint64_t { return Timeline::one().start(name); });
  *table[7] = reinterpret_cast<Function>(+[](std::uint64_t range) { Timeline::one().end(range); });
  return 1;
}

TEST(FabricRanges, each_post_is_a_range_from_its_call_to_its_end) {
  TwoFabrics two(4096);
  nvtx::attach(attach_tool);
  Timeline::one().take();
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  expect_done(two.here.post_immediate(value_of(two.here.connect(two.there.address())), {3, 0}));
  expect_refused(two.here.write(two.here_block->memory, 0, two.target(), 1, 4096), Code::invalid_argument,
                 "of the target");
  const auto waits = value_of(two.there.receive(two.there_block->memory, 0, 10));
  waits.cancel();
  EXPECT_EQ(waits.wait(long_enough).code, Code::canceled);
  const auto seen = Timeline::one().take();
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].name, "headrace: write of 4096 bytes");
  EXPECT_EQ(seen[1].name, "headrace: immediate 3");
  EXPECT_EQ(seen[2].name, "headrace: receive of up to 10 bytes");
  for (const SeenRange& range : seen) EXPECT_EQ(range.ends, 1) << range.name;
}

TEST(FabricRanges, a_fabric_that_closes_ends_the_ranges_of_its_posts) {
  TwoFabrics two(4096);
  nvtx::attach(attach_tool);
  Timeline::one().take();
  static_cast<void>(value_of(two.there.receive(two.there_block->memory, 0, 10)));
  two.there.close();
  expect_refused(two.there.receive(two.there_block->memory, 0, 10), Code::invalid_argument, "closed");
  const auto seen = Timeline::one().take();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].ends, 1);
}

}  // namespace
}  // namespace headrace::test_fabric
