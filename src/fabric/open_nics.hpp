// SPDX-License-Identifier: Apache-2.0
// Opens the NICs of a planned group.
#pragma once

#include "agent/secret.hpp"
#include "fabric/groups.hpp"
#include "rail/provider.hpp"
#include "rail/tcp/provider.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace headrace::fabric {

/// The options that a fabric has in common with agents.
struct NicSettings {
  Secret secret;
  rail::tcp::SharedSecret shared;  ///< the same, as NICs take it
  std::string runtime_dir;         ///< of the sockets of this host; empty: the usual one

  /// `given`: of the caller; the environment and the file have the others.
  ///   errors  invalid_argument (an unknown option, or a value that is none), not_supported (no libcrypto)
  [[nodiscard]] static Result<NicSettings> read(const std::map<std::string, std::string>& given);
};

/// A group whose NICs are open.
struct OpenGroup {
  FabricGroup shown;  ///< its NICs: those of the providers first, in their order
  std::vector<std::unique_ptr<rail::Provider>> providers;
};

///   errors  those of the providers: of a NIC that was named by hand, or if none can be opened;
///           invalid_argument (a secret is required and missing, and a NIC is not of this host alone)
[[nodiscard]] Result<OpenGroup> open_nics(const GroupPlan& plan, const NicSettings& settings);

}  // namespace headrace::fabric
