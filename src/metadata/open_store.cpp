// SPDX-License-Identifier: Apache-2.0
#include "metadata/open_store.hpp"

#include "base/text.hpp"
#include "metadata/etcd_store.hpp"
#include "metadata/file_store.hpp"
#include "metadata/memory_store.hpp"

namespace headrace::metadata {
namespace {

Error malformed(std::string_view url, std::string_view why) {
  return make_error(Code::invalid_argument,
                    "\"{}\" is not a store: {}; write etcd://host:port[,host:port...][/namespace], "
                    "file:///folder or memory:NAME",
                    url, why);
}

/// The namespaces of "memory:NAME"; each exists as long as a store of it is open.
std::shared_ptr<MemoryNamespace> memory_namespace(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<MemoryNamespace>>& all =
      *new std::map<std::string, std::weak_ptr<MemoryNamespace>>;
  const std::scoped_lock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<MemoryNamespace>& known = all[name];
  auto shared = known.lock();
  if (!shared) known = shared = std::make_shared<MemoryNamespace>();
  return shared;
}

Result<std::unique_ptr<Store>> open_etcd(const StoreUrl& url, const StoreOptions& options, Logger& logger) {
  const std::vector<std::string>& addresses = url.endpoints.empty() ? options.etcd_endpoints : url.endpoints;
  if (addresses.empty()) {
    return make_error(
        Code::invalid_argument,
        "the store \"etcd://\" names no host: write etcd://host:port or set the option etcd_endpoints");
  }
  HEADRACE_TRY(endpoints, HttpEndpoints::make(addresses));
  std::shared_ptr<HttpClient> http = options.http;
  if (!http) {
    HttpClientOptions http_options;
    http_options.ca_file = options.etcd_ca_file;
    http_options.certificate_file = options.etcd_certificate_file;
    http_options.key_file = options.etcd_key_file;
    HEADRACE_TRY(client, open_http_client(http_options));
    http = std::move(client);
  }
  auto client = std::make_shared<EtcdClient>(std::move(http), std::move(endpoints));
  return EtcdStore::open(std::move(client), url.path.empty() ? options.etcd_namespace : url.path, logger);
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
  return std::unique_ptr<Store>(std::make_unique<MemoryStore>(memory_namespace(parsed.path)));
}

}  // namespace headrace::metadata
