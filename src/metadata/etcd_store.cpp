// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_store.hpp"

#include "base/hash.hpp"
#include "base/random.hpp"
#include "metadata/watch_thread.hpp"
#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <span>
#include <system_error>

namespace headrace::metadata {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t chunk_bytes = EtcdClient::most_value_bytes;

// --- keys: <namespace>/agents/<name>/<label>, <namespace>/chunks/<name>/<label>/<generation>/<number>

std::string agents_prefix(const std::string& name_space) { return name_space + "/agents/"; }

std::string head_key(const std::string& name_space, std::string_view name, std::string_view label) {
  return agents_prefix(name_space) + escape_name(name) + "/" + escape_name(label);
}

std::string chunks_prefix(const std::string& name_space, std::string_view name, std::string_view label) {
  return name_space + "/chunks/" + escape_name(name) + "/" + escape_name(label) + "/";
}

std::string generation_prefix(const std::string& chunks, std::uint64_t generation) {
  return chunks + fmt::format("{:016x}/", generation);
}

std::string chunk_key(const std::string& chunks, std::uint64_t generation, std::uint32_t number) {
  return generation_prefix(chunks, generation) + fmt::format("{:08x}", number);
}

/// Name and label of a head's key; nullopt for keys of others.
std::optional<std::pair<std::string, std::string>> name_and_label(const std::string& name_space,
                                                                  std::string_view key) {
  const std::string prefix = agents_prefix(name_space);
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  const std::size_t slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  auto name = unescape_name(key.substr(0, slash));
  auto label = unescape_name(key.substr(slash + 1));
  if (!name || !label) return std::nullopt;
  return std::pair(std::move(name).value(), std::move(label).value());
}

// --- heads: the values of <namespace>/agents/<name>/<label>

struct Head {
  static constexpr std::string_view magic = "HRSH";
  std::uint32_t chunks = 0;  ///< 0: the bytes follow the head
  std::uint64_t length = 0;
  std::uint64_t generation = 0;  // the generation of its chunks
  std::uint64_t checksum = 0;
};

std::uint64_t checksum_of(std::string_view bytes) { return hash64(std::as_bytes(std::span(bytes))); }

std::string write_head(const Head& head, std::string_view inline_bytes) {
  wire::ByteWriter writer;
  writer.bytes(Head::magic);
  writer.number(head.chunks);
  writer.number(head.length);
  writer.number(head.generation);
  writer.number(head.checksum);
  writer.bytes(inline_bytes);
  return std::move(writer).take();
}

Result<Head> read_head(wire::BoundedReader& reader) {
  HEADRACE_TRY(magic, reader.bytes(Head::magic.size(), "the magic"));
  if (magic != Head::magic) return reader.corrupt("it does not begin with \"{}\"", Head::magic);
  HEADRACE_TRY(chunks, reader.number<std::uint32_t>("the number of chunks"));
  HEADRACE_TRY(length, reader.number<std::uint64_t>("the length"));
  HEADRACE_TRY(generation, reader.number<std::uint64_t>("the generation"));
  HEADRACE_TRY(checksum, reader.number<std::uint64_t>("the checksum"));
  const Head head{chunks, length, generation, checksum};
  const std::uint64_t most = chunks == 0 ? reader.remaining() : std::uint64_t{chunks} * chunk_bytes;
  if (length > most || length > Store::most_entry_bytes)
    return reader.corrupt("{} bytes in {} chunks", length, chunks);
  return head;
}

bool wait(milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

/// Follows the heads of a namespace: reads all of them, then streams the changes since that revision.
class Follower {
 public:
  Follower(EtcdClient& client, const std::string& name_space, const Log& log, const std::stop_token& stop,
           const WatchThread::Tell& tell)
      : client_(client),
        namespace_(name_space),
        log_(log),
        stop_(stop),
        tell_(tell),
        range_(EtcdRange::prefix(agents_prefix(name_space))) {}

  void run() {
    constexpr milliseconds shortest{50};
    constexpr milliseconds longest{2000};
    milliseconds pause = shortest;
    while (!stop_.stop_requested()) {
      heard_ = false;
      const bool looking = next_revision_ == 0;
      auto went = looking ? look() : follow();
      if (!went) log_.debug("watch {}: {}", range_.begin, went.error().message);
      if (went && looking) continue;  // continue with the stream
      pause = heard_ ? shortest : std::min(2 * pause, longest);
      if (!wait(pause, stop_)) return;
    }
  }

 private:
  using Labels = std::map<std::string, std::int64_t>;  // label -> revision

  Result<void> look() {
    HEADRACE_TRY(answer, client_.range(range_, true, Deadline::after(seconds(10)), stop_));
    std::map<std::string, Labels> agents;
    for (const EtcdKeyValue& pair : answer.pairs) {
      if (const auto key = name_and_label(namespace_, pair.key))
        agents[key->first][key->second] = pair.mod_revision;
    }
    tell_difference(snapshot(agents_), snapshot(agents), tell_);
    agents_ = std::move(agents);
    next_revision_ = answer.revision + 1;
    return {};
  }

  Result<void> follow() {
    return client_.watch(
        range_, next_revision_, [this](const EtcdWatchAnswer& answer) { return take(answer); }, stop_);
  }

  bool take(const EtcdWatchAnswer& answer) {
    heard_ = true;
    // The revision was compacted, or the store is older than what was read before: it has lost data.
    if (answer.canceled || (answer.created && answer.revision + 1 < next_revision_)) {
      next_revision_ = 0;
      return false;
    }
    for (const EtcdEvent& event : answer.events) {
      if (const auto key = name_and_label(namespace_, event.key)) apply(key->first, key->second, event);
      next_revision_ = std::max(next_revision_, event.mod_revision + 1);
    }
    return true;
  }

  void apply(const std::string& name, const std::string& label, const EtcdEvent& event) {
    if (!event.deleted) {
      const bool known = agents_.contains(name);
      agents_[name][label] = event.mod_revision;
      return tell_(known ? StoreEvent::Kind::updated : StoreEvent::Kind::joined, name);
    }
    const auto agent = agents_.find(name);
    if (agent == agents_.end() || agent->second.erase(label) == 0) return;
    const bool last = agent->second.empty();
    if (last) agents_.erase(agent);
    tell_(last ? StoreEvent::Kind::left : StoreEvent::Kind::updated, name);
  }

  static Snapshot snapshot(const std::map<std::string, Labels>& agents) {
    Snapshot names;
    for (const auto& [name, labels] : agents) {
      std::uint64_t all = 0;
      for (const auto& [label, revision] : labels)
        all = hash64(std::as_bytes(std::span(label)), all + static_cast<std::uint64_t>(revision));
      names[name] = all;
    }
    return names;
  }

  EtcdClient& client_;
  const std::string& namespace_;
  const Log& log_;
  const std::stop_token& stop_;
  const WatchThread::Tell& tell_;
  const EtcdRange range_;
  std::map<std::string, Labels> agents_;
  std::int64_t next_revision_ = 0;  // 0: read everything
  bool heard_ = false;
};

}  // namespace

Result<std::unique_ptr<Store>> EtcdStore::open(std::shared_ptr<EtcdClient> client, std::string name_space,
                                               Logger& logger) {
  while (name_space.ends_with('/')) name_space.pop_back();
  if (!name_space.starts_with('/')) {
    return make_error(Code::invalid_argument,
                      "the namespace \"{}\" does not begin with a slash: write for example /headrace",
                      name_space);
  }
  std::unique_ptr<EtcdStore> store(new EtcdStore(std::move(client), std::move(name_space), logger));
  try {
    store->keeper_ = std::jthread([self = store.get()](const std::stop_token& stop) {
      ::pthread_setname_np(::pthread_self(), "headrace-lease");
      self->keep_leases_alive(stop);
    });
  } catch (const std::system_error& error) {
    return make_error(Code::exhausted, "no thread to keep leases alive: {}", error.what());
  }
  return std::unique_ptr<Store>(std::move(store));
}

EtcdStore::EtcdStore(std::shared_ptr<EtcdClient> client, std::string name_space, Logger& logger)
    : client_(std::move(client)),
      namespace_(std::move(name_space)),
      made_in_(::getpid()),
      log_(logger, "metadata") {}

EtcdStore::~EtcdStore() {
  if (!keeper_.joinable()) return;
  if (::getpid() != made_in_) {  // a forked child has no such thread, and the parent's entries stay
    keeper_.detach();
    return;
  }
  keeper_.request_stop();
  keeper_.join();
  const Deadline deadline = Deadline::after(seconds(2));
  for (const auto& [ttl, lease] : leases_) {
    if (lease.id == 0) continue;
    if (auto revoked = client_->revoke(lease.id, deadline); !revoked && revoked.code() != Code::not_found) {
      log_.info("entries in etcd are left to expire within {} s: {}", lease.ttl.count(),
                revoked.error().message);
    }
  }
}

// --- publishing

class EtcdStore::Turn {
 public:
  /// Waits for its turn until the deadline.
  Turn(EtcdStore& store, Deadline deadline) : store_(store) {
    std::unique_lock lock(store.mutex_);
    has_ = store.turn_ended_.wait_until(lock, deadline.time_point(), [&] { return !store.writing_; });
    if (has_) store.writing_ = true;
  }
  ~Turn() {
    if (!has_) return;
    {
      const std::scoped_lock lock(store_.mutex_);
      store_.writing_ = false;
    }
    store_.turn_ended_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const noexcept { return has_; }

 private:
  EtcdStore& store_;
  bool has_ = false;
};

Result<void> EtcdStore::publish(std::string_view name, std::string_view label, std::string_view bytes,
                                std::chrono::nanoseconds ttl, Deadline deadline) {
  HEADRACE_TRY_VOID(check_entry(name, label, bytes.size(), ttl));
  const Key key(name, label);
  const Publication publication{std::make_shared<const std::string>(bytes), std::chrono::ceil<seconds>(ttl)};

  const Turn turn(*this, deadline);
  if (!turn) return make_error(Code::timed_out, "publish \"{}\": another publish takes too long", name);
  auto written = write(key, publication, Unless::never, deadline, {});
  // The lease ran out before the keeper noticed: try once more with a new lease.
  if (written.code() == Code::not_found) written = write(key, publication, Unless::never, deadline, {});
  if (!written) return std::move(written).error().within(fmt::format("publish \"{}\"", name));
  return {};
}

/// Writes the chunks with their generation, then in one step the head and the removal of all other
/// generations: a reader sees the old bytes or the new ones. Records what was written. The caller has the
/// turn.
///   errors  not_found: the lease is gone, and the next call requests another
Result<void> EtcdStore::write(const Key& key, const Publication& publication, Unless unless,
                              Deadline deadline, const std::stop_token& stop) {
  HEADRACE_TRY(lease, lease_for(publication.ttl, deadline, stop));
  const std::string_view bytes = *publication.bytes;
  const std::string chunks = chunks_prefix(namespace_, key.first, key.second);
  const bool inlined = bytes.size() <= chunk_bytes;
  const Head head{inlined ? 0 : static_cast<std::uint32_t>((bytes.size() + chunk_bytes - 1) / chunk_bytes),
                  bytes.size(), random_u64(), checksum_of(bytes)};
  const auto noticing_the_lease = [&](Result<bool> done) {
    if (done.code() == Code::not_found) forget_lease(publication.ttl, lease);
    return done;
  };
  for (std::uint32_t i = 0; i < head.chunks; ++i) {
    const EtcdPut put{chunk_key(chunks, head.generation, i),
                      bytes.substr(std::size_t{i} * chunk_bytes, chunk_bytes), lease};
    HEADRACE_TRY_VOID(noticing_the_lease(client_->transact({}, {put}, deadline, stop)));
  }
  const std::string generation = generation_prefix(chunks, head.generation);
  HEADRACE_TRY(written, noticing_the_lease(write_head_and_end_others(
                            key, lease, write_head(head, inlined ? bytes : std::string_view()), generation,
                            unless, deadline, stop)));
  if (written) {
    const std::scoped_lock lock(mutex_);
    publications_[key] = Publication{publication.bytes, publication.ttl, lease};
    return {};
  }
  log_.warn("\"{}\" was published by another agent after our lease ran out: that entry stays", key.first);
  // Chunks without a head disappear with the lease; they are removed now all the same.
  if (head.chunks != 0)
    (void)client_->transact({}, {EtcdDelete{EtcdRange::prefix(generation)}}, deadline, stop);
  const std::scoped_lock lock(mutex_);
  publications_.erase(key);
  return {};
}

Result<bool> EtcdStore::write_head_and_end_others(const Key& key, EtcdLease lease, std::string_view head,
                                                  const std::string& generation, Unless unless,
                                                  Deadline deadline, const std::stop_token& stop) {
  const std::string at = head_key(namespace_, key.first, key.second);
  const std::string chunks = chunks_prefix(namespace_, key.first, key.second);
  const EtcdRange before{chunks, generation};
  const EtcdRange after{EtcdRange::prefix(generation).end, EtcdRange::prefix(chunks).end};
  const std::vector<EtcdStep> steps = {EtcdPut{at, head, lease}, EtcdDelete{before}, EtcdDelete{after}};
  if (unless == Unless::never) return client_->transact({}, steps, deadline, stop);
  HEADRACE_TRY(written, client_->transact({{EtcdCondition::Kind::absent, at}}, steps, deadline, stop));
  if (written) return true;
  // The head is there already if an earlier attempt succeeded and its answer was lost.
  return client_->transact({{EtcdCondition::Kind::leased_by, at, lease}}, steps, deadline, stop);
}

Result<void> EtcdStore::remove(std::string_view name, std::string_view label, Deadline deadline) {
  const Key key(name, label);
  const Turn turn(*this, deadline);
  if (!turn) return make_error(Code::timed_out, "remove \"{}\": a publish takes too long", name);
  EtcdLease lease = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto publication = publications_.find(key);
    if (publication == publications_.end()) return not_the_owner(name, label, client_->where());
    lease = publication->second.lease;
  }
  const std::string at = head_key(namespace_, name, label);
  const EtcdRange chunks = EtcdRange::prefix(chunks_prefix(namespace_, name, label));
  HEADRACE_TRY(removed, client_->transact({{EtcdCondition::Kind::leased_by, at, lease}},
                                          {EtcdDelete{{at, {}}}, EtcdDelete{chunks}}, deadline));
  const std::scoped_lock lock(mutex_);
  publications_.erase(key);
  if (!removed) return not_the_owner(name, label, client_->where());
  return {};
}

// --- leases

/// The caller has the turn: no other thread requests a lease meanwhile.
Result<EtcdLease> EtcdStore::lease_for(seconds ttl, Deadline deadline, const std::stop_token& stop) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto lease = leases_.find(ttl); lease != leases_.end() && lease->second.id != 0)
      return lease->second.id;
  }
  HEADRACE_TRY(granted, client_->grant(ttl, deadline, stop));
  {
    const std::scoped_lock lock(mutex_);
    leases_[ttl] = Lease{granted.lease, granted.ttl, Deadline::after(granted.ttl / 3)};
  }
  leases_changed_.notify_all();
  return granted.lease;
}

