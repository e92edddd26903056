// SPDX-License-Identifier: Apache-2.0
// Two engines, over fake NICs or others, and writes whose bytes, counts and quiet memory are checked all the
// time.
//
// The receiver overwrites the target of a request when it is counted, and the sender its source when it has
// ended: a byte that is read or written later shows.
#pragma once

#include "rail/engine.hpp"
#include "support/fake_nics.hpp"
#include "support/page_side.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace headrace::rail::test_engines {

using headrace::test::FakeFaults;
using headrace::test::FakeNics;
using headrace::test::PageSide;
using headrace::test::Told;
using headrace::test::uniform_side;

class NetClock final : public Clock {
 public:
  explicit NetClock(const FakeNics& net) : net_(net) {}
  [[nodiscard]] std::uint64_t now_ns() const noexcept override { return net_.now_ns(); }

 private:
  const FakeNics& net_;
};

struct Side final : EngineEvents {
  void ended(Link&, Request& request, Status status) override {
    EXPECT_TRUE(ends.emplace(&request, status).second) << "ended twice";
    if (on_end) on_end(request, status);
  }
  void counted(Link&, const CountedAt& at) override {
    counts[at.immediate] += at.amount;
    if (on_count) on_count(at);
  }
  void sent(Link&, std::uint64_t token, Status status, const std::string& why) override {
    EXPECT_TRUE(sends.emplace(token, std::pair(status, why)).second) << "ended twice";
    if (on_sent) on_sent(token, status);
  }
  void received(Link* from, std::uint64_t token, std::uint64_t bytes, Status status) override {
    receives.push_back({from, token, bytes, status});
    if (on_received) on_received(receives.back());
  }
  void lost(Link&, const std::string& text) override { why_lost = text; }
  void linked(Link& made) override { link = &made; }

  std::map<Request*, Status> ends;
  std::map<std::uint32_t, std::uint64_t> counts;
  struct Received {
    Link* from;
    std::uint64_t token, bytes;
    Status status;
  };
  std::map<std::uint64_t, std::pair<Status, std::string>> sends;
  std::vector<Received> receives;
  std::function<void(std::uint64_t, Status)> on_sent;
  std::function<void(const Received&)> on_received;
  std::function<void(Request&, Status)> on_end;
  std::function<void(const CountedAt&)> on_count;
  std::string why_lost;
  Link* link = nullptr;
  std::unique_ptr<Engine> engine;
};

/// Two engines over any NICs.
class EnginePair {
 public:
  EnginePair() = default;
  EnginePair(const EnginePair&) = delete;
  EnginePair& operator=(const EnginePair&) = delete;
  virtual ~EnginePair() = default;

  /// Lets both engines work, and time pass.
  virtual void step() = 0;
  /// Where side 0 finds side 1.
  [[nodiscard]] virtual std::string address_of_1() { return sides[1].engine->address(); }

  void open(int side, std::vector<std::unique_ptr<Provider>> providers, const Clock& clock,
            const LinkOptions& options) {
    auto opened = Engine::open(std::move(providers), sides[side], clock, options);
    ASSERT_TRUE(opened) << opened.error().message;
    sides[side].engine = std::move(*opened);
  }
  void connect() {
    auto link = sides[0].engine->connect(address_of_1());
    ASSERT_TRUE(link);
    sides[0].link = *link;
    ASSERT_TRUE(until([&] {
      return sides[1].link != nullptr && sides[0].link->live_rails() == sides[1].link->live_rails() &&
             sides[0].link->live_rails() > 0;
    }));
  }
  template <class Holds>
  bool until(const Holds& holds, int steps = 400'000) {
    for (int i = 0; i < steps; ++i) {
      if (holds()) return true;
      step();
    }
    return holds();
  }

  Side sides[2];
};

class TwoEngines final : public EnginePair {
 public:
  TwoEngines(unsigned nics, unsigned peer_nics, std::uint64_t seed = 1, const LinkOptions& options = {})
      : net(seed), counts_{nics, peer_nics}, clock_(net) {
    for (int side = 0; side < 2; ++side) open_again(side, options);
  }
  /// With the same NICs; what was there before ends.
  void open_again(int side, const LinkOptions& options) {
    sides[side].engine.reset();
    std::vector<std::unique_ptr<Provider>> providers;
    for (unsigned i = 0; i < counts_[side]; ++i) providers.push_back(net.open(name(side, i), speed_of(i)));
    open(side, std::move(providers), clock_, options);
  }
  /// The engines go before the network.
  ~TwoEngines() override {
    for (Side& side : sides) side.engine.reset();
  }

