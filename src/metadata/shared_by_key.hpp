// SPDX-License-Identifier: Apache-2.0
// Objects that their owners in one process share although they do not know each other.
#pragma once

#include <headrace/result.hpp>

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace headrace::metadata {

/// One object for each key. It lives as long as an owner holds it. A forked child shares none with its
/// parent, whose threads it does not have.
template <class Key, class Object>
class SharedByKey {
 public:
  /// The object of `key`. If there is none, `make()`, which returns a Result<std::shared_ptr<Object>>, makes
  /// it.
  template <class Make>
  Result<std::shared_ptr<Object>> get(Key key, Make make) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(objects_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Object>& known = objects_[{::getpid(), std::move(key)}];
    if (auto object = known.lock()) return object;
    Result<std::shared_ptr<Object>> made = make();
    if (made) known = *made;
    return made;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<pid_t, Key>, std::weak_ptr<Object>> objects_;
};

}  // namespace headrace::metadata
