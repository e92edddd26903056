// SPDX-License-Identifier: Apache-2.0
#include "collectives/call_log.hpp"

#include "base/clock.hpp"
#include "base/names.hpp"
#include "collectives/operation.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace headrace::collectives {
namespace {

/// A line fits into what a pipe takes at once.
constexpr std::size_t longest_error = 2048;

/// "count=1000 dtype=float32 peer=1 tag=7", without what the call has not.
std::string described(const CommCall& call) {
  std::string text;
  const auto add = [&text](const auto& lists) {
    std::uint64_t count = 0;
    for (const auto& elements : lists) count += elements.count;
    text += fmt::format(" count={} dtype={}", count, dtype_name(lists.front().dtype));
  };
  if (!call.inputs.empty())
    add(moved_inputs(call));
  else if (!call.outputs.empty())
    add(call.outputs);
  if (call.peer >= 0) text += fmt::format(" peer={}", call.peer);
  if (call.tag != 0) text += fmt::format(" tag={}", call.tag);
  return text;
}

/// In quotes; one inside has a backslash before it.
std::string in_quotes(std::string_view text) {
  std::string inside;
  for (const char c : text) {
    if (c == '"' || c == '\\') inside += '\\';
    inside += c;
  }
  return name_text(inside);
}

std::string described(const Error& error) {
  return fmt::format(" error={}", in_quotes(std::string_view(error.message).substr(0, longest_error)));
}

class CallLog {
 public:
  CallLog(const Comm& comm, std::shared_ptr<LineFile> file)
      : who_(fmt::format("rank={} comm={}", comm.rank(), in_quotes(comm.name()))), file_(std::move(file)) {
    add(fmt::format("event=opened size={}", comm.size()));
  }

  void scheduled(const CommCall& call) {
    Call scheduled{now_ns(), described(call)};
    add_event({call.operation, call.number}, "scheduled", scheduled);
    const std::scoped_lock lock(mutex_);
    calls_[key_of({call.operation, call.number})] = std::move(scheduled);
  }
  void started(const CommCallId& call) { add_event(call, "started", find(call)); }
  void completed(const CommCallId& call, const Error& error) {
    const bool well = error.code == Code::ok;
    add_event(call, well ? "completed" : "failed", find(call), well ? std::string() : described(error));
    const std::scoped_lock lock(mutex_);
    calls_.erase(key_of(call));
  }
  void after(const CommCall& call, const Result<Work>& result) {
    if (result || call.number != 0) return;  // it was scheduled, and its end has a line
    add(fmt::format("op={} event=refused{}{}", comm_operation_name(call.operation), described(call),
                    described(result.error())));
  }
  void aborted(const Error& cause) { add("event=ended" + described(cause)); }

 private:
  struct Call {
    std::uint64_t scheduled_ns = 0;
    std::string text;
  };
  static std::uint64_t key_of(const CommCallId& call) {
    return call.number << 1 | (is_message(call.operation) ? 1U : 0U);
  }
  Call find(const CommCallId& call) {
    const std::scoped_lock lock(mutex_);
    const auto found = calls_.find(key_of(call));
    return found == calls_.end() ? Call{now_ns(), {}} : found->second;
  }
  void add_event(const CommCallId& id, std::string_view event, const Call& call,
                 std::string_view error = {}) {
    add(fmt::format("op={} number={} event={}{} us={}{}", comm_operation_name(id.operation), id.number, event,
                    call.text, (now_ns() - call.scheduled_ns) / 1000, error));
  }
  void add(const std::string& text) {
    const auto now =
        std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
    const auto us = now.time_since_epoch().count() % 1'000'000;
    const std::time_t second = std::chrono::system_clock::to_time_t(now);
    file_->add(fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z {} {}\n", fmt::gmtime(second), us, who_, text));
  }

  const std::string who_;
  const std::shared_ptr<LineFile> file_;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Call> calls_;  // those under way
};

}  // namespace

CommHooks call_log(const Comm& comm, std::shared_ptr<LineFile> file) {
  auto log = std::make_shared<CallLog>(comm, std::move(file));
  CommHooks hooks;
  hooks.scheduled = [log](const CommCall& call) { log->scheduled(call); };
  hooks.started = [log](const CommCallId& call) { log->started(call); };
  hooks.completed = [log](const CommCallId& call, const Error& error) { log->completed(call, error); };
  hooks.after = [log](const CommCall& call, const Result<Work>& result) { log->after(call, result); };
  hooks.aborted = [log](const Error& cause) { log->aborted(cause); };
  return hooks;
}

}  // namespace headrace::collectives