/// The keeper then checks within a second which entries used the lease.
void EtcdStore::forget_lease(seconds ttl, EtcdLease id) {
  {
    const std::scoped_lock lock(mutex_);
    if (Lease& lease = leases_[ttl]; lease.id == id) lease = Lease{0, ttl, Deadline::after(seconds(1))};
  }
  leases_changed_.notify_all();
}

Deadline EtcdStore::first_due() const {
  Deadline first = Deadline::never();
  for (const auto& [ttl, lease] : leases_) first = Deadline::earliest(first, lease.due);
  return first;
}

void EtcdStore::keep_leases_alive(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const Deadline due = first_due();
    if (!due.expired()) {
      leases_changed_.wait_until(lock, stop, due.time_point(), [&] { return first_due() < due; });
      continue;
    }
    const auto found = std::ranges::find(leases_, due, [](const auto& entry) { return entry.second.due; });
    const auto [ttl, lease] = *found;
    lock.unlock();
    renew(ttl, lease.id, stop);
    lock.lock();
  }
}

/// Keeps one lease alive. Writes again the entries of a lease that is gone. Sets the time of the next check.
void EtcdStore::renew(seconds ttl, EtcdLease id, const std::stop_token& stop) {
  auto alive = Result<seconds>(seconds(0));
  if (id != 0)
    alive = client_->keep_alive(id, Deadline::after(std::max<milliseconds>(ttl / 3, seconds(1))), stop);
  const bool lost = (alive && *alive <= seconds(0)) || alive.code() == Code::not_found;
  if (lost) {
    if (id != 0) log_.info("a lease of {} s has run out in {}", ttl.count(), client_->where());
    forget_lease(ttl, id);
  } else {
    if (!alive) log_.debug("keep lease {:x} alive: {}", id, alive.error().message);
    const milliseconds next =
        alive ? *alive / 3 : std::clamp<milliseconds>(ttl / 10, milliseconds(100), seconds(1));
    const std::scoped_lock lock(mutex_);
    if (Lease& lease = leases_[ttl]; lease.id == id) lease.due = Deadline::after(next);
  }
  if (lost || alive) publish_again(ttl, stop);
}

