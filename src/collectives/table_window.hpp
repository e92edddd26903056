// SPDX-License-Identifier: Apache-2.0
// A window of a communicator whose backend is a C table: checks its calls, and gives them to the backend.
#pragma once

#include "collectives/table_comm.hpp"
#include "collectives/window_state.hpp"

#include <headrace/plugin/comm_v1.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::collectives {

class TableWindow final : public Window::State {
 public:
  /// `number`: of the window in its communicator.
  TableWindow(std::shared_ptr<TableComm> comm, std::uint64_t number)
      : comm_(std::move(comm)), number_(number) {}

  [[nodiscard]] bool forked() const override { return comm_->forked(); }
  Result<void> open(WindowMemory memory) override;
  Result<void> close() override;
  [[nodiscard]] Result<Elements> tensor() const override;
  Result<Work> put(const ConstElements& from, int rank, std::size_t at,
                   const WindowOptions& options) override;
  Result<Work> get(const Elements& to, int rank, std::size_t at, const WindowOptions& options) override;
  Result<Work> signal(int rank, const Signal& signal, const WindowOptions& options) override;
  Result<std::uint64_t> wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                    Timeout timeout) override;
  Result<std::int64_t> atomic_add(int rank, std::size_t at, std::int64_t value, Timeout timeout) override;
  Result<void> flush(Timeout timeout) override;
  Result<RemoteTensor> map(int rank) override;
  [[nodiscard]] Result<WindowAttr> attr(int rank) const override;
  [[nodiscard]] Result<const headrace_device_window_v1*> device_window() const override;

 private:
  /// What the backend has told of a registration.
  struct Opened {
    std::uint64_t number;
    Elements elements;
    std::shared_ptr<const void> owner;
    std::vector<std::uint64_t> counts, places;  // by rank
    const headrace_device_window_v1* device = nullptr;

    [[nodiscard]] WindowPart part(int rank) const {
      return {rank, counts[static_cast<std::size_t>(rank)], elements.dtype};
    }
    [[nodiscard]] std::uint64_t place(int rank) const { return places[static_cast<std::size_t>(rank)]; }
  };
  using Current = std::shared_ptr<const Opened>;
  struct Operation {
    CommCall call;
    headrace_comm_window_call_v1 table_call;
  };

  [[nodiscard]] Result<Current> current() const;
  /// The registration, for an operation with a rank.
  [[nodiscard]] Result<Current> current_for(int rank) const;
  /// The error of a call that has no number.
  [[nodiscard]] Error refused(std::string_view function, Error error) const;
  [[nodiscard]] Error refused(CommOperation operation, Error error) const {
    return refused(comm_operation_name(operation), std::move(error));
  }
  [[nodiscard]] static Operation operation(CommOperation operation, int rank, const WindowOptions& options);
  /// Gives an operation to the backend, between the hooks. `check(opened)` refuses it.
  template <class Check>
  Result<Work> start(Operation& operation, std::shared_ptr<const void> owner, const Check& check);
  /// The same of one that is waited for, and returns a value.
  template <class Check>
  Result<std::uint64_t> now(Operation& operation, const Check& check);
  Result<Work> issue(Operation& operation, std::shared_ptr<const void> owner);

  const std::shared_ptr<TableComm> comm_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  Current opened_;
  std::vector<Work> begun_;  // asynchronous, for flush
};

}  // namespace headrace::collectives
