// SPDX-License-Identifier: Apache-2.0
// A copy of a call that outlives what the caller gave. The elements stay where they are.
#pragma once

#include <headrace/comm_call.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace headrace::collectives {

class KeptCall {
 public:
  explicit KeptCall(const CommCall& call, std::shared_ptr<const void> owner = {});
  /// The call; it points into this object.
  [[nodiscard]] CommCall call() const;
  void set_timeout(Timeout timeout) { call_.timeout = timeout; }
  void set_stream(void* stream) { call_.stream = stream; }
  /// Keeps the elements; may be null.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  CommCall call_;
  std::vector<ConstElements> inputs_;
  std::vector<Elements> outputs_;
  std::vector<std::size_t> input_splits_, output_splits_;
  std::map<std::string, std::string> hints_;
  std::shared_ptr<const void> owner_;
};

}  // namespace headrace::collectives
