// SPDX-License-Identifier: Apache-2.0
// What the tests of the contract share: two instances and a link, memories on both sides with their reference
// beside them.
#pragma once

#include "contract/cases.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace headrace::contract {

using namespace headrace::test;  // NOLINT: the suite is written in the harness's words

/// Memories of one side of requests, registered with their owner, and beside each what must be in it.
class Arena {
 public:
  /// `far`: for the remote side, where a backend may take files alone; then all of it is files.
  explicit Arena(Instance& owner, bool far = false) : owner_(owner), far_(far) {}

  void add(Memory::Kind kind, std::uint64_t length, std::size_t skew = 0);
  /// One memory of each kind in turn, with odd beginnings.
  void add_mixed(std::size_t count, std::uint64_t length);

  [[nodiscard]] const std::vector<Region>& regions() const { return regions_; }
  [[nodiscard]] std::vector<Region>& regions() { return regions_; }
  [[nodiscard]] const std::vector<Memory>& memories() const { return memories_; }
  [[nodiscard]] std::vector<void*> handles() const;
  [[nodiscard]] std::vector<std::uint64_t> sizes() const;
  [[nodiscard]] std::vector<Bytes>& expected() { return expected_; }

  /// Fills memory and reference with other bytes.
  void refill();
  /// Compares every byte, also those that nothing should have touched.
  [[nodiscard]] testing::AssertionResult as_expected() const;

 private:
  Instance& owner_;
  bool far_;
  std::uint64_t seed_ = 1;
  std::vector<Memory> memories_;
  std::vector<Region> regions_;
  std::vector<Bytes> expected_;
};

/// What may stand on the remote side of the instance's requests: this kind, or a file.
Memory::Kind far_kind(const Instance& instance, Memory::Kind kind);

/// Handles on the initiator for the regions of an arena.
std::vector<Remote> load_all(const Link& link, const Arena& owner);
std::vector<Remote> load_all(Instance& instance, const Arena& own);
std::vector<void*> handles_of(const std::vector<Remote>& remotes);

/// Two agents of one process, linked.
struct Pair {
  explicit Pair(World& world, const headrace_backend_v1* table, const Settings& settings);
  std::unique_ptr<Instance> a, b;
  Link ab;  ///< made by a
  Link ba;  ///< b's view of it
};

class Contract : public testing::TestWithParam<BackendCase> {
 protected:
  Contract();
  ~Contract() override { MemorySource::use(nullptr); }

  std::unique_ptr<Instance> open(const std::string& agent_name = "a", const Clock* clock = nullptr);
  [[nodiscard]] Pair open_pair() { return Pair(world, table, GetParam().settings); }
  /// The link that `from` has just made to `to`, as `to` sees it; waits for it.
  [[nodiscard]] Link accepted(Instance& to, const Instance& from, std::size_t nth = 0);

  World world;
  const headrace_backend_v1* table;
  std::mt19937_64 random{20};
};

/// Whether a code is one of those that the contract leaves open.
inline testing::AssertionResult one_of(Code code, std::initializer_list<Code> codes) {
  for (const Code allowed : codes)
    if (code == allowed) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the code is " << code_name(code);
}

/// Names tests by their row.
struct CaseName {
  std::string operator()(const testing::TestParamInfo<BackendCase>& info) const { return info.param.name(); }
};

/// Runs the suite over every row, or over those whose instances have all the abilities asked for: what an
/// instance does not offer, the host never calls.
#define HEADRACE_FOR_EACH_BACKEND(Suite) HEADRACE_FOR_EACH_BACKEND_THAT(Suite, 0u)
#define HEADRACE_FOR_EACH_BACKEND_THAT(Suite, abilities)                                                   \
  INSTANTIATE_TEST_SUITE_P(backend, Suite, testing::ValuesIn(::headrace::contract::cases_with(abilities)), \
                           ::headrace::contract::CaseName());                                              \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite)

}  // namespace headrace::contract