  static std::string name(int side, unsigned nic) { return (side == 0 ? "a" : "b") + std::to_string(nic); }
  static std::uint64_t speed_of(unsigned nic) { return (nic + 1) * 100'000'000'000ULL; }

  void step() override {
    for (Side& side : sides) side.engine->poll();
    if (!net.run_next()) net.advance(std::chrono::milliseconds(20));
  }

  FakeNics net;

 private:
  unsigned counts_[2];
  NetClock clock_;
};

/// Requests from side 0 to side 1, each with its own memory.
class Writes {
 public:
  Writes(EnginePair& engines, std::uint64_t bytes) : engines_(engines) {
    for (int side = 0; side < 2; ++side) {
      memory_[side].resize(bytes);
      auto registered = engines.sides[side].engine->register_memory(
          {reinterpret_cast<std::uintptr_t>(memory_[side].data()), bytes, {}, Access::peers_read_and_write});
      EXPECT_TRUE(registered);
      local_[side] = std::move(*registered);
    }
    auto loaded = Engine::load(Engine::descriptor(local_[1]));
    EXPECT_TRUE(loaded);
    remote_ = std::move(*loaded);
    engines.sides[1].on_count = [this](const CountedAt& at) { check_and_reuse(at); };
    engines.sides[0].on_end = [this](Request& request, Status status) { reuse_source(request, status); };
  }

  struct Write {
    std::uint64_t offset = 0, page_bytes = 0, pages = 0;
    PageSide local, remote;
    headrace_side_v1 local_view{}, remote_view{};
    std::unique_ptr<Request> request;
    bool counted = false;
    std::uint64_t counts = 0;  ///< expected
  };

