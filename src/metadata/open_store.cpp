// SPDX-License-Identifier: Apache-2.0
#include "metadata/open_store.hpp"

#include "base/text.hpp"
#include "metadata/etcd_store.hpp"
#include "metadata/file_store.hpp"
#include "metadata/memory_store.hpp"
#include "metadata/shared_by_key.hpp"

#include <tuple>

namespace headrace::metadata {
namespace {

Error malformed(std::string_view url, std::string_view why) {
  return make_error(Code::invalid_argument,
                    "\"{}\" is not a store: {}; write etcd://host:port[,host:port...][/namespace], "
                    "file:///folder or memory:NAME",
                    url, why);
}

/// The namespaces of "memory:NAME"; each exists as long as a store of it is open.
Result<std::shared_ptr<MemoryNamespace>> memory_namespace(const std::string& name) {
  static auto& all = *new SharedByKey<std::string, MemoryNamespace>;
  return all.get(name, [] { return Result(std::make_shared<MemoryNamespace>()); });
}

Result<std::shared_ptr<HttpClient>> http_client(const StoreOptions& options) {
  if (options.http) return options.http;
  HttpClientOptions http;
  http.ca_file = options.etcd_ca_file;
  http.certificate_file = options.etcd_certificate_file;
  http.key_file = options.etcd_key_file;
  HEADRACE_TRY(client, open_http_client(http));
  return std::shared_ptr<HttpClient>(std::move(client));
}

/// The session of all stores that reach the same namespace in the same way.
Result<std::shared_ptr<EtcdSession>> etcd_session(const std::vector<std::string>& addresses,
                                                  const std::string& name_space, const StoreOptions& options,
                                                  Logger& logger) {
  using Key = std::tuple<std::vector<std::string>, std::string, std::string, std::string, std::string,
                         HttpClient*, Logger*>;
  static auto& all = *new SharedByKey<Key, EtcdSession>;
  const auto make = [&]() -> Result<std::shared_ptr<EtcdSession>> {
    HEADRACE_TRY(endpoints, HttpEndpoints::make(addresses));
    HEADRACE_TRY(http, http_client(options));
    return EtcdSession::open(std::make_shared<EtcdClient>(std::move(http), std::move(endpoints)), name_space,
                             logger);
  };
  return all.get({addresses, name_space, options.etcd_ca_file, options.etcd_certificate_file,
                  options.etcd_key_file, options.http.get(), &logger},
                 make);
}

Result<std::unique_ptr<Store>> open_etcd(const StoreUrl& url, const StoreOptions& options, Logger& logger) {
  const std::vector<std::string>& addresses = url.endpoints.empty() ? options.etcd_endpoints : url.endpoints;
  if (addresses.empty()) {
    return make_error(
        Code::invalid_argument,
        "the store \"etcd://\" names no host: write etcd://host:port or set the option etcd_endpoints");
  }
  HEADRACE_TRY(session, etcd_session(addresses, url.path.empty() ? options.etcd_namespace : url.path, options,
                                     logger));
  return std::unique_ptr<Store>(std::make_unique<EtcdStore>(std::move(session)));
}

}  // namespace

Result<StoreOptions> StoreOptions::read(const Options& options) {
  HEADRACE_TRY(endpoints, options.list("etcd_endpoints"));
  HEADRACE_TRY(name_space, options.text("etcd_namespace"));
  HEADRACE_TRY(ca_file, options.text("etcd_ca_file"));
  HEADRACE_TRY(certificate_file, options.text("etcd_certificate_file"));
  HEADRACE_TRY(key_file, options.text("etcd_key_file"));
  HEADRACE_TRY(poll, options.duration("store_poll"));
  return StoreOptions{endpoints, name_space, ca_file, certificate_file, key_file, poll, nullptr};
}

Result<StoreUrl> StoreUrl::parse(std::string_view url) {
  constexpr std::string_view etcd = "etcd://";
  constexpr std::string_view file = "file://";
  constexpr std::string_view memory = "memory:";
  StoreUrl parsed;
  if (url.starts_with(etcd)) {
    parsed.kind = Kind::etcd;
    const std::string_view rest = url.substr(etcd.size());
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    for (const std::string_view part : split_list(rest.substr(0, slash))) parsed.endpoints.emplace_back(part);
    parsed.path = rest.substr(slash);
    if (parsed.path == "/") parsed.path.clear();
    return parsed;
  }
  if (url.starts_with(file)) {
    parsed.kind = Kind::file;
    parsed.path = url.substr(file.size());
    if (!parsed.path.starts_with('/'))
      return malformed(url, "the folder needs an absolute path, with three slashes before it");
    return parsed;
  }
  if (url.starts_with(memory)) {
    parsed.kind = Kind::memory;
    parsed.path = url.substr(memory.size());
    if (parsed.path.empty()) return malformed(url, "the name is missing");
    return parsed;
  }
  return malformed(url, "it begins with neither etcd:// nor file:// nor memory:");
}

Result<std::unique_ptr<Store>> open_store(std::string_view url, const StoreOptions& options, Logger& logger) {
  HEADRACE_TRY(parsed, StoreUrl::parse(url));
  switch (parsed.kind) {
    case StoreUrl::Kind::etcd:
      return open_etcd(parsed, options, logger);
    case StoreUrl::Kind::file:
      return FileStore::open({parsed.path, options.poll}, logger);
    case StoreUrl::Kind::memory:
      break;
  }
  HEADRACE_TRY(shared, memory_namespace(parsed.path));
  return std::unique_ptr<Store>(std::make_unique<MemoryStore>(std::move(shared)));
}

}  // namespace headrace::metadata
