// SPDX-License-Identifier: Apache-2.0
// The memory of one rank that calls use again and again: what is registered, under which number its backend
// knows it, and who owns it.
#pragma once

#include <headrace/comm_call.hpp>
#include <headrace/result.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::collectives {

/// A tensor is known by its address, and taken back with the count and type that it was registered with.
/// Tensors without elements may have one address.
///   threads  any
///   owns     the owners, which it releases when it holds no lock
class Registrations {
 public:
  struct Entry {
    Elements tensor;
    std::uint64_t number = 0;  ///< of the backend; 0: it has none
    std::shared_ptr<const void> owner;
  };

  ///   errors  invalid_argument (memory at this address is registered already)
  [[nodiscard]] Result<void> check_new(const Elements& tensor) const;
  ///   errors  those of check_new
  [[nodiscard]] Result<void> add(const Elements& tensor, std::uint64_t number,
                                 std::shared_ptr<const void> owner);
  /// The number of a tensor.
  ///   errors  invalid_argument (it is not registered: how many are; or with another count or type)
  [[nodiscard]] Result<std::uint64_t> find(const Elements& tensor) const;
  /// Removes a tensor.
  ///   errors  those of find
  [[nodiscard]] Result<Entry> take(const Elements& tensor);
  void clear();

 private:
  using Entries = std::vector<Entry>;
  [[nodiscard]] Result<void> check_new_locked(const Elements& tensor) const;
  [[nodiscard]] Result<std::size_t> position_of(const Elements& tensor) const;

  mutable std::mutex mutex_;
  Entries entries_;
};

}  // namespace headrace::collectives
