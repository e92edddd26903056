// SPDX-License-Identifier: Apache-2.0
// What a socket receives just now. Guarded by its receiver's lock.
#pragma once

#include "backends/tcp/frame_reader.hpp"
#include "backends/tcp/regions.hpp"
#include "transport/host_calls.hpp"

#include <headrace/result.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace headrace::tcp {

struct Receipt {
  /// Nothing more is received, and the link ends.
  void fail(Error error) {
    open = false;
    calls->lose({error.code}, std::move(error.message));
  }
  /// The frame that is being received goes no further than its byte `at`.
  void refuse(Code why, std::uint64_t at) {
    code = why;
    good_bytes = at;
    regions.clear();
  }

  FrameReader reader;
  transport::HostCalls* calls = nullptr;  // of the receive that is under way
  bool open = false;                      // not before start, not after close

  // Of the frame.
  Code code = Code::ok;
  std::uint64_t good_bytes = UINT64_MAX;
  std::vector<std::pair<const Region*, std::uint64_t>>
      regions;  // what a write goes into, and from which byte on
};

}  // namespace headrace::tcp