/// Writes entries that use another lease than the one of their ttl. A failed write is retried when the lease
/// is next due.
void EtcdStore::publish_again(seconds ttl, const std::stop_token& stop) {
  const Deadline deadline = Deadline::after(seconds(10));
  const Turn turn(*this, deadline);
  if (!turn) return;
  std::map<Key, Publication> lost;
  {
    const std::scoped_lock lock(mutex_);
    const EtcdLease current = leases_[ttl].id;
    for (const auto& [key, publication] : publications_) {
      if (publication.ttl == ttl && (current == 0 || publication.lease != current))
        lost.emplace(key, publication);
    }
    if (lost.empty() && current == 0) leases_.erase(ttl);
  }
  for (const auto& [key, publication] : lost) {
    if (auto written = write(key, publication, Unless::taken, deadline, stop); !written) {
      log_.warn("publish \"{}\" again: {}", key.first, written.error().message);
      const std::scoped_lock lock(mutex_);
      leases_[ttl].due = Deadline::earliest(leases_[ttl].due, Deadline::after(seconds(1)));
      return;
    }
  }
}

// --- reading

Result<std::string> EtcdStore::fetch(std::string_view name, std::string_view label, Deadline deadline) {
  const std::string at = head_key(namespace_, name, label);
  const std::string chunks = chunks_prefix(namespace_, name, label);
  // While a publisher replaces the entry, the chunks of the head just read may disappear: then there is a new
  // head.
  constexpr int attempts = 20;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    HEADRACE_TRY(found, client_->range({at, {}}, false, deadline));
    if (found.pairs.empty()) return no_such_entry(name, label, client_->where());
    const std::string& value = found.pairs.front().value;
    wire::BoundedReader reader(value, at.c_str());
    HEADRACE_TRY(head, read_head(reader));
    std::string bytes = head.chunks == 0 ? value.substr(reader.offset()) : std::string();
    for (std::uint32_t i = 0; i < head.chunks; ++i) {
      HEADRACE_TRY(chunk, client_->range({chunk_key(chunks, head.generation, i), {}}, false, deadline));
      if (chunk.pairs.empty()) break;
      bytes += chunk.pairs.front().value;
    }
    if (bytes.size() == head.length && checksum_of(bytes) == head.checksum) return bytes;
    if (bytes.size() >= head.length)
      return reader.corrupt("{} bytes do not match their checksum", bytes.size());
    if (deadline.expired())
      return make_error(Code::timed_out, "fetch \"{}\": every attempt met a replacement of the entry", name);
  }
  return make_error(Code::corrupt, "fetch \"{}\": {} has a head without its chunks", name, client_->where());
}

Result<std::vector<std::string>> EtcdStore::list(Deadline deadline) {
  HEADRACE_TRY(answer, client_->range(EtcdRange::prefix(agents_prefix(namespace_)), true, deadline));
  std::set<std::string> names;
  for (const EtcdKeyValue& pair : answer.pairs) {
    if (auto key = name_and_label(namespace_, pair.key)) names.insert(std::move(key->first));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<std::unique_ptr<Store::Watch>> EtcdStore::watch(OnEvent on_event) {
  return WatchThread::start(
      [client = client_, name_space = namespace_, log = log_](const std::stop_token& stop,
                                                              const WatchThread::Tell& tell) {
        Follower(*client, name_space, log, stop, tell).run();
      },
      std::move(on_event));
}

}  // namespace headrace::metadata
