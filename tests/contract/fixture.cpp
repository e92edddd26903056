// SPDX-License-Identifier: Apache-2.0
#include "contract/fixture.hpp"

#include "base/random.hpp"
#include "support/fake_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace headrace::contract {

void Arena::add(Memory::Kind kind, std::uint64_t length, std::size_t skew) {
  memories_.emplace_back(far_ ? far_kind(owner_, kind) : kind, length, seed_++, skew);
  const auto bytes = memories_.back().bytes();
  expected_.emplace_back(bytes.begin(), bytes.end());
  regions_.emplace_back(owner_, memories_.back());
}

void Arena::add_mixed(std::size_t count, std::uint64_t length) {
  for (std::size_t i = 0; i < count; ++i)
    add(i % 2 == 0 ? Memory::Kind::plain : Memory::Kind::shared, length, i % 3 == 0 ? 0 : i * 7);
}

std::vector<void*> Arena::handles() const {
  std::vector<void*> handles;
  for (const Region& region : regions_) handles.push_back(region.handle());
  return handles;
}

std::vector<std::uint64_t> Arena::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const Memory& memory : memories_) sizes.push_back(memory.bytes().size());
  return sizes;
}

void Arena::refill() {
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    fill_private(expected_[i], seed_++);
    std::memcpy(memories_[i].bytes().data(), expected_[i].data(), expected_[i].size());
  }
}

testing::AssertionResult Arena::as_expected() const {
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    const auto bytes = memories_[i].bytes();
    if (std::memcmp(bytes.data(), expected_[i].data(), bytes.size()) == 0) continue;
    const auto [is, should] = std::mismatch(bytes.begin(), bytes.end(), expected_[i].begin());
    const auto differing =
        std::count_if(bytes.begin(), bytes.end(),
                      [&, at = std::size_t{0}](std::byte b) mutable { return b != expected_[i][at++]; });
    return testing::AssertionFailure() << fmt::format(
               "{} of {} bytes of region {} of agent {} are wrong, the first at {}: {:#x} instead of {:#x}",
               differing, bytes.size(), i, owner_.name(), is - bytes.begin(), std::to_integer<int>(*is),
               std::to_integer<int>(*should));
  }
  return testing::AssertionSuccess();
}

Memory::Kind far_kind(const Instance& instance, Memory::Kind kind) {
  constexpr std::uint32_t memory = HEADRACE_KIND_BIT(HEADRACE_DRAM) | HEADRACE_KIND_BIT(HEADRACE_VRAM);
  return (instance.info().remote_kinds & memory) != 0 ? kind : Memory::Kind::file;
}

std::vector<Remote> load_all(const Link& link, const Arena& owner) {
  std::vector<Remote> remotes;
  for (const Region& region : owner.regions()) remotes.emplace_back(link, region.facts());
  return remotes;
}

std::vector<Remote> load_all(Instance& instance, const Arena& own) {
  std::vector<Remote> remotes;
  for (const Region& region : own.regions()) remotes.emplace_back(instance, region);
  return remotes;
}

std::vector<void*> handles_of(const std::vector<Remote>& remotes) {
  std::vector<void*> handles;
  for (const Remote& remote : remotes) handles.push_back(remote.handle());
  return handles;
}

namespace {

Link wait_accepted(World& world, Instance& to, const Instance& from, std::size_t nth) {
  std::vector<HostLink> links;
  const bool came = world.until([&] {
    links = to.host().accepted_links();
    std::erase_if(links, [&](const HostLink& link) {
      return link.peer_name != from.name() || link.peer_incarnation != from.incarnation();
    });
    return links.size() > nth;
  });
  if (!came)
    throw std::runtime_error(
        fmt::format("{} did not hear of a link from {}: {}", to.name(), from.name(), world.describe()));
  return Link(to, links[nth].connection, links[nth].token);
}

}  // namespace

Pair::Pair(World& world, const headrace_backend_v1* table, const Settings& settings)
    : a(std::make_unique<Instance>(world, table, settings,
                                   PluginHost::Args{.agent_name = "a", .incarnation = random_u64() | 1})),
      b(std::make_unique<Instance>(world, table, settings,
                                   PluginHost::Args{.agent_name = "b", .incarnation = random_u64() | 1})) {
  ab = a->connect(*b);
  if (!world.until([&] { return ab.ready() || ab.lost(); }) || ab.lost())
    throw std::runtime_error("no link: " + world.describe());
  ba = wait_accepted(world, *b, *a, 0);
}

Contract::Contract() : table(load_plugin(GetParam().plugin())) {
  if (GetParam().vram) MemorySource::use(&FakeGpus::of_this_process());
}

std::unique_ptr<Instance> Contract::open(const std::string& agent_name, const Clock* clock) {
  return std::make_unique<Instance>(
      world, table, GetParam().settings,
      PluginHost::Args{.agent_name = agent_name, .incarnation = random_u64() | 1, .clock = clock});
}

Link Contract::accepted(Instance& to, const Instance& from, std::size_t nth) {
  return wait_accepted(world, to, from, nth);
}

}  // namespace headrace::contract
