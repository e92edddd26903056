// SPDX-License-Identifier: Apache-2.0
// What stands behind the handles that the host keeps.
#pragma once

#include <headrace/plugin/backend.hpp>

#include <map>
#include <memory>
#include <utility>

namespace headrace::fake {

struct Region;
struct LinkEnd;
struct RemoteRegion;
struct Request;
using Handles = plugin::Handles<Region, LinkEnd, RemoteRegion, Request>;

/// The host's share in each object: from the call that returns its handle to the one that gives it back. An
/// object outlives its handle while a thread still works with it.
template <class T>
class HandleTable {
 public:
  T* add(std::shared_ptr<T> made) {
    T* const handle = made.get();
    by_handle_.emplace(handle, std::move(made));
    return handle;
  }
  [[nodiscard]] const std::shared_ptr<T>& get(const T& handle) const { return by_handle_.at(&handle); }
  [[nodiscard]] bool has(const T& handle) const { return by_handle_.contains(&handle); }
  void drop(const T& handle) { by_handle_.erase(&handle); }
  /// Null if there is none.
  [[nodiscard]] T* any() const { return by_handle_.empty() ? nullptr : by_handle_.begin()->second.get(); }

 private:
  std::map<const T*, std::shared_ptr<T>> by_handle_;
};

}  // namespace headrace::fake
