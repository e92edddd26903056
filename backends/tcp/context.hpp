// SPDX-License-Identifier: Apache-2.0
// What all parts of one instance share. It outlives them.
#pragma once

#include "backends/tcp/io_thread.hpp"
#include "backends/tcp/lingering_close.hpp"
#include "backends/tcp/regions.hpp"
#include "backends/tcp/settings.hpp"
#include "backends/tcp/socket_calls.hpp"
#include "base/descriptor_reserve.hpp"
#include "gpu/gpus.hpp"
#include "wire/hello.hpp"

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <memory>
#include <vector>

namespace headrace::tcp {

struct Context {
  Context(plugin::Host the_host, Settings its_settings, std::unique_ptr<SocketCalls> its_calls,
          gpu::GpuSource source, bool gpus_are_there)
      : host(the_host),
        settings(std::move(its_settings)),
        calls(std::move(its_calls)),
        gpus(std::move(source), {}),
        gpus_in_sight(gpus_are_there),
        descriptors(std::string(host.agent_name()), settings.reserved_descriptors) {}

  plugin::Host host;
  const Settings settings;
  const std::unique_ptr<SocketCalls> calls;
  gpu::Gpus gpus;
  const bool gpus_in_sight;
  DescriptorReserve descriptors;
  Regions regions;
  wire::Hmac hmac;
  Farewells farewells;
  std::atomic<unsigned> next_thread{0};
  std::atomic<unsigned> links{0};  ///< that there are, those that have ended and are still held among them
  std::vector<std::unique_ptr<IoThread>> threads;  // last: they stop before the rest goes

  IoThread& first_thread() { return *threads.front(); }
  IoThread& some_thread() {
    return *threads[next_thread.fetch_add(1, std::memory_order_relaxed) % threads.size()];
  }

  template <class... Args>
  void log(headrace_log_level_v1 level, fmt::format_string<Args...> text, Args&&... args) const {
    if (host.log_enabled(level)) host.log(level, fmt::format(text, std::forward<Args>(args)...));
  }
};

}  // namespace headrace::tcp
