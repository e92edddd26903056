// SPDX-License-Identifier: Apache-2.0
// A fabric for Python: the objects that it keeps, and how its callbacks reach Python.
#pragma once

#include <headrace/fabric.hpp>

#include "bindings/python/convert.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace headrace::python {

/// The Python functions of a fabric that may be called again and again. Access needs the GIL.
struct FabricHooks {
  std::shared_ptr<Callable> on_error, on_unexpected;
  std::set<std::shared_ptr<Callable>> reached;  ///< of its expectations and receivers

  /// No call of any of them begins after this.
  void drop();
};

/// No call of it begins after this. Frees the function.
void drop_hook(const std::shared_ptr<Callable>& hook);

/// Calls `call`, which may run Python code, with the GIL: for the callback thread of a fabric. An exception
/// becomes one of C++, which the fabric passes to `on_error`. False if the interpreter has begun to end.
bool call_for_fabric(const std::function<void()>& call);
/// The same for a function; its argument makes the tuple. False too if it was dropped or returned False.
bool call_hook(const std::shared_ptr<Callable>& hook, const std::function<nb::object()>& make_arguments);

/// Keeps the object whose memory is registered. Access needs the GIL.
struct FabricKeeper {
  std::shared_ptr<const void> object;  ///< null: deregistered, the fabric is closed, or there is none
};

class PyFabricMemory {
 public:
  headrace::FabricMemory memory;
  std::shared_ptr<FabricKeeper> keeper = {};
};

/// What is called when a work ends; FabricWork itself has room for one function.
class FabricWorkEnds : public std::enable_shared_from_this<FabricWorkEnds> {
 public:
  /// `call` runs on the callback thread of the fabric. Call it without the GIL.
  void add(const FabricWork& work, std::function<void()> call);

 private:
  void run(const FabricWork& work);

  std::mutex mutex_;
  std::vector<std::function<void()>> calls_;
  bool over_ = false;
};

class PyFabricWork {
 public:
  explicit PyFabricWork(FabricWork work) : work_(std::move(work)) {}

  /// Raises in a forked child.
  [[nodiscard]] const FabricWork& work() const;
  [[nodiscard]] bool is_here() const { return home_.is_here(); }
  [[nodiscard]] bool ended() const;
  void wait(const Timeout& timeout) const;
  /// `call` runs on the callback thread of the fabric, also if the work has ended.
  void on_end(std::function<void()> call) const;

 private:
  HomeProcess home_;
  FabricWork work_;
  std::shared_ptr<FabricWorkEnds> ends_ = std::make_shared<FabricWorkEnds>();
};

/// A fabric. It may be closed while other threads are inside a call of it.
class PyFabric {
 public:
  explicit PyFabric(const FabricOptions& options);
  ~PyFabric();
  PyFabric(const PyFabric&) = delete;
  PyFabric& operator=(const PyFabric&) = delete;

  /// Ends its posts, and releases the objects whose memory it has.
  void close();
  [[nodiscard]] bool closed() const { return closed_; }
  /// Raises in a forked child.
  [[nodiscard]] headrace::Fabric& fabric() const;
  [[nodiscard]] const std::shared_ptr<FabricHooks>& hooks() const { return hooks_; }

  /// Returns call(fabric), called without the GIL. Of a Result returns the value or raises the error.
  template <class Call>
  auto ask(Call&& call) const {
    return python::take(without_gil([&, &fabric = fabric()] { return call(fabric); }));
  }

  PyFabricMemory register_memory(const MemoryRange& range, std::shared_ptr<const void> object,
                                 FabricAccess access, std::optional<std::size_t> group);
  void deregister(const PyFabricMemory& memory);
  void on_unexpected(nb::object callback);

 private:
  HomeProcess home_;
  std::shared_ptr<headrace::Fabric> fabric_;
  std::shared_ptr<FabricHooks> hooks_ = std::make_shared<FabricHooks>();
  std::set<std::shared_ptr<FabricKeeper>> keepers_;
  bool closed_ = false;
};

/// Closes the open fabrics of this process; called when the interpreter ends.
void close_all_fabrics();

}  // namespace headrace::python
