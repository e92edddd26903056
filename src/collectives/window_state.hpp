// SPDX-License-Identifier: Apache-2.0
// What a window is to the public face: each kind of backend has one.
#pragma once

#include <headrace/comm_window.hpp>

#include "collectives/window_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace headrace {

/// The functions of Window, whose arguments have not been checked.
class Window::State {
 public:
  State() = default;
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] virtual bool forked() const = 0;
  virtual Result<void> open(collectives::WindowMemory memory) = 0;
  virtual Result<void> close() = 0;
  [[nodiscard]] virtual Result<Elements> tensor() const = 0;
  virtual Result<Work> put(const ConstElements& from, int rank, std::size_t at,
                           const WindowOptions& options) = 0;
  virtual Result<Work> get(const Elements& to, int rank, std::size_t at, const WindowOptions& options) = 0;
  virtual Result<Work> signal(int rank, const Signal& signal, const WindowOptions& options) = 0;
  /// Nullopt: the wait takes 1 from a word above 0.
  virtual Result<std::uint64_t> wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                            Timeout timeout) = 0;
  virtual Result<std::int64_t> atomic_add(int rank, std::size_t at, std::int64_t value, Timeout timeout) = 0;
  virtual Result<void> flush(Timeout timeout) = 0;
  virtual Result<RemoteTensor> map(int rank) = 0;
  [[nodiscard]] virtual Result<WindowAttr> attr(int rank) const = 0;
  [[nodiscard]] virtual Result<const headrace_device_window_v1*> device_window() const = 0;
};

}  // namespace headrace
