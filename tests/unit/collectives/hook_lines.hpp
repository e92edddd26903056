// SPDX-License-Identifier: Apache-2.0
// What the hooks of a communicator are told, for tests that compare it.
#pragma once

#include <headrace/comm.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::test {

/// Writes down what it is told, as lines.
class HookLines {
 public:
  CommHooks hooks() {
    CommHooks hooks;
    hooks.before = [this](const CommCall& call) -> Result<void> {
      add("before", call.operation, call.number);
      return {};
    };
    hooks.scheduled = [this](const CommCall& call) { add("scheduled", call.operation, call.number); };
    hooks.started = [this](const CommCallId& call) { add("started", call.operation, call.number); };
    hooks.completed = [this](const CommCallId& call, const Error& error) {
      add("completed", call.operation, call.number, code_name(error.code));
    };
    hooks.after = [this](const CommCall& call, const Result<Work>& result) {
      add("after", call.operation, call.number, code_name(result.code()));
    };
    hooks.aborted = [this](const Error& cause) { add_line("aborted: " + cause.message); };
    return hooks;
  }
  std::vector<std::string> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(lines_, {});
  }
  /// Those that begin with one of the words.
  std::vector<std::string> take_of(const std::vector<std::string>& words) {
    std::vector<std::string> lines = take();
    std::erase_if(lines, [&](const std::string& line) {
      return std::ranges::none_of(words, [&](const std::string& word) { return line.starts_with(word); });
    });
    return lines;
  }

 private:
  void add(const std::string& what, CommOperation operation, std::uint64_t number,
           std::string_view code = "ok") {
    std::string line =
        what + " " + std::string(comm_operation_name(operation)) + " " + std::to_string(number);
    if (code != "ok") line.append(" ").append(code);
    add_line(std::move(line));
  }
  void add_line(std::string line) {
    const std::scoped_lock lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace headrace::test
