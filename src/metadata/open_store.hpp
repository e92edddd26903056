// SPDX-License-Identifier: Apache-2.0
// A store from what a user writes: "etcd://10.0.0.1:2379/prod", "file:///shared/agents", "memory:NAME".
#pragma once

#include "base/log.hpp"
#include "base/options.hpp"
#include "metadata/store.hpp"
#include "vendor/curl/http_client.hpp"

#include <array>

namespace headrace::metadata {

/// Rows for the agent's option table, of the stores and of the metadata socket.
inline constexpr std::array option_rows{
    OptionRow{"etcd_endpoints", "", "list",
              "etcd's client addresses, as host:port or https://host:port; for a store \"etcd://\" that "
              "names none."},
    OptionRow{"etcd_namespace", "/headrace", "text",
              "What all keys in etcd begin with, unless the store's address ends in a namespace."},
    OptionRow{"etcd_ca_file", "", "text",
              "PEM file with the certificates that etcd's may be signed by; empty: the system's."},
    OptionRow{"etcd_certificate_file", "", "text", "PEM file with the certificate that we show to etcd."},
    OptionRow{"etcd_key_file", "", "text", "PEM file with the key of etcd_certificate_file."},
    OptionRow{"store_ttl", "10s", "duration",
              "How long what an agent published outlives it in a store that cannot see it die."},
    OptionRow{"store_poll", "250ms", "duration", "How often a watch looks at the folder of a file store."},
    OptionRow{"auth_token", "", "text",
              "Secret that all agents share; one that has it talks only to those that have the same."},
    OptionRow{"handshake_timeout", "5s", "duration",
              "How long a new connection may take to say hello before it is dropped."},
};

struct StoreOptions {
  std::vector<std::string> etcd_endpoints;
  std::string etcd_namespace = "/headrace";
  std::string etcd_ca_file;
  std::string etcd_certificate_file;
  std::string etcd_key_file;
  std::chrono::nanoseconds poll = std::chrono::milliseconds(250);
  /// What speaks to etcd; none: libcurl, loaded when an etcd store is opened.
  std::shared_ptr<HttpClient> http;

  /// Reads the rows of `option_rows`, which the table must hold.
  [[nodiscard]] static Result<StoreOptions> read(const Options& options);
};

/// Where a store lies.
struct StoreUrl {
  enum class Kind { etcd, file, memory } kind = Kind::memory;
  std::vector<std::string> endpoints;  ///< etcd
  std::string path;                    ///< etcd: namespace or empty; file: folder; memory: name
  ///   errors  invalid_argument (says what can be written)
  [[nodiscard]] static Result<StoreUrl> parse(std::string_view url);
};

/// Opens a store. Stores "memory:NAME" of one name are one within the process: the only state of this room
/// that nobody owns, since the agents that share it know nothing of one another.
///   errors  invalid_argument (address, options), not_supported (libcurl is missing, a file system without
///   locks), and the
///           system's
[[nodiscard]] Result<std::unique_ptr<Store>> open_store(std::string_view url, const StoreOptions& options,
                                                        Logger& logger);

}  // namespace headrace::metadata
