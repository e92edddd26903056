// SPDX-License-Identifier: Apache-2.0
// Memory that kernels write: no descriptor tells of it, so a worker polls it.
#pragma once

namespace headrace::fabric {

class Carrier;

/// The worker's thread calls it, and drops it when it is over.
class PolledMemory {
 public:
  PolledMemory() = default;
  virtual ~PolledMemory() = default;
  PolledMemory(const PolledMemory&) = delete;
  PolledMemory& operator=(const PolledMemory&) = delete;

  /// Takes what is new; a bounded part of it. Returns whether there was something.
  virtual bool poll(Carrier& carrier) = 0;
  /// The worker closes: nothing new is taken.
  virtual void begin_close() = 0;
  [[nodiscard]] virtual bool is_over() const = 0;
};

}  // namespace headrace::fabric
