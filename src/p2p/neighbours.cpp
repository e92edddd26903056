// SPDX-License-Identifier: Apache-2.0
#include "p2p/neighbours.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace::p2p {
namespace {

constexpr const char* box_name = "box";

std::string tensor_name(std::uint64_t number) { return fmt::format("tensor-{}", number); }

Timeout time_left(const Deadline& deadline) {
  if (deadline.is_never()) return forever;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(deadline.remaining_ns()));
}

}  // namespace

Result<std::unique_ptr<Neighbours>> Neighbours::open(const AgentOptions& options, std::string_view name,
                                                     int rank, int size) {
  // Other communicators of this host may have the same name.
  HEADRACE_TRY(agent, Agent::open(fmt::format("p2p-{}-{}-{:016x}", name, rank, random_u64()), options));
  return std::unique_ptr<Neighbours>(new Neighbours(std::move(agent), size));
}

Neighbours::~Neighbours() {
  agent_.close();  // what has been said leaves first
}

Result<std::string> Neighbours::offer(const gpu::ShareableMemory& box, int device) {
  MemoryRange range;
  range.address = reinterpret_cast<void*>(box.address());
  range.length_bytes = box.bytes();
  range.kind = MemoryKind::vram;
  range.device = device;
  HEADRACE_TRY_VOID(agent_.register_memory(range, {.name = box_name}));
  return agent_.export_metadata();
}

Result<void> Neighbours::map(int rank, std::string_view metadata, std::size_t box_bytes, int device,
                             const Deadline& deadline) {
  Neighbour& other = all_[static_cast<std::size_t>(rank)];
  HEADRACE_TRY(report, agent_.import_metadata(metadata));
  other.agent = std::move(report.peer);
  HEADRACE_TRY(region, agent_.peer_region(other.agent, box_name));
  HEADRACE_TRY(mapping, agent_.map(other.agent, region.id, time_left(deadline), device));
  if (mapping.bytes().size() < box_bytes)
    return make_error(Code::corrupt, "its box has {} bytes, and {} are expected", mapping.bytes().size(),
                      box_bytes);
  other.box = std::move(mapping);
  return {};
}

Result<Neighbours::Offer> Neighbours::offer_tensor(std::uint64_t number, std::uint64_t address,
                                                   std::uint64_t bytes, int device) {
  MemoryRange range;
  range.address = reinterpret_cast<void*>(address);
  range.length_bytes = bytes;
  range.kind = MemoryKind::vram;
  range.device = device;
  HEADRACE_TRY(region, agent_.register_memory(range, {.name = tensor_name(number)}));
  HEADRACE_TRY(metadata, agent_.export_metadata({.regions = {region.id}}));
  return Offer{region.id, std::move(metadata)};
}

Result<Mapping> Neighbours::map_tensor(int rank, std::uint64_t number, const wire::TensorCard& card,
                                       int device, const Deadline& deadline) {
  const std::string& agent = all_[static_cast<std::size_t>(rank)].agent;
  HEADRACE_TRY(report, agent_.import_metadata(card.metadata));
  if (report.peer != agent)
    return make_error(Code::corrupt, "the metadata of its tensor is that of agent '{}', and its own is '{}'",
                      report.peer, agent);
  HEADRACE_TRY(region, agent_.peer_region(agent, tensor_name(number)));
  HEADRACE_TRY(mapping, agent_.map(agent, region.id, time_left(deadline), device));
  if (mapping.bytes().size() != card.bytes)
    return make_error(Code::corrupt, "its tensor has {} bytes, and it says {}", mapping.bytes().size(),
                      card.bytes);
  return mapping;
}

Result<void> Neighbours::withdraw(RegionId region, const Deadline& deadline) {
  return agent_.deregister(region, time_left(deadline));
}

std::uint64_t Neighbours::box_of(int rank) const {
  const auto& box = all_[static_cast<std::size_t>(rank)].box;
  return reinterpret_cast<std::uint64_t>(box->bytes().data());
}

bool Neighbours::is_gone(int rank) const {
  const auto& box = all_[static_cast<std::size_t>(rank)].box;
  return box && !box->alive();
}

void Neighbours::say(const Saying& saying) {
  const std::string bytes = saying.encode();
  for (const Neighbour& other : all_)
    if (other.box)
      static_cast<void>(agent_.notify(other.agent, bytes));  // one that takes none is told nothing
}

Result<void> Neighbours::say_to(int rank, const Saying& saying) {
  return agent_.notify(all_[static_cast<std::size_t>(rank)].agent, saying.encode());
}

void Neighbours::listen(std::function<void(int, const Saying&)> heard) {
  agent_.on_notification([this, heard = std::move(heard)](const Notification& came) {
    const auto from = std::ranges::find(all_, came.peer, &Neighbour::agent);
    const auto saying = Saying::decode(came.payload);
    if (from != all_.end() && saying) heard(static_cast<int>(from - all_.begin()), *saying);
  });
}

}  // namespace headrace::p2p
