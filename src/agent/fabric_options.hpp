// SPDX-License-Identifier: Apache-2.0
// The options by which a fabric that serves an agent finds peers as that agent does.
#pragma once

#include <headrace/result.hpp>

#include <map>
#include <string>

namespace headrace {

class Agent;

class FabricOptionsOf {
 public:
  /// The secret, whether it is required, and the folder of sockets on one host.
  ///   errors  those of reading the secret's file
  [[nodiscard]] static Result<std::map<std::string, std::string>> agent(const Agent& agent);
};

}  // namespace headrace
