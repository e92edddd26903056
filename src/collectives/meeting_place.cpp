// SPDX-License-Identifier: Apache-2.0
// The stores in which ranks meet: those of agents, and a socket of rank 0.
#include "agent/core_options.hpp"
#include "agent/secret.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "collectives/meeting.hpp"
#include "collectives/work_state.hpp"
#include "metadata/metadata_socket.hpp"
#include "metadata/open_store.hpp"
#include "wire/comm_cards.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace headrace::collectives {
namespace {

constexpr auto entry_ttl = std::chrono::seconds(30);
constexpr std::string_view tcp_scheme = "tcp://";

/// How long calls of a store may take: while ranks meet, not much longer than they may.
class CallLimit {
 public:
  explicit CallLimit(Timeout meeting) : end_of_meeting_(deadline_of(meeting)) {}
  [[nodiscard]] Deadline of_a_call() const {
    const Deadline longest = Deadline::after(std::chrono::seconds(10));
    if (end_of_meeting_.expired()) return longest;  // ranks that met here may meet again, for a split
    const Deadline shortest = Deadline::after(std::chrono::milliseconds(500));  // for a store that is slow
    return Deadline::earliest(longest, std::max(shortest, end_of_meeting_));
  }

 private:
  const Deadline end_of_meeting_;
};

/// A store of agents.
class AgentStore final : public CommStore {
 public:
  AgentStore(std::unique_ptr<metadata::Store> store, CallLimit limit)
      : store_(std::move(store)), limit_(limit) {}
  Result<void> set(const std::string& key, const std::string& value) override {
    return store_->publish(key, "", value, entry_ttl, limit_.of_a_call());
  }
  Result<std::string> get(const std::string& key) override {
    return store_->fetch(key, "", limit_.of_a_call());
  }

 private:
  std::unique_ptr<metadata::Store> store_;
  const CallLimit limit_;
};

/// At rank 0: a map, and the server through which the others read and write it.
class ServedStore final : public CommStore {
 public:
  static Result<std::shared_ptr<CommStore>> open(const std::string& address,
                                                 const metadata::SocketIdentity& identity) {
    auto store = std::make_shared<ServedStore>();
    ServedStore* const self = store.get();
    metadata::MetadataServerOptions options;
    options.listen = address;
    options.identity = identity;
    metadata::MetadataHandlers handlers;
    handlers.fetch = [self](const std::string& label, std::uint64_t) { return self->get(label); };
    handlers.send = [self](const wire::Hello&, std::string_view bytes) { return self->take(bytes); };
    HEADRACE_TRY(server,
                 metadata::MetadataServer::open(std::move(options), handlers, Logger::process_default()));
    store->server_ = std::move(server);
    return std::shared_ptr<CommStore>(std::move(store));
  }
  Result<void> set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
    const std::size_t after = bytes_ - before + key.size() + value.size();
    if (after > most_bytes)
      return make_error(Code::exhausted, "the meeting place of rank 0 would hold {} bytes, and takes {}",
                        after, most_bytes);
    bytes_ = after;
    values_[key] = value;
    return {};
  }
  Result<std::string> get(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return make_error(Code::not_found, "\"{}\" has no value yet", key);
    return found->second;
  }

 private:
  Result<void> take(std::string_view bytes) {
    HEADRACE_TRY(entry, wire::StoreEntry::decode(bytes));
    return set(std::string(entry.key), std::string(entry.value));
  }

  static constexpr std::size_t most_bytes = std::size_t{64} << 20;  // also of strangers

  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;                             // of keys and values
  std::unique_ptr<metadata::MetadataServer> server_;  // its thread ends before the map goes
};

/// At the other ranks. While rank 0 does not listen there is no entry, and none is left: not_found.
class RemoteStore final : public CommStore {
 public:
  RemoteStore(std::string address, metadata::SocketIdentity identity, CallLimit limit)
      : address_(std::move(address)), identity_(std::move(identity)), limit_(limit) {}
  Result<void> set(const std::string& key, const std::string& value) override {
    const std::string entry = wire::StoreEntry{key, value}.encode();
    return if_it_listens(metadata::send_to(address_, identity_, entry, limit_.of_a_call()));
  }
  Result<std::string> get(const std::string& key) override {
    return if_it_listens(metadata::fetch_from(address_, identity_, key, 0, limit_.of_a_call()));
  }

 private:
  template <class T>
  static Result<T> if_it_listens(Result<T> answer) {
    if (answer || answer.code() != Code::peer_lost) return answer;
    return make_error(Code::not_found, "{}. Rank 0 listens there once it has started",
                      answer.error().message);
  }

  const std::string address_;
  const metadata::SocketIdentity identity_;
  const CallLimit limit_;
};

Result<void> check_scheme(std::string_view meeting) {
  for (const std::string_view scheme :
       {tcp_scheme, std::string_view("file://"), std::string_view("memory:"), std::string_view("etcd://")})
    if (meeting.starts_with(scheme)) return {};
  return make_error(
      Code::invalid_argument,
      "\"{}\" is no place to meet: write tcp://host:port of rank 0, file:///folder, memory:NAME "
      "or etcd://host:port",
      meeting);
}

Result<std::shared_ptr<CommStore>> open_socket(const CommOptions& options, const Options& core) {
  const std::string address = options.meeting.substr(tcp_scheme.size());
  HEADRACE_TRY(secret, Secret::read(core));
  metadata::SocketIdentity identity;
  identity.name = fmt::format("rank {}", options.rank);
  identity.incarnation = random_u64();
  identity.token = secret.token;
  if (options.rank == 0) {
    HEADRACE_TRY_VOID(secret.check_port("the meeting of ranks", address,
                                        "meet at a port of 127.0.0.1 if all ranks are on this host"));
    return ServedStore::open(address, identity);
  }
  return std::shared_ptr<CommStore>(
      std::make_shared<RemoteStore>(address, identity, CallLimit(options.meeting_timeout)));
}

}  // namespace

bool meets_on_this_host(const CommOptions& options) {
  if (options.enable_reconfigure) return false;
  if (options.size == 1) return true;
  if (options.store) return false;
  return options.meeting.starts_with("memory:") ||
         (options.meeting.starts_with(tcp_scheme) &&
          is_loopback_only(options.meeting.substr(tcp_scheme.size())));
}

Result<std::shared_ptr<CommStore>> open_meeting_place(const CommOptions& options) {
  if (options.store) return options.store;
  if (options.meeting.empty()) {
    return make_error(
        Code::invalid_argument,
        "{} ranks need a place to meet: give `meeting` (tcp://host:port of rank 0, file:///folder, "
        "memory:NAME or etcd://host:port) or `store`",
        options.size);
  }
  HEADRACE_TRY_VOID(check_scheme(options.meeting));
  OptionSources sources;
  sources.other_tables = {"*"};
  HEADRACE_TRY(core, Options::resolve(core_options, sources));
  if (options.meeting.starts_with(tcp_scheme)) return open_socket(options, core);
  HEADRACE_TRY(settings, metadata::StoreOptions::read(core));
  HEADRACE_TRY(store, metadata::open_store(options.meeting, settings, Logger::process_default()));
  return std::shared_ptr<CommStore>(
      std::make_shared<AgentStore>(std::move(store), CallLimit(options.meeting_timeout)));
}

}  // namespace headrace::collectives
