// SPDX-License-Identifier: Apache-2.0
// The backend `fake`: every operation is done at once, and none moves an element. It needs no other rank, so
// it shows what a call costs, and lets one process try a program of many ranks.
#pragma once

#include "collectives/core.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::collectives {

class FakeComm final : public Comm::Core {
 public:
  static Result<std::shared_ptr<Core>> open(const CommOptions& options);
  FakeComm(CommOptions options, std::vector<int> ranks);

  [[nodiscard]] std::string_view backend() const override { return "fake"; }
  [[nodiscard]] std::string_view backend_version() const override;
  [[nodiscard]] CommOptions options() const override;
  void set_timeout(Timeout timeout) override;
  /// Takes any: there is nothing to tune.
  Result<void> set_hints(const std::map<std::string, std::string>& hints) override;
  Result<std::shared_ptr<Core>> split(std::span<const int> ranks, const std::string& name,
                                      const SplitOptions& changes) override;
  void abort(std::string_view reason) override;
  [[nodiscard]] bool ended() const override { return aborted_.load(std::memory_order_acquire); }
  Result<void> finalize() override;
  void close() override;
  bool wait(Work::State&, Deadline) override { return true; }  // all have ended

 protected:
  Result<Work> issue(CommCall& call, std::shared_ptr<const void> owner) override;
  [[nodiscard]] Result<void> check_open() override;

 private:
  [[nodiscard]] Error why_over() const;

  std::atomic<std::uint64_t> number_{0}, message_number_{0};
  std::atomic<bool> over_{false};     // aborted or closed
  std::atomic<bool> aborted_{false};  // set after the cause
  mutable std::mutex mutex_;
  CommOptions options_;
  std::optional<Error> cause_;
};

}  // namespace headrace::collectives
