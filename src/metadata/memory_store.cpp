// SPDX-License-Identifier: Apache-2.0
#include "metadata/memory_store.hpp"

namespace headrace::metadata {

MemoryNamespace::Publisher MemoryNamespace::add_publisher() {
  const std::scoped_lock lock(mutex_);
  return ++last_publisher_;
}

void MemoryNamespace::publish(Publisher publisher, std::string_view name, std::string_view label,
                              std::string_view bytes) {
  {
    const std::scoped_lock lock(mutex_);
    Agent& agent = agents_[std::string(name)];
    agent.revision = ++version_;
    agent.entries[std::string(label)] = Entry{publisher, std::make_shared<const std::string>(bytes)};
  }
  changed_.notify_all();
}

bool MemoryNamespace::remove(Publisher publisher, std::string_view name, std::string_view label) {
  {
    const std::scoped_lock lock(mutex_);
    const auto agent = agents_.find(name);
    if (agent == agents_.end()) return false;
    const auto entry = agent->second.entries.find(label);
    if (entry == agent->second.entries.end() || entry->second.publisher != publisher) return false;
    agent->second.entries.erase(entry);
    agent->second.revision = ++version_;
    if (agent->second.entries.empty()) agents_.erase(agent);
  }
  changed_.notify_all();
  return true;
}

void MemoryNamespace::remove_all(Publisher publisher) {
  {
    const std::scoped_lock lock(mutex_);
    for (auto& [name, agent] : agents_) {
      const auto mine = [&](const auto& entry) { return entry.second.publisher == publisher; };
      if (std::erase_if(agent.entries, mine) != 0) agent.revision = ++version_;
    }
    std::erase_if(agents_, [](const auto& agent) { return agent.second.entries.empty(); });
  }
  changed_.notify_all();
}

std::shared_ptr<const std::string> MemoryNamespace::fetch(std::string_view name,
                                                          std::string_view label) const {
  const std::scoped_lock lock(mutex_);
  const auto agent = agents_.find(name);
  if (agent == agents_.end()) return nullptr;
  const auto entry = agent->second.entries.find(label);
  return entry == agent->second.entries.end() ? nullptr : entry->second.bytes;
}

Snapshot MemoryNamespace::snapshot() const {
  const std::scoped_lock lock(mutex_);
  Snapshot names;
  for (const auto& [name, agent] : agents_) names[name] = agent.revision;
  return names;
}

bool MemoryNamespace::wait_change(std::uint64_t& seen, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return version_ != seen; })) return false;
  seen = version_;
  return true;
}

MemoryStore::MemoryStore(std::shared_ptr<MemoryNamespace> shared)
    : shared_(std::move(shared)), publisher_(shared_->add_publisher()) {}

MemoryStore::~MemoryStore() { shared_->remove_all(publisher_); }

Result<void> MemoryStore::publish(std::string_view name, std::string_view label, std::string_view bytes,
                                  std::chrono::nanoseconds ttl, Deadline) {
  HEADRACE_TRY_VOID(check_entry(name, label, bytes.size(), ttl));
  shared_->publish(publisher_, name, label, bytes);
  return {};
}

Result<void> MemoryStore::remove(std::string_view name, std::string_view label, Deadline) {
  if (!shared_->remove(publisher_, name, label)) return not_the_owner(name, label, "this process");
  return {};
}

Result<std::string> MemoryStore::fetch(std::string_view name, std::string_view label, Deadline) {
  const auto bytes = shared_->fetch(name, label);
  if (!bytes) return no_such_entry(name, label, "this process");
  return *bytes;
}

Result<std::vector<std::string>> MemoryStore::list(Deadline) {
  std::vector<std::string> names;
  for (const auto& [name, revision] : shared_->snapshot()) names.push_back(name);
  return names;
}

Result<std::unique_ptr<Store::Watch>> MemoryStore::watch(OnEvent on_event) {
  const auto read = [shared = shared_](const std::stop_token& stop, const Tell& tell) {
    Snapshot before;
    std::uint64_t seen = ~std::uint64_t{0};  // the first reading comes at once
    while (shared->wait_change(seen, stop)) {
      Snapshot now = shared->snapshot();
      tell_difference(before, now, tell);
      before = std::move(now);
    }
  };
  return shared_->shared_watch().listen(read, std::move(on_event));
}

}  // namespace headrace::metadata
