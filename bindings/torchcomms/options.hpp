// SPDX-License-Identifier: Apache-2.0
// torchcomms' options, hints and reductions as those of Headrace.
#pragma once

#include <headrace/comm.hpp>

#include <comms/torchcomms/TorchCommOptions.hpp>
#include <comms/torchcomms/TorchCommTypes.hpp>

#include <chrono>
#include <map>
#include <string>
#include <unordered_map>

namespace headrace::torchcomms_backend {

using GivenHints = std::unordered_map<std::string, std::string>;

/// The hints of communicators that Headrace has. Those of other backends are dropped, as torchcomms' own
/// backends drop them.
std::map<std::string, std::string> comm_hints(const GivenHints& given);
/// The hints of an operation that Headrace has: "algorithm".
std::map<std::string, std::string> call_hints(const GivenHints& given);
/// Of a call: kNoTimeout is the communicator's.
Timeout timeout_of(std::chrono::milliseconds given);

/// What `Comm::open` takes, but for rank, size and the place where the ranks meet.
///   hints  "backend": CommOptions::backend, which is "host" without it
CommOptions open_options(const std::string& name, const ::torch::comms::CommOptions& given);

ReduceOp reduction_of(const ::torch::comms::ReduceOp& op);

}  // namespace headrace::torchcomms_backend
