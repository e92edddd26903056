// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_follower.hpp"

#include "base/hash.hpp"
#include "metadata/etcd_keys.hpp"

#include <algorithm>
#include <condition_variable>
#include <span>

namespace headrace::metadata {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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
           const Tell& tell)
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
  const Tell& tell_;
  const EtcdRange range_;
  std::map<std::string, Labels> agents_;
  std::int64_t next_revision_ = 0;  // 0: read everything
  bool heard_ = false;
};

}  // namespace

void follow_etcd(EtcdClient& client, const std::string& name_space, const Log& log,
                 const std::stop_token& stop, const Tell& tell) {
  Follower(client, name_space, log, stop, tell).run();
}

}  // namespace headrace::metadata
