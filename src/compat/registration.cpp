// SPDX-License-Identifier: Apache-2.0
#include "compat/registration.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace headrace::compat {

Registration::Registration(std::shared_ptr<Endpoint> endpoint, FabricMemory memory)
    : endpoint_(std::move(endpoint)), memory_(std::move(memory)) {}

Registration::~Registration() { drop(); }

Result<std::shared_ptr<Registration>> Registration::make(const MemoryRange& range) {
  auto endpoint = Endpoint::shared();
  if (!endpoint) return std::move(endpoint).error();
  auto memory = (*endpoint)->fabric.register_memory(range, FabricAccess::writable);
  if (!memory) return std::move(memory).error();
  return std::make_shared<Registration>(*std::move(endpoint), *std::move(memory));
}

void Registration::drop() {
  if (dropped_.exchange(true)) return;
  // It fails in a forked child alone, where no post runs.
  (void)endpoint_->fabric.deregister(memory_);
}

// --- segments of allocators

namespace {

struct Segment {
  std::size_t length = 0;
  std::size_t uses = 0;
  std::shared_ptr<Registration> registration;
};

class Segments {
 public:
  static Segments& of_process() {
    static Segments segments;
    return segments;
  }

  commResult_t add(void* addr, std::size_t len) {
    const std::scoped_lock lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(addr);
    if (const auto found = all_.find(begin); found != all_.end()) {
      if (found->second.length != len) return commInvalidArgument;
      ++found->second.uses;
      return commSuccess;
    }
    auto made = Registration::make({.address = addr, .length_bytes = len});
    if (!made) return commSystemError;
    all_.emplace(begin, Segment{len, 1, *std::move(made)});
    return commSuccess;
  }

  commResult_t remove(void* addr, std::size_t len) {
    std::shared_ptr<Registration> last;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = all_.find(reinterpret_cast<std::uintptr_t>(addr));
      if (found == all_.end() || found->second.length != len) return commInvalidArgument;
      if (--found->second.uses != 0) return commSuccess;
      last = std::move(found->second.registration);
      all_.erase(found);
    }
    last->drop();  // waits for posts: without the lock
    return commSuccess;
  }

  std::shared_ptr<Registration> find(const void* buf, std::size_t len) {
    const std::scoped_lock lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(buf);
    auto after = all_.upper_bound(begin);
    if (after == all_.begin()) return nullptr;
    const auto& [start, segment] = *--after;
    const bool inside = begin - start <= segment.length && len <= segment.length - (begin - start);
    return inside ? segment.registration : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, Segment> all_;
};

}  // namespace

std::shared_ptr<Registration> segment_of(const void* buf, std::size_t len) {
  return Segments::of_process().find(buf, len);
}

// NOLINTBEGIN(readability-identifier-naming): the names are torchcomms'
int RdmaRegTensor(void* addr, std::size_t len) {
  return addr == nullptr ? commSuccess : Segments::of_process().add(addr, len);
}

int RdmaDeregTensor(void* addr, std::size_t len) {
  return addr == nullptr ? commSuccess : Segments::of_process().remove(addr, len);
}
// NOLINTEND(readability-identifier-naming)

}  // namespace headrace::compat
