// SPDX-License-Identifier: Apache-2.0
// The store of keys through which the ranks of a backend that is a C table find each other.
#pragma once

#include "base/clock.hpp"
#include "base/interrupt.hpp"

#include <headrace/comm.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace headrace::collectives {

/// Keys of one communicator at a meeting place. A place may hold those of a run that died, so the ranks agree
/// on a random prefix at their first use.
class TableStore {
 public:
  /// `interrupted` outlives it.
  TableStore(std::shared_ptr<CommStore> place, std::string name, int rank, int size, Timeout limit,
             const std::function<bool()>& interrupted);

  ///   errors  invalid_argument (there is no place), those of Meeting and of the place
  Result<void> set(const std::string& key, const std::string& value);
  ///   errors  also not_found (no value yet)
  Result<std::string> get(const std::string& key);

  /// The open place; null: none.
  [[nodiscard]] const std::shared_ptr<CommStore>& place() const { return place_; }
  /// Of a store of the caller that is there while the communicator opens alone.
  void leave_place() { place_.reset(); }

 private:
  [[nodiscard]] Result<void> meet();

  std::shared_ptr<CommStore> place_;
  const std::string name_;
  const int rank_, size_;
  const Timeout limit_;
  const std::function<bool()>& interrupted_;
  std::mutex mutex_;
  std::string prefix_;  // empty: the ranks have not met
};

}  // namespace headrace::collectives
