// SPDX-License-Identifier: Apache-2.0
// What crosses the border to a backend that is a C table: calls and settings on the way there, sentences on
// the way back.
#pragma once

#include <headrace/plugin/comm_v1.h>
#include <headrace/comm.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::collectives {

/// Names and values as C has them. The map must outlive it.
class TableSettings {
 public:
  explicit TableSettings(const std::map<std::string, std::string>* settings);
  [[nodiscard]] const headrace_setting_v1* data() const { return settings_.data(); }
  [[nodiscard]] std::size_t size() const { return settings_.size(); }

 private:
  std::vector<headrace_setting_v1> settings_;
};

/// A call as C has it. What the caller gave must outlive it.
class TableCall {
 public:
  TableCall(const CommCall& call, Timeout timeout);
  TableCall(const TableCall&) = delete;
  TableCall& operator=(const TableCall&) = delete;
  [[nodiscard]] const headrace_comm_call_v1* get() const { return &call_; }

 private:
  std::vector<headrace_comm_elements_v1> inputs_, outputs_;
  std::vector<std::uint64_t> input_splits_, output_splits_;
  TableSettings hints_;
  headrace_comm_call_v1 call_{};
};

/// Negative: none.
[[nodiscard]] std::int64_t table_timeout(Timeout timeout);

/// The error of a number and a sentence that a backend gave; it may have given no sentence, or no code.
[[nodiscard]] Error table_error(std::string_view backend, std::int32_t code, std::string_view message);

/// The buffer into which an entry writes why it fails.
class TableText {
 public:
  headrace_text_v1* out() { return &text_; }
  [[nodiscard]] Error error(std::string_view backend, std::int32_t code) const;
  [[nodiscard]] std::string_view view() const {
    return {buffer_.data(), std::min(text_.length, buffer_.size())};
  }

 private:
  std::array<char, 1024> buffer_{};
  headrace_text_v1 text_{sizeof(headrace_text_v1), buffer_.data(), buffer_.size(), 0};
};

}  // namespace headrace::collectives
