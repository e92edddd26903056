// SPDX-License-Identifier: Apache-2.0
// The network of fake instances: those that reach one another, and the one lock over all that they have.
//
// A model is to be read, so one mutex guards every link, region and request of a network. It is never held
// while bytes are copied nor while a host is called.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace headrace::fake {

struct FakeInstance;
using Lock = std::unique_lock<std::mutex>;

/// Instances that can reach one another: those of one process for the plugin, else those that a test gives
/// one network.
class FakeNetwork {
 public:
  FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  /// The one of all instances that the plugin opens. Never destroyed, because no plugin is unloaded.
  static FakeNetwork& of_process();

  /// Told to peers in `connection_info`; drawn at random, so that another process's network is not taken for
  /// this one.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Without the lock. Returns the number of the new member.
  std::uint64_t join(FakeInstance& instance);

  /// Without the lock, after each call that causes something: does the work of the instances whose callers do
  /// it (Completion::caller), until there is none.
  void settle();

  std::mutex mutex;
  std::condition_variable changed;  ///< a link end or an instance became less busy
  std::map<std::uint64_t, FakeInstance*> instances;

 private:
  const std::string name_;
  std::uint64_t next_ = 1;
};

}  // namespace headrace::fake
