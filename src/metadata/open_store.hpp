// SPDX-License-Identifier: Apache-2.0
// Opens a store by its address: "etcd://10.0.0.1:2379/prod", "file:///shared/agents", "memory:NAME".
#pragma once

#include "base/log.hpp"
#include "base/options.hpp"
#include "metadata/store.hpp"
#include "vendor/curl/http_client.hpp"

#include <array>

namespace headrace::metadata {

/// Rows of the agent's option table for the stores and the metadata socket.
inline constexpr std::array option_rows{
    OptionRow{"etcd_endpoints", "", "list",
              "Client addresses of etcd, as host:port or https://host:port; used if the store is "
              "\"etcd://\" without an address."},
    OptionRow{"etcd_namespace", "/headrace", "text",
              "First part of all keys in etcd, unless the store's address ends in a namespace."},
    OptionRow{"etcd_ca_file", "", "text",
              "PEM file with the CA certificates for checking etcd's certificate; empty: the system's."},
    OptionRow{"etcd_certificate_file", "", "text", "PEM file with the client certificate for etcd."},
    OptionRow{"etcd_key_file", "", "text", "PEM file with the private key of etcd_certificate_file."},
    OptionRow{
        "store_ttl", "10s", "duration",
        "Time after which the entries of a dead agent expire, in a store that cannot see that it died."},
    OptionRow{"store_poll", "250ms", "duration",
              "Interval at which a watch reads the folder of a file store."},
    OptionRow{"auth_token", "", "text",
              "Secret that all agents share, for all ports; an agent with one connects only to agents with "
              "the same."},
    OptionRow{"auth_token_file", "", "text", "File whose first line is the secret, instead of auth_token."},
    OptionRow{"auth", "optional", "text",
              "required: an agent without a secret opens no port beyond loopback; optional: it warns."},
    OptionRow{
        "metadata_bytes", "256MiB", "bytes",
        "What the metadata socket holds at a time of requests and answers, of which one sent metadata may "
        "have a quarter; and what is kept of metadata that agents sent unasked."},
    OptionRow{"handshake_timeout", "5s", "duration",
              "Time that a new connection has for its handshake before it is dropped."},
};

struct StoreOptions {
  std::vector<std::string> etcd_endpoints;
  std::string etcd_namespace = "/headrace";
  std::string etcd_ca_file;
  std::string etcd_certificate_file;
  std::string etcd_key_file;
  std::chrono::nanoseconds poll = std::chrono::milliseconds(250);
  /// The HTTP client for etcd; null: libcurl, loaded when an etcd store is opened.
  std::shared_ptr<HttpClient> http;

  /// Reads the rows of `option_rows`, which must be in the table.
  [[nodiscard]] static Result<StoreOptions> read(const Options& options);
};

/// The parsed address of a store.
struct StoreUrl {
  enum class Kind { etcd, file, memory } kind = Kind::memory;
  std::vector<std::string> endpoints;  ///< etcd
  std::string path;                    ///< etcd: namespace or empty; file: folder; memory: name
  ///   errors  invalid_argument (which forms there are)
  [[nodiscard]] static Result<StoreUrl> parse(std::string_view url);
};

/// Opens a store. Stores of one place share what they can in a process: those of one "memory:NAME" their
/// entries, those of one namespace of etcd connections, leases and the watch, those of one folder the watch.
/// These tables are the only state of this room without an owner, because the agents that share do not know
/// each other.
///   errors  invalid_argument (address, options), not_supported (libcurl is missing, a file system without
///           locks), and the system's
[[nodiscard]] Result<std::unique_ptr<Store>> open_store(std::string_view url, const StoreOptions& options,
                                                        Logger& logger);

}  // namespace headrace::metadata
