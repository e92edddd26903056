// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_session.hpp"

#include "base/random.hpp"
#include "base/start_thread.hpp"
#include "metadata/etcd_follower.hpp"
#include "metadata/etcd_keys.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>

namespace headrace::metadata {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Why there was no turn.
Error no_turn(const std::stop_token& stop, std::string timed_out) {
  if (stop.stop_requested()) return Error{Code::canceled, "the caller asked to stop"};
  return Error{Code::timed_out, std::move(timed_out)};
}

}  // namespace

Result<std::shared_ptr<EtcdSession>> EtcdSession::open(std::shared_ptr<EtcdClient> client,
                                                       std::string name_space, Logger& logger) {
  while (name_space.ends_with('/')) name_space.pop_back();
  if (!name_space.starts_with('/')) {
    return make_error(Code::invalid_argument,
                      "the namespace \"{}\" does not begin with a slash: write for example /headrace",
                      name_space);
  }
  std::shared_ptr<EtcdSession> session(new EtcdSession(std::move(client), std::move(name_space), logger));
  HEADRACE_TRY(keeper, start_thread<std::jthread>("headrace-lease",
                                                  [self = session.get()](const std::stop_token& stop) {
                                                    self->keep_leases_alive(stop);
                                                  }));
  session->keeper_ = std::move(keeper);
  return session;
}

EtcdSession::EtcdSession(std::shared_ptr<EtcdClient> client, std::string name_space, Logger& logger)
    : client_(std::move(client)),
      namespace_(std::move(name_space)),
      made_in_(::getpid()),
      log_(logger, "metadata") {}

EtcdSession::~EtcdSession() {
  if (!keeper_.joinable()) return;
  if (is_of_the_parent_process()) {  // the parent's entries stay
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

bool EtcdSession::is_of_the_parent_process() const { return ::getpid() != made_in_; }

// --- owners

EtcdSession::Owner EtcdSession::add_owner() {
  const std::scoped_lock lock(mutex_);
  ++owners_;
  return Owner{++last_owner_};
}

void EtcdSession::end_owner(Owner owner, Deadline deadline) {
  std::vector<Key> left;
  bool last = false;
  {
    const std::scoped_lock lock(mutex_);
    for (auto& [key, publication] : publications_) {
      if (publication.owner != owner) continue;
      publication.owner = Owner::nobody;
      left.push_back(key);
    }
    last = --owners_ == 0;
  }
  if (last) return;
  for (const Key& key : left) {
    if (auto deleted = delete_if_left(key, deadline, {}); !deleted)
      log_.info("\"{}\" stays in etcd until it can be removed: {}", key.first, deleted.error().message);
  }
}

/// Deletes an entry that nobody owns any more.
Result<void> EtcdSession::delete_if_left(const Key& key, Deadline deadline, const std::stop_token& stop) {
  const Turns<Key>::Turn turn(writers_, key, deadline, stop);
  if (!turn) return no_turn(stop, "a publish takes too long");
  EtcdLease lease = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto publication = publications_.find(key);
    if (publication == publications_.end() || publication->second.owner != Owner::nobody) return {};
    lease = publication->second.lease;
  }
  HEADRACE_TRY_VOID(delete_entry(key, lease, deadline, stop));
  const std::scoped_lock lock(mutex_);
  publications_.erase(key);
  return {};
}

/// Entries whose owner could not remove them when it ended.
void EtcdSession::delete_left_entries(const std::stop_token& stop) {
  std::vector<Key> left;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [key, publication] : publications_)
      if (publication.owner == Owner::nobody) left.push_back(key);
  }
  for (const Key& key : left)
    if (!delete_if_left(key, Deadline::after(seconds(2)), stop)) return;  // again when the lease is next due
}

// --- publishing

Result<void> EtcdSession::publish(Owner owner, std::string_view name, std::string_view label,
                                  std::string_view bytes, std::chrono::nanoseconds ttl, Deadline deadline,
                                  const std::stop_token& stop) {
  HEADRACE_TRY_VOID(check_entry(name, label, bytes.size(), ttl));
  const Key key(name, label);
  const Publication publication{owner, std::make_shared<const std::string>(bytes),
                                std::chrono::ceil<seconds>(ttl)};

  const std::string context = fmt::format("publish \"{}\"", name);
  const Turns<Key>::Turn turn(writers_, key, deadline, stop);
  if (!turn) return no_turn(stop, "another publish takes too long").within(context);
  auto written = write(key, publication, Unless::never, deadline, stop);
  // The lease ran out before the keeper noticed: try once more with a new lease.
  if (written.code() == Code::not_found) written = write(key, publication, Unless::never, deadline, stop);
  if (written.code() == Code::canceled || written.code() == Code::timed_out)
    record_unfinished(key, publication);
  if (!written) return std::move(written).error().within(context);
  return {};
}

