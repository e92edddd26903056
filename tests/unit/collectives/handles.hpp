// SPDX-License-Identifier: Apache-2.0
// How ranks that are threads bring their handles together for Comm::reconfigure.
#pragma once

#include "ranks.hpp"

#include <barrier>
#include <cstddef>
#include <string>
#include <vector>

namespace headrace::test {

/// The handles of ranks, for all of them.
class Handles {
 public:
  explicit Handles(std::size_t size) : handles_(size), meeting_(static_cast<std::ptrdiff_t>(size)) {}
  std::vector<std::string> exchange(const Comm& comm, std::size_t place) {
    handles_[place] = must(comm.init_handle());
    meeting_.arrive_and_wait();
    return handles_;
  }

 private:
  std::vector<std::string> handles_;
  std::barrier<> meeting_;
};

}  // namespace headrace::test
