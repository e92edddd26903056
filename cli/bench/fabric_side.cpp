// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fabric_side.hpp"

#include "cli/common/number_option.hpp"

#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace headrace::cli {
namespace {

constexpr int most_gpus = 1023;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Result<std::vector<int>> devices_of(const std::string& gpus) {
  std::vector<int> devices;
  if (gpus == "-") return devices;
  for (const std::string& number : split(gpus)) {
    if (!is_number_within(number, 0, most_gpus))
      return fail(Code::invalid_argument,
                  "\"{}\": GPUs are numbers that commas separate, as in 0,1, or - for host memory", gpus);
    devices.push_back(std::stoi(number));
  }
  if (devices.empty())
    return fail(Code::invalid_argument, "no GPU is named: write 0,1, or - for host memory");
  return devices;
}

Result<FabricOptions> fabric_options(const FabricSideOptions& wanted) {
  FabricOptions options;
  options.spin = wanted.spin ? FabricSpin::always : FabricSpin::brief;
  options.nics_per_group = wanted.nics_per_group;
  options.options = wanted.options;
  HEADRACE_CLI_TRY(devices, devices_of(wanted.gpus));
  if (wanted.nics.empty()) {
    options.devices = std::move(devices);
    return options;
  }
  const std::size_t groups = std::max<std::size_t>(devices.size(), 1);
  if (wanted.nics.size() != groups)
    return fail(Code::invalid_argument, "--nics is given {} times for {} group{}: give it once for each",
                wanted.nics.size(), groups, groups == 1 ? "" : "s");
  for (std::size_t i = 0; i < groups; ++i) {
    FabricGroupOptions group;
    group.nics = split(wanted.nics[i]);
    if (!devices.empty()) group.device = devices[i];
    if (wanted.nics_per_group != 0 && group.nics.size() > wanted.nics_per_group)
      return fail(Code::invalid_argument, "--nics names {} network cards, and {} a group are wanted",
                  group.nics.size(), wanted.nics_per_group);
    options.groups.push_back(std::move(group));
  }
  return options;
}

std::uint64_t memory_of_machine() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Json FabricPattern::json() const {
  return {{"page", page_bytes},
          {"count", count},
          {"pages_seed", pages_seed},
          {"source_seed", source_seed},
          {"target_seed", target_seed}};
}

FabricPattern FabricPattern::from_json(const Json& json) {
  FabricPattern pattern;
  json.at("page").get_to(pattern.page_bytes);
  json.at("count").get_to(pattern.count);
  json.at("pages_seed").get_to(pattern.pages_seed);
  json.at("source_seed").get_to(pattern.source_seed);
  json.at("target_seed").get_to(pattern.target_seed);
  return pattern;
}

Result<FabricSide> FabricSide::open(const FabricSideOptions& options) {
  HEADRACE_CLI_TRY(wanted, fabric_options(options));
  HEADRACE_CLI_TRY(fabric, Fabric::open(wanted));
  auto groups = fabric.groups();
  return FabricSide(std::move(fabric), std::move(groups), options.spin);
}

Result<void> FabricSide::allocate(std::uint64_t bytes) {
  release();
  if (bytes == 0 || bytes % 8 != 0 || bytes > memory_of_machine() / 2 / groups_.size())
    return fail(
        Code::exhausted,
        "{} bytes of memory for each group are no multiple of 8, or more than half of this machine's: "
        "measure smaller pages, or fewer",
        bytes);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto device = groups_[i].device;
    HEADRACE_CLI_TRY(memory, device ? gpu_memory(*device, bytes) : host_memory(bytes));
    memories_.push_back(std::move(memory));
    HEADRACE_CLI_TRY(registered,
                     fabric_->register_memory(memories_.back()->range(), FabricAccess::writable, i));
    registered_.push_back(std::move(registered));
  }
  return {};
}

void FabricSide::release() {
  for (const FabricMemory& memory : registered_) static_cast<void>(fabric_->deregister(memory));
  registered_.clear();
  memories_.clear();
}

Result<void> FabricSide::fill(std::uint64_t seed) {
  for (const auto& memory : memories_) HEADRACE_CLI_CHECK(memory->fill(seed++));
  return {};
}

Result<std::string> FabricSide::wrong(const FabricPattern& pattern) {
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    HEADRACE_CLI_TRY(contents, memories_[i]->contents());
    const std::uint64_t page = pattern.page_bytes, have = contents.size();
    if (page == 0 || page % 8 != 0 || pattern.count > have / page || pattern.memory_bytes() != have)
      return fail(Code::invalid_argument, "the memory has {} bytes: not as many as {} pages of {} bytes need",
                  have, pattern.count, page);
    std::string found = wrong_page(contents, pattern.pairs(i), pattern.page_bytes, pattern.source_seed + i,
                                   pattern.target_seed + i);
    if (!found.empty()) return groups_.size() == 1 ? found : fmt::format("group {}: {}", i, found);
  }
  return std::string();
}

std::string group_text(const FabricGroup& group) {
  std::vector<std::string> nics;
  for (const FabricNic& nic : group.nics) {
    if (nic.provider.empty())
      nics.push_back(fmt::format("{} not used: {}", nic.name, nic.why));
    else if (nic.bits_per_second == 0)
      nics.push_back(fmt::format("{} ({})", nic.name, nic.provider));
    else
      nics.push_back(fmt::format("{} ({}, {:g} Gbit/s)", nic.name, nic.provider,
                                 static_cast<double>(nic.bits_per_second) / 1e9));
  }
  return fmt::format("{}: {}", group.device ? fmt::format("GPU {}", *group.device) : "host memory",
                     fmt::join(nics, ", "));
}

}  // namespace headrace::cli
