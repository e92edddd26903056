// SPDX-License-Identifier: Apache-2.0
// A host that ignores every event, for tests of one instance without an engine.
#pragma once

#include "engine/backend_instance.hpp"

namespace headrace::engine {

class SilentEvents final : public HostEvents {
 public:
  void completed(std::uint64_t, Status, std::string_view) override {}
  std::uint64_t accepted(BackendInstance&, void*, std::string_view, std::uint64_t) override { return 0; }
  void link_event(std::uint64_t, headrace_link_event_v1, Status, std::string_view) override {}
  void received(std::uint64_t, std::uint32_t, std::string_view) override {}
  void counted(std::uint64_t, Immediate, std::uint64_t) override {}
  bool submit(void (*)(void*), void*) override { return false; }
  void wake() override {}
  bool log_enabled(const std::string&, int) override { return false; }
  void log(const std::string&, int, std::string_view) override {}
  void count(std::string_view, std::uint64_t) override {}
};

}  // namespace headrace::engine
