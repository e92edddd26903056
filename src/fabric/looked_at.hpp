// SPDX-License-Identifier: Apache-2.0
// Memory that kernels write: no descriptor tells of it, so a worker looks at it.
#pragma once

namespace headrace::fabric {

class Carrier;

/// The worker's thread calls it, and drops it when it is over.
class LookedAt {
 public:
  LookedAt() = default;
  virtual ~LookedAt() = default;
  LookedAt(const LookedAt&) = delete;
  LookedAt& operator=(const LookedAt&) = delete;

  /// Takes what is new; a bounded part of it. Returns whether there was something.
  virtual bool look(Carrier& carrier) = 0;
  /// The worker closes: nothing new is taken.
  virtual void begin_close() = 0;
  [[nodiscard]] virtual bool is_over() const = 0;
};

}  // namespace headrace::fabric
