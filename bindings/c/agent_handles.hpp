// SPDX-License-Identifier: Apache-2.0
// The handles of include/headrace/c/agent.h, and the caller's structs as the structs of the C++ headers.
#pragma once

#include "handles.hpp"

#include <headrace/c/agent.h>
#include <headrace/agent.hpp>
#include <headrace/completion_queue.hpp>

struct headrace_agent {
  headrace::Agent agent;
  std::string listen_address;
};

struct headrace_regions {
  std::vector<headrace::Region> regions;
};

struct headrace_mapping {
  headrace::Mapping mapping;
};

struct headrace_page_list {
  headrace::PageList list;
};

struct headrace_request {
  headrace::Request request;
};

struct headrace_notifications {
  std::vector<headrace::Notification> notifications;
};

struct headrace_counter {
  headrace::Counter counter;
};

struct headrace_counter_word {
  headrace::CounterWord word;
};

struct headrace_completion_queue {
  headrace::CompletionQueue queue;
  headrace::c::HomeProcess home = {};
};

struct headrace_notification_watch {
  headrace::NotificationWatch watch;
  headrace::c::HomeProcess home = {};
};

namespace headrace::c {

/// Writes the handle that holds `value`.
template <class Handle, class Value>
Result<void> make_handle(Handle** out, Result<Value> value) {
  if (!value) return std::move(value).error();
  *out = new Handle{std::move(*value)};
  return {};
}

Result<MemoryRange> range_of(const headrace_memory* memory);
Result<ExportOptions> export_options_of(const headrace_export_options* given);
Result<PageIndices> indices_of(const headrace_page_indices* given);

}  // namespace headrace::c
