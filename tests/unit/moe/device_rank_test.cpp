// SPDX-License-Identifier: Apache-2.0
// Ranks on one GPU, each with a stream, over the fake driver.
#include "moe/device_rank.hpp"

#include "moe/config.hpp"
#include "support/moe_steps.hpp"
#include "unit/gpu/gpu_test.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace headrace::moe_steps {
namespace {

using moe::DeviceRank;
using moe::DeviceRouting;
using moe::Halves;

class MoEDeviceRanks : public gpu::GpuTest {
 protected:
  MoEDeviceRanks() : GpuTest(std::vector<cuda::FakeGpu>{cuda::FakeGpu{.multiprocessors = 132}}) {}

  /// A rank with memory for one step.
  struct Member {
    DeviceRank rank;
    DeviceRouting routing;
    gpu::Stream stream;
    gpu::DeviceMemory window;
  };

  static MoEConfig small_config(int ranks) {
    MoEConfig config;
    config.ranks = ranks;
    config.experts = 3 * ranks, config.top_k = 2;
    config.hidden = 16, config.max_tokens = 20;
    config.wait_limit = std::chrono::minutes(1);
    return config;
  }
  [[nodiscard]] DeviceRank::Place place(int ranks) const { return {kernels, ranks, 4}; }

  void open_ranks(const MoEConfig& config) {
    std::vector<std::uint64_t> windows;
    for (int rank = 0; rank < config.ranks; ++rank) {
      const MoEConfig its = moe_reference::of_rank(config, rank);
      auto opened = DeviceRank::open(its, place(config.ranks));
      ASSERT_TRUE(opened) << opened.error().message;
      auto window = gpu::DeviceMemory::allocate(device, *its.window_bytes()).value();
      std::memset(reinterpret_cast<void*>(window.address()), 0, window.bytes());
      auto routing = opened->new_routing().value();
      windows.push_back(window.address());
      members.push_back(
          {std::move(*opened), std::move(routing), gpu::Stream::make(device).value(), std::move(window)});
    }
    for (Member& member : members) member.rank.join(windows);
  }
  std::byte* pinned(std::size_t bytes) {
    memory.push_back(gpu::PinnedMemory::allocate(device, bytes + 16).value());
    return memory.back().bytes().data();
  }
  template <class T>
  T* pinned(const std::vector<T>& values) {
    std::byte* const made = pinned(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(made, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(made);
  }
  [[nodiscard]] MoETokens tokens_of(const moe_reference::Tokens& tokens) {
    MoETokens made;
    made.count = tokens.count;
    made.rows = pinned(tokens.rows);
    if (!tokens.scales.empty()) made.scales = pinned(tokens.scales);
    made.experts = pinned(tokens.experts);
    made.weights = pinned(tokens.weights);
    return made;
  }
  [[nodiscard]] MoERows rows_of(const MoEConfig& config) {
    const auto rows = static_cast<std::size_t>(config.output_rows());
    MoERows made;
    made.rows = pinned(rows * static_cast<std::size_t>(config.row_bytes()));
    std::memset(made.rows, 0xa5, rows * static_cast<std::size_t>(config.row_bytes()));
    if (config.scale_bytes != 0) made.scales = pinned(rows * static_cast<std::size_t>(config.scale_bytes));
    for (std::size_t i = 0; i < config.payload_bytes.size(); ++i) {
      const std::size_t bytes = rows * static_cast<std::size_t>(config.payload_bytes[i]);
      made.payloads[i] = pinned(bytes);
      std::memset(made.payloads[i], 0xa5, bytes);
    }
    made.counts = reinterpret_cast<std::int32_t*>(pinned(4 * static_cast<std::size_t>(config.experts)));
    made.first_rows =
        reinterpret_cast<std::int64_t*>(pinned(8 * static_cast<std::size_t>(config.experts + config.ranks)));
    return made;
  }

  [[nodiscard]] MoEReplicas replicas_of(const ReplicaTable& table) {
    return {table.experts,       pinned(table.first), pinned(table.places), table.choice,
            pinned(table.loads), pinned(table.until), pinned(table.before)};
  }
  [[nodiscard]] cuda::Stream stream_of(std::size_t rank) const { return members[rank].stream.handle(); }
  /// As the experts of a rank do.
  static void write_results(const Step& step, const MoEConfig& config, std::size_t rank,
                            const MoEWindowRows* places) {
    const auto row_bytes = static_cast<std::size_t>(config.combine_row_bytes());
    const auto& firsts = step.expected[rank].first_rows;
    for (std::size_t source = 0; source < static_cast<std::size_t>(config.ranks); ++source)
      std::memcpy(places[source].rows,
                  step.results[rank].data() + static_cast<std::size_t>(firsts[source]) * row_bytes,
                  static_cast<std::size_t>(places[source].count) * row_bytes);
  }

  template <class T>
  static bool is_same(const void* got, const std::vector<T>& expected) {
    return std::equal(expected.begin(), expected.end(), static_cast<const T*>(got));
  }

  std::shared_ptr<const gpu::Device> device = open();
  std::shared_ptr<const gpu::Kernels> kernels = gpu::Kernels::open(library(), device).value();
  std::vector<gpu::PinnedMemory> memory;
  std::vector<Member> members;
  Random random{4711};
};

TEST_F(MoEDeviceRanks, get_rows_and_sums_on_their_streams) {
  for (const MoELayout layout : {MoELayout::by_expert, MoELayout::batched}) {
    MoEConfig config = small_config(3);
    config.layout = layout;
    members.clear();
    open_ranks(config);
    for (const bool in_halves : {false, true}) {
      Step step(random, config, Choice::uniform);
      step.make_plain(config);
      std::vector<MoERows> got;
      std::vector<std::byte*> sums;
      const std::vector<Halves> halves =
          in_halves ? std::vector<Halves>{Halves::send, Halves::receive} : std::vector<Halves>{Halves::both};
      for (std::size_t i = 0; i < members.size(); ++i) {
        Member& member = members[i];
        got.push_back(rows_of(moe_reference::of_rank(config, static_cast<int>(i))));
        sums.push_back(pinned(step.sums[i].size()));
        const MoETokens tokens = tokens_of(step.inputs[i]);
        MoEResults results;
        results.rows = pinned(step.results[i]);
        MoESums out;
        out.rows = sums[i];
        for (const Halves half : halves) {
          const auto queued =
              member.rank.dispatch(tokens, got[i], member.routing, half, member.stream.handle());
          ASSERT_TRUE(queued) << queued.error().message;
        }
        for (const Halves half : halves) {
          const auto queued = member.rank.combine(results, out, member.routing, half, member.stream.handle());
          ASSERT_TRUE(queued) << queued.error().message;
        }
      }
      for (std::size_t i = 0; i < members.size(); ++i) {
        ASSERT_TRUE(members[i].stream.wait_idle());
        EXPECT_TRUE(members[i].rank.check());
        const Dispatched& expected = step.expected[i];
        EXPECT_TRUE(is_same(got[i].rows, expected.rows));
        EXPECT_TRUE(is_same(got[i].counts, expected.counts));
        EXPECT_TRUE(is_same(got[i].first_rows, expected.first_rows));
        EXPECT_TRUE(is_same(sums[i], step.sums[i]));
      }
    }
  }
}

/// Groups, casts, payloads, scales by column, replicas, and experts that write into windows.
TEST_F(MoEDeviceRanks, take_all_that_a_configuration_may_ask_for) {
  MoEConfig config = small_config(4);
  config.group_size = 2, config.layout = MoELayout::by_rank;
  config.hidden = 144, config.dtype = DType::float8_e4m3fn, config.scale_bytes = 8;
  config.payload_bytes = {6, 32};
  open_ranks(config);
  for (int i = 0; i < 3; ++i) {
    Step step(random, config, Choice::uniform);
    while (step.cast == MoECast::none) step = Step(random, config, Choice::uniform);
    step.make_plain(config);
    step.replicas = ReplicaTable::random_one(random, config);
    step.replicas.choice = static_cast<MoEChoice>(i);
    for (auto& tokens : step.inputs)
      for (std::int64_t& expert : tokens.experts) expert %= step.replicas.experts;
    step.expect(config, moe_reference::all_ranks);
    const MoEReplicas replicas = replicas_of(step.replicas);
    std::vector<MoERows> got;
    std::vector<MoEWindowRows*> places;
    const auto rows_in_columns = config.output_rows();
    for (std::size_t r = 0; r < members.size(); ++r) {
      MoETokens tokens = tokens_of(step.inputs[r]);
      tokens.scales = nullptr, tokens.cast = step.cast, tokens.replicas = &replicas;
      for (std::size_t p = 0; p < 2; ++p) tokens.payloads[p].rows = pinned(step.inputs[r].payloads[p]);
      got.push_back(rows_of(moe_reference::of_rank(config, static_cast<int>(r))));
      got[r].scale_stride = 4, got[r].scale_unit_stride = 4 * rows_in_columns;
      const auto queued =
          members[r].rank.dispatch(tokens, got[r], members[r].routing, Halves::both, stream_of(r));
      ASSERT_TRUE(queued) << queued.error().message;
      places.push_back(reinterpret_cast<MoEWindowRows*>(pinned(4 * sizeof(MoEWindowRows))));
      ASSERT_TRUE(members[r].rank.combine_memory(places[r], members[r].routing, stream_of(r)));
    }
    for (std::size_t r = 0; r < members.size(); ++r) {
      ASSERT_TRUE(members[r].stream.wait_idle());
      EXPECT_TRUE(members[r].rank.check());
      const Dispatched& expected = step.expected[r];
      EXPECT_TRUE(is_same(got[r].rows, expected.rows));
      for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(is_same(got[r].payloads[p], expected.payloads[p]));
      const auto* const columns = static_cast<const std::uint32_t*>(got[r].scales);
      const auto* const wanted = reinterpret_cast<const std::uint32_t*>(expected.scales.data());
      for (std::int64_t row = 0; row < expected.first_rows.back(); ++row)
        for (std::int64_t word = 0; word < 2; ++word)
          EXPECT_EQ(columns[word * rows_in_columns + row], wanted[row * 2 + word]);
      write_results(step, config, r, places[r]);
    }
    std::vector<std::byte*> sums;
    for (std::size_t r = 0; r < members.size(); ++r) {
      MoEResults results;
      results.in_window = true, results.weighted = false;
      MoESums out;
      out.rows = sums.emplace_back(pinned(step.sums[r].size()));
      ASSERT_TRUE(members[r].rank.combine(results, out, members[r].routing, Halves::both, stream_of(r)));
      EXPECT_FALSE(members[r].rank.combine(results, out, members[r].routing, Halves::both, stream_of(r)))
          << "the memory was for one combine";
    }
    for (std::size_t r = 0; r < members.size(); ++r) {
      ASSERT_TRUE(members[r].stream.wait_idle());
      EXPECT_TRUE(is_same(sums[r], step.sums[r]));
    }
  }
}

TEST_F(MoEDeviceRanks, name_an_expert_whose_places_cannot_be) {
  const MoEConfig config = small_config(1);
  open_ranks(config);
  const Step step(random, config, Choice::uniform);
  ReplicaTable table;
  table.experts = 2, table.first = {0, 1, 2}, table.places = {0, 3};
  MoEReplicas replicas = replicas_of(table);
  Member& member = members[0];
  moe_reference::Tokens given = random_tokens(random, config, 2, Choice::uniform);
  given.experts = {0, 0, 0, 1};
  MoETokens tokens = tokens_of(given);
  tokens.replicas = &replicas;
  const auto run = [&] {
    const auto queued =
        member.rank.dispatch(tokens, rows_of(config), member.routing, Halves::both, stream_of(0));
    EXPECT_TRUE(member.stream.wait_idle());
    return queued ? member.rank.check() : queued;
  };
  EXPECT_EQ(
      run().error().message,
      "token 1 names expert 1 as its entry 1, whose places in replicas cannot be: expected 1 to 3 of them, "
      "each 0 to 2. It went nowhere");
  given.experts = {0, 0, 0, 2};
  tokens.experts = pinned(given.experts);
  EXPECT_EQ(run().error().message,
            "token 1 names expert 2 as its entry 1: expected -1 to 1. It went nowhere");
  replicas.choice = MoEChoice::by_share, replicas.until = nullptr;
  EXPECT_NE(run().error().message.find("by_share with until"), std::string::npos);
}

TEST_F(MoEDeviceRanks, name_a_rank_that_does_not_come_once) {
  MoEConfig config = small_config(2);
  config.wait_limit = std::chrono::milliseconds(20);
  open_ranks(config);
  const Step step(random, config, Choice::uniform);
  Member& member = members[0];
  ASSERT_TRUE(member.rank.dispatch(tokens_of(step.inputs[0]), rows_of(config), member.routing, Halves::both,
                                   member.stream.handle()));
  ASSERT_TRUE(member.stream.wait_idle());
  const auto checked = member.rank.check();
  EXPECT_EQ(checked.code(), Code::timed_out);
  EXPECT_EQ(checked.error().message, "rank 0 waited for counts of rank 1 in dispatch 1: expected 1, seen 0");
  EXPECT_EQ(member.rank.failure()->peer, 1);
  EXPECT_TRUE(member.rank.check());
}

TEST_F(MoEDeviceRanks, say_how_many_rows_and_which_expert_there_were) {
  MoEConfig config = small_config(1);
  config.row_budget = 3;
  open_ranks(config);
  moe_reference::Tokens tokens = random_tokens(random, config, 4, Choice::uniform);
  Member& member = members[0];
  const auto run = [&] {
    EXPECT_TRUE(member.rank.dispatch(tokens_of(tokens), rows_of(config), member.routing, Halves::both,
                                     member.stream.handle()));
    EXPECT_TRUE(member.stream.wait_idle());
    return member.rank.check();
  };
  EXPECT_EQ(run().error().message,
            "rank 0 got 8 rows in dispatch 1, and row_budget is 3: the rows beyond it were dropped");
  tokens.experts.assign(8, -1);
  tokens.experts[5] = 3;
  EXPECT_EQ(run().error().message,
            "token 2 names expert 3 as its entry 1: expected -1 to 2. It went nowhere");
}

TEST_F(MoEDeviceRanks, refuse_what_kernels_do_not_have_with_a_sentence) {
  EXPECT_NE(DeviceRank::open(small_config(2), {kernels, 2, 67}).error().message.find("at most 66 each"),
            std::string::npos);
  open_ranks(small_config(1));
  Member& member = members[0];
  const Step step(random, small_config(1), Choice::uniform);
  const auto message = [&](auto change) {
    MoETokens tokens = tokens_of(random_tokens(random, small_config(1), 4, Choice::uniform));
    change(tokens);
    return member.rank
        .dispatch(tokens, rows_of(small_config(1)), member.routing, Halves::both, member.stream.handle())
        .error()
        .message;
  };
  EXPECT_EQ(message([](auto& it) { it.count = 21; }), "21 tokens are given, expected 0 to max_tokens = 20");
  EXPECT_EQ(message([](auto& it) { it.rows = nullptr; }), "4 tokens are given, and no rows");
  EXPECT_NE(
      message([](auto& it) { it.rows = static_cast<const std::byte*>(it.rows) + 4; }).find("multiples of 16"),
      std::string::npos);
  EXPECT_NE(message([](auto& it) { it.experts = nullptr; }).find("dispatch with experts first"),
            std::string::npos);
  EXPECT_NE(message([](auto& it) { it.experts_dtype = DType::float32; }).find("expected int64"),
            std::string::npos);
  EXPECT_NE(message([](auto& it) { it.cast = MoECast::float32; }).find("expected float8_e4m3fn"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace::moe_steps
