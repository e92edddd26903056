// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_side.hpp"

#include <sys/mman.h>

namespace headrace::cli {

Json BenchSetup::json() const {
  return {{"backends", backends}, {"options", options}, {"bytes", buffer_bytes}, {"allocated", allocated}};
}

BenchSetup BenchSetup::from_json(const Json& json) {
  return {json.at("backends").get<std::vector<std::string>>(),
          json.at("options").get<std::map<std::string, std::string>>(), json.at("bytes").get<std::uint64_t>(),
          json.at("allocated").get<bool>()};
}

Result<BenchSide> BenchSide::open(const std::string& name, const BenchSetup& setup) {
  HEADRACE_CLI_TRY(
      agent,
      Agent::open(name, {.backends = setup.backends, .listen = {}, .store = {}, .options = setup.options}));
  RegisterOptions registration;
  registration.name = "pages";
  if (setup.allocated) {
    AllocateOptions allocation;
    allocation.registration = registration;
    HEADRACE_CLI_TRY(region, agent.allocate(setup.buffer_bytes, allocation));
    return BenchSide(std::move(agent), std::move(region), nullptr);
  }
  void* const mapped =
      ::mmap(nullptr, setup.buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    return fail(Code::exhausted, "mapping {} bytes of memory: {}", setup.buffer_bytes, system_text());
  // As NumPy and the allocators of serving engines ask for it: scattered pages miss the TLB much less.
  ::madvise(mapped, setup.buffer_bytes, MADV_HUGEPAGE);
  ::madvise(mapped, setup.buffer_bytes, MADV_POPULATE_WRITE);
  MemoryRange range;
  range.address = mapped;
  range.length_bytes = setup.buffer_bytes;
  auto region = agent.register_memory(range, registration);
  if (!region) {
    ::munmap(mapped, setup.buffer_bytes);
    return std::move(region).error();
  }
  return BenchSide(std::move(agent), std::move(region).value(), mapped);
}

BenchSide::BenchSide(BenchSide&& other) noexcept
    : agent_(std::move(other.agent_)),
      region_(std::move(other.region_)),
      mapped_(std::exchange(other.mapped_, nullptr)) {}

BenchSide::~BenchSide() {
  if (mapped_ == nullptr) return;
  const std::size_t length = region_.length_bytes;
  { const Agent gone = std::move(agent_); }  // before its memory
  ::munmap(mapped_, length);
}

}  // namespace headrace::cli
