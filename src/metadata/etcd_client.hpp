// SPDX-License-Identifier: Apache-2.0
// etcd, version 3, over its JSON gateway: what the store needs of it, and no gRPC.
#pragma once

#include "vendor/curl/http_endpoints.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::metadata {

/// Keys from `begin` on and before `end`; an empty end: `begin` alone.
struct EtcdRange {
  std::string begin;
  std::string end;
  /// All keys that begin with `prefix`, which must not end with the byte 0xff.
  [[nodiscard]] static EtcdRange prefix(std::string_view prefix);
};

using EtcdLease = std::int64_t;

// Steps of a transaction.
struct EtcdPut {
  std::string key;
  std::string_view value;
  EtcdLease lease = 0;
};
struct EtcdDelete {
  EtcdRange range;
};
using EtcdStep = std::variant<EtcdPut, EtcdDelete>;

/// What must hold for a transaction.
struct EtcdCondition {
  enum class Kind { absent, leased_by } kind = Kind::absent;
  std::string key;
  EtcdLease lease = 0;
};

struct EtcdKeyValue {
  std::string key;
  std::string value;
  std::int64_t mod_revision = 0;
};
struct EtcdRangeAnswer {
  std::int64_t revision = 0;  ///< of the whole store when it answered
  std::vector<EtcdKeyValue> pairs;
};

struct EtcdEvent {
  bool deleted = false;
  std::string key;
  std::int64_t mod_revision = 0;
};
struct EtcdWatchAnswer {
  std::int64_t revision = 0;
  bool created = false;  ///< the watch stands
  bool canceled =
      false;  ///< the server gives it up, for example since the revision is compacted away: look anew
  std::vector<EtcdEvent> events;
};

/// Thread-safe. Every request may be repeated without harm, so each goes to the next endpoint when one does
/// not answer, twice round at most.
///   errors  peer_lost (no endpoint serves), timed_out, canceled, not_found (no such lease), exhausted
///   (quota, request too
///           large), invalid_argument (etcd refuses it: credentials, certificates), backend_failed, corrupt
///           (no such JSON)
class EtcdClient {
 public:
  static constexpr std::size_t most_value_bytes = std::size_t{1} << 20;  ///< etcd takes requests of 1.5 MiB

  EtcdClient(std::shared_ptr<HttpClient> http, HttpEndpoints endpoints)
      : http_(std::move(http)), endpoints_(std::move(endpoints)) {}

  Result<EtcdRangeAnswer> range(const EtcdRange& range, bool keys_only, Deadline deadline,
                                std::stop_token stop = {});
  /// True: the conditions held and the steps were taken.
  Result<bool> transact(const std::vector<EtcdCondition>& conditions, const std::vector<EtcdStep>& steps,
                        Deadline deadline, std::stop_token stop = {});

  struct Granted {
    EtcdLease lease = 0;
    std::chrono::seconds ttl{0};  ///< may be more than was asked for
  };
  Result<Granted> grant(std::chrono::seconds ttl, Deadline deadline, std::stop_token stop = {});
  /// How long it lives from now on; 0: it has expired.
  Result<std::chrono::seconds> keep_alive(EtcdLease lease, Deadline deadline, std::stop_token stop = {});
  /// Ends the lease; the keys that hang on it are deleted.
  Result<void> revoke(EtcdLease lease, Deadline deadline);

  /// Hands over what happens to the keys from `start_revision` on, on the caller's thread, until the stream
  /// breaks, `stop` is asked for or `on_answer` returns false.
  Result<void> watch(const EtcdRange& range, std::int64_t start_revision,
                     const std::function<bool(const EtcdWatchAnswer&)>& on_answer, std::stop_token stop);

  [[nodiscard]] std::string where() const;

 private:
  Result<std::string> post(const std::string& path, const std::string& body, Deadline deadline,
                           const std::stop_token& stop);

  std::shared_ptr<HttpClient> http_;
  HttpEndpoints endpoints_;
};

/// One line of a watch's stream.
///   errors  corrupt, or the error that the line carries
[[nodiscard]] Result<EtcdWatchAnswer> parse_watch_line(std::string_view line);

}  // namespace headrace::metadata
