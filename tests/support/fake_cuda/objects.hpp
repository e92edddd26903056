// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles of the fake driver.
#pragma once

#include "vendor/cuda/types.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::cuda {

/// One piece of work of a stream. Returns false while it waits for something.
using Work = std::function<bool()>;

struct ContextObject {
  int device = 0;
  int retained = 0;
  Outcome broken = Outcome::success;  // the error of a kernel that broke the context
  StreamObject* default_stream = nullptr;
};

struct StreamObject {
  ContextObject* context = nullptr;
  std::uint64_t serial = 0;
  std::deque<Work> queue;
  GraphObject* capture = nullptr;
};

struct EventObject {
  std::uint64_t recorded = 0;         // how many times it has been recorded on a stream
  std::set<std::uint64_t> open = {};  // those of these records that have not run; a later one may run first
  [[nodiscard]] bool reached() const { return !open.contains(recorded); }
  std::chrono::steady_clock::time_point when;
};

struct FunctionObject {
  std::string name;
  std::map<FunctionAttribute, int> attributes;
};

struct ModuleObject {
  std::vector<std::unique_ptr<FunctionObject>> functions;
};

struct GraphObject {
  std::vector<Work> works;
  CaptureMode mode = CaptureMode::global;  // of the capture that makes the graph
  std::thread::id captured_by;             // the thread of that capture
  bool spoilt = false;                     // whether a forbidden call has invalidated it
};

struct GraphExecObject {
  std::vector<Work> works;
};

/// All objects of one kind that were made and not destroyed.
template <class Object>
class Objects {
 public:
  Object* add(Object object) {
    auto owned = std::make_unique<Object>(std::move(object));
    Object* const handle = owned.get();
    objects_.emplace(handle, std::move(owned));
    return handle;
  }
  [[nodiscard]] bool contains(const Object* handle) const { return objects_.contains(handle); }
  [[nodiscard]] Outcome destroy(const Object* handle) {
    return objects_.erase(handle) == 1 ? Outcome::success : Outcome::invalid_handle;
  }
  [[nodiscard]] int count() const { return static_cast<int>(objects_.size()); }

 private:
  std::map<const Object*, std::unique_ptr<Object>> objects_;
};

}  // namespace headrace::cuda
