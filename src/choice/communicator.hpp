// SPDX-License-Identifier: Apache-2.0
// One rank of a communicator of `auto`: has a communicator of each candidate that all ranks can open, and
// gives each call to one of them.
#pragma once

#include "base/comm_border.hpp"
#include "choice/part.hpp"
#include "choice/rank_handle.hpp"
#include "choice/tuning.hpp"
#include "gpu/stream.hpp"
#include "gpu/stream_works.hpp"

#include <headrace/plugin/comm_v1.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::choice {

/// What a communicator is made of besides its setup.
struct Parts {
  std::shared_ptr<const gpu::Device> device;
  const std::vector<Candidate>& candidates;  ///< in the order in which calls without a choice try them
  /// Reads the table of a file; empty: the usual one. Rank 0 calls it.
  std::function<Result<CommTuning>(const std::string& path)> read_tuning;
};

/// The GPU runs the calls one after another, also calls of different streams and candidates: kernels of two
/// candidates that ran side by side could wait for one another crosswise on two ranks.
///   threads  as comm_v1.h has them
class Communicator {
 public:
  using Setup = headrace_comm_setup_v1;
  using Call = headrace_comm_call_v1;

  ///   errors  invalid_argument (a hint that no candidate knows), not_supported (no candidate opens: why each
  ///           does not), timed_out (a rank has not come), those of read_tuning and of the driver
  static Result<std::unique_ptr<Communicator>> open(const Parts& parts, const Setup& setup);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Whether the work has ended already.
  Result<bool> issue(const Call& call, std::uint64_t work);
  void group_start();
  Result<void> group_end();
  Result<void> wait_on(std::uint64_t work, void* stream);
  bool progress();
  /// Registers memory with each candidate that has an entry for it, or with none; the number of all of these.
  Result<std::uint64_t> tensor_register(const headrace_comm_elements_v1& tensor, const Deadline& deadline);
  /// Takes memory back from each candidate. After an error, those that were not asked still have it
  /// registered.
  Result<void> tensor_deregister(std::uint64_t registration, const Deadline& deadline);
  /// Puts each candidate to sleep that can; if one does not, those before it wake again.
  ///   errors  not_supported (none can)
  Result<void> suspend(const Deadline& deadline);
  Result<void> resume(const Deadline& deadline);
  /// The first candidate that has windows, the same on all ranks.
  ///   errors  not_supported (none has)
  Result<Part*> with_windows() const;
  void abort(std::string_view reason);
  [[nodiscard]] std::string waits_for(std::uint64_t work);
  /// Null setup: this rank is in no group.
  Result<std::unique_ptr<Communicator>> split(std::span<const int> ranks, const Setup* setup);
  Result<std::unique_ptr<Communicator>> shrink(std::span<const int> excluded, const Setup& setup);
  /// This rank, for one reconfigure.
  ///   errors  not_supported (none of its backends reconfigures), those of the backends
  Result<RankHandle> handle();
  /// Makes a communicator of the candidates that reconfigure and are open on all of these ranks.
  ///   errors  not_supported (there is none), those of the backends
  Result<std::unique_ptr<Communicator>> reconfigure(const std::string& uuid,
                                                    std::span<const RankHandle> ranks, const Setup& setup);

 private:
  /// Where a call runs.
  struct Place {
    void* stream;
    bool captured;
  };
  /// The call that was queued last.
  struct Last {
    Part* part;
    std::uint64_t work;
    void* stream;
  };
  /// The calls between group_start and group_end, with order_ held.
  struct Group {
    std::unique_lock<std::mutex> order;
    Part* part;  ///< takes groups; null: none does
    std::vector<Last> taken = {};
  };
  /// Memory that a candidate knows by this number.
  struct Registered {
    Part* part;
    std::uint64_t number;
  };
  using Registration = std::vector<Registered>;
  /// Takes memory back from the candidate that got it last, and so on.
  static Result<void> take_back(Registration& registration, const Deadline& deadline);
  /// Makes the handle of a candidate, by its number; its table is open.
  using Make = std::function<Part::Make(std::size_t candidate)>;

  Communicator(Parts parts, const Setup& setup, gpu::Stream stream);
  /// A rank that is not connected.
  static Result<std::unique_ptr<Communicator>> make(const Parts& parts, const Setup& setup);
  /// `inherited`: the table of the communicator that this one is made of; null: it is read.
  static Result<std::unique_ptr<Communicator>> connected(const Parts& parts, const Setup& setup,
                                                         const CommTuning* inherited, const Make& make);
  [[nodiscard]] Result<void> connect(const Setup& setup, const CommTuning* inherited, const Make& make,
                                     Agreement& agreement);
  /// The same for ranks without a store, whose cards are known. `make` has an entry for some candidates,
  /// which all must open.
  static Result<std::unique_ptr<Communicator>> connected_without_store(const Parts& parts, const Setup& setup,
                                                                       std::vector<std::string> cards,
                                                                       const Make& make);
  /// The cards of ranks of this one that have no store.
  [[nodiscard]] std::vector<std::string> cards_of(std::span<const int> ranks) const;
  /// What this rank brings: its GPU, and rank 0's table.
  [[nodiscard]] Result<std::string> card(const Setup& setup, const CommTuning* inherited) const;
  [[nodiscard]] Result<Topology> learn(const std::vector<std::string>& cards);
  void tell_what_is_open(const std::string& refusals) const;
  [[nodiscard]] std::vector<std::string> open_names() const;
  [[nodiscard]] Part* part_of(std::size_t candidate) const;
  /// Refuses a part with another table.
  [[nodiscard]] Result<void> check_table(const Setup& setup) const;

  [[nodiscard]] Result<void> check_hints(const Call& call) const;
  [[nodiscard]] Result<Place> place_of(const Call& call);
  /// The parts in the order in which they are asked to take a call.
  [[nodiscard]] std::vector<Part*> order_for(const Call& call) const;
  /// The backend of messages and of groups; null: none has groups.
  [[nodiscard]] Part* part_of_messages() const;
  Result<bool> give(Part& part, const Call& call, const Place& place, std::uint64_t work);
  /// Makes later work of a stream wait for the call that was queued last.
  [[nodiscard]] Result<void> follow_last(void* stream) const;

  const Parts parts_;
  const comm_border::Host host_;
  const headrace_comm_host_v1* const host_table_;
  const int rank_, size_;
  const std::string table_hint_;
  const gpu::Stream stream_;  // of asynchronous calls, whatever candidate has them
  gpu::StreamWorks joins_;
  CommTuning tuning_;
  Choices choices_;
  Works works_;
  std::vector<std::unique_ptr<Part>> open_;  // in the order of the candidates
  std::vector<std::string> cards_;           // of all ranks, each with the table, if they have no store

  std::mutex order_;  // held while a call is given to a part
  std::optional<Last> last_;
  std::optional<Group> group_;

  std::vector<Part*> asleep_;

  std::map<std::uint64_t, Registration> registered_;  // by number; the host registers one at a time
  std::uint64_t last_registration_ = 0;
};

}  // namespace headrace::choice
