// SPDX-License-Identifier: Apache-2.0
// The host functions that a backend calls.
#include "engine/backend_instance.hpp"
#include "plugins/sound_table.hpp"
#include "unit/engine/silent_events.hpp"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace headrace::engine {
namespace {

/// A host without memory: whatever it is told fails, and so does the log.
class FailingEvents final : public HostEvents {
 public:
  void completed(std::uint64_t, Status, std::string_view) override { throw std::bad_alloc(); }
  std::uint64_t accepted(BackendInstance&, void*, std::string_view, std::uint64_t) override {
    throw std::bad_alloc();
  }
  void link_event(std::uint64_t, headrace_link_event_v1, Status, std::string_view) override {
    throw std::bad_alloc();
  }
  void received(std::uint64_t, std::uint32_t, std::string_view) override { throw std::bad_alloc(); }
  void counted(std::uint64_t, Immediate, std::uint64_t) override { throw std::bad_alloc(); }
  bool submit(void (*)(void*), void*) override { throw std::runtime_error("no thread"); }
  void wake() override { throw std::bad_alloc(); }
  bool log_enabled(const std::string&, int) override { throw std::bad_alloc(); }
  void log(const std::string&, int, std::string_view) override { throw std::bad_alloc(); }
  void count(std::string_view, std::uint64_t) override { ++counted_failures; }

  int counted_failures = 0;
};

const headrace_host_v1* host_of_instance = nullptr;

TEST(BackendInstance, a_host_function_that_fails_lets_no_exception_into_the_backend) {
  headrace_backend_v1 table = sound_table("any");
  table.create = [](const headrace_host_v1* host, const headrace_create_v1*, void** instance,
                    headrace_text_v1*) {
    host_of_instance = host;
    *instance = static_cast<void*>(&host_of_instance);
    return int32_t{HEADRACE_OK};
  };
  FailingEvents events;
  const auto instance = BackendInstance::open(&table, {}, events).value();
  const headrace_host_v1& host = *host_of_instance;
  const headrace_status_v1 ok{HEADRACE_OK, 0, HEADRACE_NO_PAGE};
  EXPECT_NO_THROW(host.completed(host.context, 1, ok, nullptr, 0));
  EXPECT_EQ(host.accepted(host.context, nullptr, "peer", 1), 0U);
  EXPECT_NO_THROW(host.link_event(host.context, 1, HEADRACE_LINK_LOST, ok, "", 0));
  EXPECT_NO_THROW(host.received(host.context, 1, 0, "", 0));
  EXPECT_NO_THROW(host.counted(host.context, 1, 0, 0, 1));
  EXPECT_EQ(host.submit(host.context, nullptr, nullptr), 0);
  EXPECT_NO_THROW(host.wake(host.context));
  EXPECT_EQ(host.log_enabled(host.context, HEADRACE_LOG_WARN), 0);
  EXPECT_NO_THROW(host.log(host.context, HEADRACE_LOG_WARN, "", 0));
  EXPECT_EQ(events.counted_failures, 9);
}

}  // namespace
}  // namespace headrace::engine
