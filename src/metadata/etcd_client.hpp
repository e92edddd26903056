// SPDX-License-Identifier: Apache-2.0
// etcd, version 3, over its JSON gateway: the calls that the store needs, without gRPC.
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

/// Keys from `begin` up to but not including `end`. Empty `end`: the key `begin` alone.
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

/// A condition of a transaction.
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
  std::int64_t revision = 0;  ///< of the whole store at the time of the answer
  std::vector<EtcdKeyValue> pairs;
};

struct EtcdEvent {
  bool deleted = false;
  std::string key;
  std::int64_t mod_revision = 0;
};
struct EtcdWatchAnswer {
  std::int64_t revision = 0;
  bool created = false;  ///< the watch is set up
  /// The server ends the watch, for example because the revision has been compacted: read the keys again.
  bool canceled = false;
  std::vector<EtcdEvent> events;
};

/// Thread-safe. Every request may be repeated without harm. If an endpoint does not answer, the request goes
/// to the next one; each endpoint is tried twice at most.
///   errors  peer_lost (no endpoint serves), timed_out, canceled, not_found (no such lease), exhausted
///           (quota, request too large), invalid_argument (etcd refuses it: credentials, certificates),
///           backend_failed, corrupt (not the documented JSON)
class EtcdClient {
 public:
  static constexpr std::size_t most_value_bytes = std::size_t{1}
                                                  << 20;  ///< etcd accepts requests of up to 1.5 MiB

  EtcdClient(std::shared_ptr<HttpClient> http, HttpEndpoints endpoints)
      : http_(std::move(http)), endpoints_(std::move(endpoints)) {}

  Result<EtcdRangeAnswer> range(const EtcdRange& range, bool keys_only, Deadline deadline,
                                const std::stop_token& stop = {});
  /// True: the conditions held and the steps were carried out.
  Result<bool> transact(const std::vector<EtcdCondition>& conditions, const std::vector<EtcdStep>& steps,
                        Deadline deadline, const std::stop_token& stop = {});

  struct Granted {
    EtcdLease lease = 0;
    std::chrono::seconds ttl{0};  ///< may be longer than requested
  };
  Result<Granted> grant(std::chrono::seconds ttl, Deadline deadline, const std::stop_token& stop = {});
  /// Renews a lease. Returns its remaining time to live; 0: it has expired.
  Result<std::chrono::seconds> keep_alive(EtcdLease lease, Deadline deadline,
                                          const std::stop_token& stop = {});
  /// Ends a lease; its keys are deleted.
  Result<void> revoke(EtcdLease lease, Deadline deadline);

  /// Passes changes of the keys since `start_revision` to `on_answer`, on the caller's thread, until the
  /// stream breaks, `stop` is requested, or `on_answer` returns false.
  Result<void> watch(const EtcdRange& range, std::int64_t start_revision,
                     const std::function<bool(const EtcdWatchAnswer&)>& on_answer, std::stop_token stop);

  [[nodiscard]] std::string where() const;

 private:
  Result<std::string> post(const std::string& path, const std::string& body, Deadline deadline,
                           const std::stop_token& stop);

  std::shared_ptr<HttpClient> http_;
  HttpEndpoints endpoints_;
};

/// Parses one line of a watch's stream.
///   errors  corrupt, or the error that the line reports
[[nodiscard]] Result<EtcdWatchAnswer> parse_watch_line(std::string_view line);

}  // namespace headrace::metadata
