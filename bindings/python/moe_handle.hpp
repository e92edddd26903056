// SPDX-License-Identifier: Apache-2.0
// A rank of a MoE for Python, and its tables of replicas.
#pragma once

#include <headrace/moe.hpp>

#include "bindings/python/agent_handle.hpp"
#include "bindings/python/comm_handle.hpp"
#include "bindings/python/moe_tensors.hpp"
#include "bindings/python/stream_input.hpp"
#include "bindings/python/time_limit.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace headrace::python {

inline Device device_of(const MoEConfig& config) {
  return config.device < 0 ? Device{} : Device{Device::Kind::cuda, config.device};
}

/// Of a call that waits for other ranks: 10 s, if nothing is given.
inline std::chrono::nanoseconds limit_of(const TimeLimit& timeout) {
  return timeout.or_else(std::chrono::seconds(10)).value_or(std::chrono::hours(24 * 365));
}

/// A table of replicas, with its memory.
struct PyMoEReplicas {
  std::vector<std::int32_t> first{0}, places;
  std::vector<std::int64_t> loads, until, before;
  MoEReplicas table;

  void point_at_memory() {
    table.experts = static_cast<int>(first.size()) - 1;
    table.first = first.data(), table.places = places.data();
    table.loads = loads.empty() ? nullptr : loads.data();
    table.until = until.empty() ? nullptr : until.data();
    table.before = before.empty() ? nullptr : before.data();
  }
};

/// A rank, with its agent. Its end may wait for other ranks, so it is without the GIL.
class PyMoE {
 public:
  PyMoE(const PyAgent& agent, const MoEConfig& config) : opened_(open(agent.shared(), config)) {}
  ~PyMoE() {
    const nb::error_scope keep_error;
    close();
  }
  PyMoE(const PyMoE&) = delete;
  PyMoE& operator=(const PyMoE&) = delete;

  void close() {
    without_gil([opened = std::exchange(opened_, nullptr), home = home_]() mutable {
      home.release(opened);
      return true;
    });
  }
  void abort() const { moe()->abort(); }
  /// With its agent. Held while it is used: another thread may close it, and so may an argument, which can
  /// run code of its own when its memory is asked for.
  [[nodiscard]] std::shared_ptr<headrace::MoE> moe() const { return {opened(), &opened_->moe}; }
  /// The same, for an object that uses both as long as it lives.
  struct Opened {
    std::shared_ptr<headrace::Agent> agent;
    headrace::MoE moe;  // goes first
  };
  [[nodiscard]] std::shared_ptr<Opened> opened() const {
    if (!opened_) raise(Error{Code::invalid_argument, "the MoE is closed: open another one"});
    return opened_;
  }
  /// Returns call(MoE&), called without the GIL: it may wait for the call of another thread, and that for
  /// ranks of this process.
  template <class Call>
  auto ask_plain(const Call& call) const {
    return without_gil([&, of = moe()]() mutable {
      auto answer = call(*of);
      of.reset();
      return answer;
    });
  }
  /// The same. Raises its error, and the exception of a signal handler.
  template <class Call>
  auto ask(const Call& call) const {
    return take_uninterrupted(ask_plain(call));
  }
  /// A tensor in a window of this MoE, which it keeps.
  [[nodiscard]] Tensor window_tensor(const TensorView& view) const {
    using Keep = std::shared_ptr<headrace::MoE>;
    return {view, new Keep(moe()), [](void* keep) { delete static_cast<Keep*>(keep); }};
  }
  /// The stream of an operation: of a MoE on a GPU alone.
  [[nodiscard]] void* stream_of(nb::handle given) const {
    if (given.is_none()) return nullptr;
    if (moe()->config().device < 0)
      raise_invalid(
          "the argument stream is given, and this MoE moves host memory, without streams: leave it out");
    return to_stream(given);
  }
  /// For the tensors of an operation on this stream.
  [[nodiscard]] MoETensors tensors(void* stream) { return {exchange, device_of(moe()->config()), stream}; }
  ExchangeCache exchange;

 private:
  static MoEConfig with_hook(MoEConfig config) {
    config.interrupted = interrupted_by_signal;
    return config;
  }
  static std::shared_ptr<Opened> open(std::shared_ptr<headrace::Agent> agent, const MoEConfig& config) {
    auto moe = take(without_gil([&] { return headrace::MoE::open(*agent, with_hook(config)); }));
    return std::make_shared<Opened>(Opened{std::move(agent), std::move(moe)});
  }

  HomeProcess home_;
  std::shared_ptr<Opened> opened_;
};

/// <headrace/moe_weights.hpp>.
void bind_moe_weights(nb::module_& module);

}  // namespace headrace::python