  /// Pages in reverse order at the target. Its immediate is its index.
  Status post(std::uint64_t pages, std::uint64_t page_bytes, PostPlan plan, std::uint32_t amount = 1) {
    Write& write = make(pages, page_bytes, HEADRACE_WRITE);
    const auto index = static_cast<std::uint32_t>(writes.size() - 1);
    std::memcpy(memory_[0].data() + write.offset, pattern(index), pages * page_bytes);
    if (plan.counted) plan.counted->immediate = index, plan.counted->amount = amount;
    const std::uint32_t shards = plan.shards != 0 ? plan.shards : engines_.sides[1].link->rails();
    write.counts = amount;
    if (plan.count_by == CountBy::page) write.counts *= pages;
    if (plan.count_by == CountBy::shard) write.counts *= shards;
    return begin(write, plan);
  }
  /// Page i comes from the place of page `pages` - 1 - i.
  Status post_read(std::uint64_t pages, std::uint64_t page_bytes, const PostPlan& plan = {}) {
    Write& write = make(pages, page_bytes, HEADRACE_READ);
    const auto index = static_cast<std::uint32_t>(writes.size() - 1);
    std::memcpy(memory_[1].data() + write.offset, pattern(index), pages * page_bytes);
    return begin(write, plan);
  }
  Status begin(Write& write, const PostPlan& plan) {
    const Status status = engines_.sides[0].link->post(*write.request, plan);
    if (!status.ok()) writes.pop_back();  // which is `write`
    return status;
  }
  Write& make(std::uint64_t pages, std::uint64_t page_bytes, headrace_op_v1 op) {
    auto made = std::make_unique<Write>();
    Write& write = *made;
    write.offset = used_;
    write.pages = pages;
    write.page_bytes = page_bytes;
    used_ += pages * page_bytes;
    EXPECT_LE(used_, memory_[0].size());
    write.local = uniform_side(&local_[0], write.offset, page_bytes, page_bytes);
    write.remote = uniform_side(&remote_, write.offset, page_bytes, page_bytes);
    for (std::uint64_t page = pages; page-- > 0;)
      write.remote.indices.push_back(static_cast<std::uint32_t>(page));
    write.local_view = write.local.view();
    write.remote_view = write.remote.view();
    headrace_prepare_v1 prepared{};
    prepared.struct_size = sizeof prepared;
    prepared.op = op;
    prepared.count = pages;
    prepared.bytes = pages * page_bytes;
    prepared.local = &write.local_view;
    prepared.remote = &write.remote_view;
    write.request = std::make_unique<Request>(prepared);
    by_request_[write.request.get()] = static_cast<std::uint32_t>(writes.size());
    writes.push_back(std::move(made));
    return write;
  }
  [[nodiscard]] bool all_ended() const { return engines_.sides[0].ends.size() == writes.size(); }
  [[nodiscard]] bool all_counted() const {
    const auto expected =
        std::count_if(writes.begin(), writes.end(), [](const auto& write) { return write->counts > 0; });
    return engines_.sides[1].counts.size() == static_cast<std::size_t>(expected);
  }
  [[nodiscard]] bool arrived(std::uint32_t index) const {
    const Write& write = *writes[index];
    const std::uint8_t* const target = memory_[1].data() + write.offset;
    for (std::uint64_t page = 0; page < write.pages; ++page)
      if (std::memcmp(target + (write.pages - 1 - page) * write.page_bytes,
                      pattern(index) + page * write.page_bytes, write.page_bytes) != 0)
        return false;
    return true;
  }
  [[nodiscard]] bool was_read(std::uint32_t index) const {
    const Write& write = *writes[index];
    for (std::uint64_t page = 0; page < write.pages; ++page)
      if (std::memcmp(memory_[0].data() + write.offset + page * write.page_bytes,
                      pattern(index) + (write.pages - 1 - page) * write.page_bytes, write.page_bytes) != 0)
        return false;
    return true;
  }
  /// Each as often as it was to be.
  void check_counts() const {
    for (std::uint32_t i = 0; i < writes.size(); ++i) {
      const auto& counts = engines_.sides[1].counts;
      const auto at = counts.find(i);
      EXPECT_EQ(at == counts.end() ? 0 : at->second, writes[i]->counts) << i;
    }
  }
  /// Nothing was written over what was counted.
  void check_quiet() const {
    for (const auto& write : writes) {
      if (!write->counted) continue;
      const std::uint8_t* const begin = memory_[1].data() + write->offset;
      const std::uint64_t bytes = write->pages * write->page_bytes;
      if (bytes == 0) continue;
      EXPECT_TRUE(*begin == reused && std::memcmp(begin, begin + 1, bytes - 1) == 0)
          << "bytes came after the count";
    }
  }

  std::vector<std::unique_ptr<Write>> writes;

 private:
  static constexpr std::uint8_t reused = 0xEE;
  /// The bytes of a request: other ones than those of the requests before it.
  static const std::uint8_t* pattern(std::uint32_t index) {
    static const auto bytes = [] {
      std::mt19937 random(1);
      std::vector<std::uint8_t> made(3 << 20);
      for (auto& byte : made) byte = static_cast<std::uint8_t>(random() % 200);
      return made;
    }();
    return bytes.data() + index * 977 % (1 << 20);
  }
  void check_and_reuse(const CountedAt& at) {
    ASSERT_LT(at.immediate, writes.size());
    Write& write = *writes[at.immediate];
    EXPECT_FALSE(write.counted) << "counted twice";
    EXPECT_TRUE(arrived(at.immediate)) << "counted before its bytes: " << at.immediate;
    write.counted = true;
    std::memset(memory_[1].data() + write.offset, reused, write.pages * write.page_bytes);
  }
  void reuse_source(Request& request, Status status) {
    const Write& write = *writes[by_request_.at(&request)];
    if (!write.request->is_write()) {
      EXPECT_TRUE(!status.ok() || was_read(by_request_.at(&request))) << "ended before its bytes were here";
      return;
    }
    EXPECT_TRUE(!status.ok() || write.counted || arrived(by_request_.at(&request)))
        << "ended before its bytes were there";
    std::memset(memory_[0].data() + write.offset, 0xDD, write.pages * write.page_bytes);
  }

  EnginePair& engines_;
  std::vector<std::uint8_t> memory_[2];
  LocalRegion local_[2];
  RemoteRegion remote_;
  std::map<Request*, std::uint32_t> by_request_;
  std::uint64_t used_ = 0;
};

}  // namespace headrace::rail::test_engines