/// A write that was not waited for may have reached etcd: its owner's end removes it.
void EtcdSession::record_unfinished(const Key& key, Publication publication) {
  const std::scoped_lock lock(mutex_);
  const auto lease = leases_.find(publication.ttl);
  if (lease == leases_.end() || lease->second.id == 0) return;  // nothing is written without a lease
  publication.lease = lease->second.id;
  publications_.try_emplace(key, std::move(publication));
}

/// Writes the chunks with their generation, then in one step the head and the removal of all other
/// generations: a reader sees the old bytes or the new ones. Records what was written. The caller has the
/// turn.
///   errors  not_found: the lease is gone, and the next call requests another
Result<void> EtcdSession::write(const Key& key, const Publication& publication, Unless unless,
                                Deadline deadline, const std::stop_token& stop) {
  HEADRACE_TRY(lease, lease_for(publication.ttl, deadline, stop));
  const std::string_view bytes = *publication.bytes;
  const std::string chunks = chunks_prefix(namespace_, key.first, key.second);
  const bool inlined = bytes.size() <= etcd_chunk_bytes;
  const EtcdHead head{
      inlined ? 0 : static_cast<std::uint32_t>((bytes.size() + etcd_chunk_bytes - 1) / etcd_chunk_bytes),
      bytes.size(), random_u64(), checksum_of(bytes)};
  const auto noticing_the_lease = [&](Result<bool> done) {
    if (done.code() == Code::not_found) forget_lease(publication.ttl, lease);
    return done;
  };
  for (std::uint32_t i = 0; i < head.chunks; ++i) {
    const EtcdPut put{chunk_key(chunks, head.generation, i),
                      bytes.substr(std::size_t{i} * etcd_chunk_bytes, etcd_chunk_bytes), lease};
    HEADRACE_TRY_VOID(noticing_the_lease(client_->transact({}, {put}, deadline, stop)));
  }
  const std::string generation = generation_prefix(chunks, head.generation);
  HEADRACE_TRY(written, noticing_the_lease(write_head_and_end_others(
                            key, lease, write_head(head, inlined ? bytes : std::string_view()), generation,
                            unless, deadline, stop)));
  if (written) {
    const std::scoped_lock lock(mutex_);
    // One that is published again may have lost its owner meanwhile.
    if (unless == Unless::never) publications_[key] = publication;
    publications_[key].lease = lease;
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

Result<bool> EtcdSession::write_head_and_end_others(const Key& key, EtcdLease lease, std::string_view head,
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

Result<void> EtcdSession::remove(Owner owner, std::string_view name, std::string_view label,
                                 Deadline deadline, const std::stop_token& stop) {
  const Key key(name, label);
  const Turns<Key>::Turn turn(writers_, key, deadline, stop);
  if (!turn) return no_turn(stop, "a publish takes too long").within(fmt::format("remove \"{}\"", name));
  EtcdLease lease = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto publication = publications_.find(key);
    if (publication == publications_.end() || publication->second.owner != owner)
      return not_the_owner(name, label, client_->where());
    lease = publication->second.lease;
  }
  HEADRACE_TRY(removed, delete_entry(key, lease, deadline, stop));
  const std::scoped_lock lock(mutex_);
  publications_.erase(key);
  if (!removed) return not_the_owner(name, label, client_->where());
  return {};
}

/// False: the entry is another process's now, or gone.
Result<bool> EtcdSession::delete_entry(const Key& key, EtcdLease lease, Deadline deadline,
                                       const std::stop_token& stop) {
  const std::string at = head_key(namespace_, key.first, key.second);
  const EtcdRange chunks = EtcdRange::prefix(chunks_prefix(namespace_, key.first, key.second));
  return client_->transact({{EtcdCondition::Kind::leased_by, at, lease}},
                           {EtcdDelete{{at, {}}}, EtcdDelete{chunks}}, deadline, stop);
}

// --- leases

Result<EtcdLease> EtcdSession::lease_for(seconds ttl, Deadline deadline, const std::stop_token& stop) {
  const Turns<seconds>::Turn turn(grants_, ttl, deadline, stop);
  if (!turn) return no_turn(stop, fmt::format("etcd takes too long to grant a lease of {} s", ttl.count()));
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
void EtcdSession::forget_lease(seconds ttl, EtcdLease id) {
  {
    const std::scoped_lock lock(mutex_);
    if (Lease& lease = leases_[ttl]; lease.id == id) lease = Lease{0, ttl, Deadline::after(seconds(1))};
  }
  leases_changed_.notify_all();
}

Deadline EtcdSession::first_due() const {
  Deadline first = Deadline::never();
  for (const auto& [ttl, lease] : leases_) first = Deadline::earliest(first, lease.due);
  return first;
}

void EtcdSession::keep_leases_alive(const std::stop_token& stop) {
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
void EtcdSession::renew(seconds ttl, EtcdLease id, const std::stop_token& stop) {
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
  if (!lost && !alive) return;
  delete_left_entries(stop);
  publish_again(ttl, stop);
}

/// Those that use another lease than the one of their ttl. What nobody owns any more went with its lease.
std::vector<EtcdSession::Key> EtcdSession::lost_entries(seconds ttl) {
  const std::scoped_lock lock(mutex_);
  const EtcdLease current = leases_[ttl].id;
  const auto is_lost = [&](const auto& entry) {
    return entry.second.ttl == ttl && (current == 0 || entry.second.lease != current);
  };
  std::erase_if(publications_,
                [&](const auto& entry) { return is_lost(entry) && entry.second.owner == Owner::nobody; });
  std::vector<Key> lost;
  for (const auto& entry : publications_)
    if (is_lost(entry)) lost.push_back(entry.first);
  if (lost.empty() && current == 0) leases_.erase(ttl);
  return lost;
}

/// Writes lost entries. A failed write is retried when the lease is next due.
void EtcdSession::publish_again(seconds ttl, const std::stop_token& stop) {
  const Deadline deadline = Deadline::after(seconds(10));
  for (const Key& key : lost_entries(ttl)) {
    const Turns<Key>::Turn turn(writers_, key, deadline, stop);
    if (!turn) return;
    Publication lost;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = publications_.find(key);
      // Removed or published meanwhile
      if (found == publications_.end() || found->second.lease == leases_[ttl].id) continue;
      lost = found->second;
    }
    if (auto written = write(key, lost, Unless::taken, deadline, stop); !written) {
      log_.warn("publish \"{}\" again: {}", key.first, written.error().message);
      const std::scoped_lock lock(mutex_);
      leases_[ttl].due = Deadline::earliest(leases_[ttl].due, Deadline::after(seconds(1)));
      return;
    }
  }
}

// --- reading

Result<std::string> EtcdSession::fetch(std::string_view name, std::string_view label, Deadline deadline,
                                       const std::stop_token& stop) {
  const std::string at = head_key(namespace_, name, label);
  const std::string chunks = chunks_prefix(namespace_, name, label);
  // While a publisher replaces the entry, the chunks of the head just read may disappear: then there is a new
  // head.
  constexpr int attempts = 20;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    HEADRACE_TRY(found, client_->range({at, {}}, false, deadline, stop));
    if (found.pairs.empty()) return no_such_entry(name, label, client_->where());
    const std::string& value = found.pairs.front().value;
    wire::BoundedReader reader(value, at.c_str());
    HEADRACE_TRY(head, read_head(reader));
    std::string bytes = head.chunks == 0 ? value.substr(reader.offset()) : std::string();
    for (std::uint32_t i = 0; i < head.chunks; ++i) {
      HEADRACE_TRY(chunk, client_->range({chunk_key(chunks, head.generation, i), {}}, false, deadline, stop));
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

Result<std::vector<std::string>> EtcdSession::list(Deadline deadline, const std::stop_token& stop) {
  HEADRACE_TRY(answer, client_->range(EtcdRange::prefix(agents_prefix(namespace_)), true, deadline, stop));
  std::set<std::string> names;
  for (const EtcdKeyValue& pair : answer.pairs) {
    if (auto key = name_and_label(namespace_, pair.key)) names.insert(std::move(key->first));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<std::unique_ptr<Store::Watch>> EtcdSession::watch(Store::OnEvent on_event) {
  return watch_.listen(
      [client = client_, name_space = namespace_, log = log_](const std::stop_token& stop, const Tell& tell) {
        follow_etcd(*client, name_space, log, stop, tell);
      },
      std::move(on_event));
}

}  // namespace headrace::metadata
