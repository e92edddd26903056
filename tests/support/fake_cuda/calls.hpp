// SPDX-License-Identifier: Apache-2.0
// The calls of one function of the fake driver, and the outcomes that a test has scripted for them.
#pragma once

#include "vendor/cuda/types.hpp"

#include <deque>
#include <optional>

namespace headrace::cuda {

struct Script {
  int skip = 0;
  int times = 0;
  Outcome outcome = Outcome::unknown;
};

class Calls {
 public:
  /// Counts a call; returns the outcome that the script has for it.
  std::optional<Outcome> add() {
    ++count_;
    if (scripts_.empty()) return std::nullopt;
    Script& script = scripts_.front();
    if (script.skip > 0) {
      --script.skip;
      return std::nullopt;
    }
    const Outcome outcome = script.outcome;
    if (--script.times == 0) scripts_.pop_front();
    return outcome;
  }
  void script(const Script& script) { scripts_.push_back(script); }
  [[nodiscard]] int count() const { return count_; }

 private:
  int count_ = 0;
  std::deque<Script> scripts_;
};

}  // namespace headrace::cuda
