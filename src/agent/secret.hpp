// SPDX-License-Identifier: Apache-2.0
// The one secret of an agent, for all its ports, and whether it may do without.
#pragma once

#include "base/options.hpp"

#include <headrace/result.hpp>

#include <string>
#include <string_view>

namespace headrace {

struct Secret {
  std::string token;      ///< empty: none
  bool required = false;  ///< option auth: no port beyond loopback without one

  /// Reads auth_token, auth_token_file and auth.
  ///   errors  invalid_argument (both are set, an empty or unreadable file, another word for auth)
  [[nodiscard]] static Result<Secret> read(const Options& core);

  /// Whether the agent may open a port at these addresses, separated by commas; none: on every interface.
  /// `port` names it in the error, `local` the setting that keeps it on this host.
  ///   errors  invalid_argument (a secret is required and missing)
  [[nodiscard]] Result<void> check_port(std::string_view port, std::string_view addresses,
                                        std::string_view local) const;
};

/// Whether all of these addresses, separated by commas, are of this host alone. None: every interface.
[[nodiscard]] bool is_loopback_only(std::string_view addresses);

}  // namespace headrace
