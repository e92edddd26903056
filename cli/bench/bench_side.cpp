// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_side.hpp"

#include "cli/bench/page_pattern.hpp"

namespace headrace::cli {

Json BenchSetup::json() const {
  return {{"backends", backends}, {"options", options},     {"bytes", buffer_bytes},
          {"kind", kind},         {"allocated", allocated}, {"device", device}};
}

BenchSetup BenchSetup::from_json(const Json& json) {
  BenchSetup setup;
  json.at("backends").get_to(setup.backends);
  json.at("options").get_to(setup.options);
  json.at("bytes").get_to(setup.buffer_bytes);
  json.at("kind").get_to(setup.kind);
  json.at("allocated").get_to(setup.allocated);
  json.at("device").get_to(setup.device);
  return setup;
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
  HEADRACE_CLI_TRY(memory, setup.kind == MemoryKind::vram ? gpu_memory(setup.device, setup.buffer_bytes)
                                                          : host_memory(setup.buffer_bytes));
  HEADRACE_CLI_TRY(region, agent.register_memory(memory->range(), registration));
  return BenchSide(std::move(agent), std::move(region), std::move(memory));
}

Result<void> BenchSide::fill(std::uint64_t seed) {
  if (memory_ != nullptr) return memory_->fill(seed);
  fill_pattern(region_.bytes(), seed);
  return {};
}

Result<std::span<const std::byte>> BenchSide::contents() {
  if (memory_ != nullptr) return memory_->contents();
  return std::span<const std::byte>(region_.bytes());
}

}  // namespace headrace::cli
