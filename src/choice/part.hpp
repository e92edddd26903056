// SPDX-License-Identifier: Apache-2.0
// The communicator of one candidate inside one of `auto`. It is there on all ranks or on none.
#pragma once

#include "base/comm_border.hpp"
#include "choice/agreement.hpp"
#include "choice/candidate.hpp"
#include "choice/works.hpp"

#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::choice {

/// What the candidate calls as its host is passed on to that of `auto`; its keys and its errors have its
/// name.
///   threads  as comm_v1.h has them
class Part {
 public:
  using Setup = headrace_comm_setup_v1;
  using Call = headrace_comm_call_v1;
  /// Makes the candidate's handle, as `open`, `split`, `shrink` or `reconfigure` of its table does.
  using Make = std::function<std::int32_t(const headrace_comm_backend_v1& table, const Setup& setup,
                                          void** comm, headrace_text_v1* why)>;

  /// `index`: its number among the works' backends. `works` outlives it.
  Part(const Candidate& candidate, const headrace_comm_host_v1* outer, std::size_t index, Works& works);
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  /// All ranks call it, and it succeeds on all of them or on none.
  ///   errors  of the first rank that cannot open it
  [[nodiscard]] Result<void> open(Setup setup, Agreement& agreement, const Make& make);
  /// The same for ranks that have no store by which they could agree: it succeeds or fails on this rank.
  [[nodiscard]] Result<void> open_without_store(Setup setup, const Make& make);

  [[nodiscard]] const std::string& name() const { return candidate_.name; }
  [[nodiscard]] const headrace_comm_backend_v1& table() const { return table_; }
  [[nodiscard]] void* handle() const { return comm_; }
  [[nodiscard]] std::size_t index() const { return index_; }

  /// Whether the work has ended already.
  Result<bool> issue(const Call& call, std::uint64_t work);
  /// Makes later work of a stream wait for a work. Beside `progress`.
  Result<void> follow(std::uint64_t work, void* stream);
  /// The same, but not beside `progress`.
  Result<void> wait_on(std::uint64_t work, void* stream);
  Result<void> group_end();
  bool progress();
  void abort(std::string_view reason);
  /// Takes part in a split for ranks of other groups.
  Result<void> stand_aside();
  /// Whether the candidate makes communicators of ranks that the caller brings together.
  [[nodiscard]] bool reconfigures() const { return table_.reconfigure != nullptr; }
  /// This rank, for one reconfigure.
  Result<std::string> init_handle();
  /// Whether the candidate wants to know of memory that calls use again and again.
  [[nodiscard]] bool registers() const { return table_.tensor_register != nullptr; }
  /// The candidate's number of the registration.
  Result<std::uint64_t> tensor_register(const headrace_comm_elements_v1& tensor, const Deadline& deadline);
  Result<void> tensor_deregister(std::uint64_t registration, const Deadline& deadline);
  /// Whether the candidate can give back memory of the GPU while no call runs.
  [[nodiscard]] bool sleeps() const { return table_.suspend != nullptr; }
  Result<void> suspend(const Deadline& deadline);
  Result<void> resume(const Deadline& deadline);
  [[nodiscard]] bool has_windows() const { return table_.window_open != nullptr; }
  Result<void> window_open(headrace_comm_window_v1& window, const Deadline& deadline);
  Result<void> window_close(std::uint64_t window, const Deadline& deadline);
  /// As issue.
  Result<bool> window_issue(const headrace_comm_window_call_v1& call, std::uint64_t work);
  /// What a late work waits for; empty: it cannot say.
  [[nodiscard]] std::string waits_for(std::uint64_t work);

 private:
  /// Gives a work to the candidate, by `issue(why)`.
  template <class Issue>
  [[nodiscard]] Result<bool> begin(std::uint64_t work, const Issue& issue);
  [[nodiscard]] Result<void> make_handle(Setup& setup, const Deadline& deadline, const Make& make);
  /// Before ranks wait for each other inside the candidate, all know that none has failed before that.
  [[nodiscard]] Result<void> meet(const Result<void>& mine);
  /// From now on the end of the candidate's communicator is that of `auto`.
  void count();
  void close();
  [[nodiscard]] Error error_of(std::int32_t code, std::string_view message) const;

  // What the candidate calls.
  void end(std::uint64_t work, std::int32_t code, std::string_view message, std::int32_t source);
  void ended(std::int32_t code, std::string_view message);
  [[nodiscard]] Result<void> set(const std::string& key, std::string_view value);
  [[nodiscard]] Result<std::string> get(const std::string& key);
  [[nodiscard]] headrace_comm_host_v1 host_table();

  const Candidate& candidate_;
  const headrace_comm_host_v1* const outer_table_;
  const comm_border::Host outer_;
  const std::size_t index_;
  Works& works_;
  const headrace_comm_host_v1 host_;
  headrace_comm_backend_v1 table_{};
  void* comm_ = nullptr;

  Agreement* agreement_ = nullptr;  // while it opens
  bool met_ = false;
  std::optional<Error> refusal_;  // of the ranks that met
  std::mutex driving_;            // held during progress, and during wait_on beside it
  std::mutex mutex_;              // for what follows
  bool counts_ = false;
  std::optional<Error> early_end_;  // before it counted
};

}  // namespace headrace::choice
