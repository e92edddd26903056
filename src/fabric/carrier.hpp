// SPDX-License-Identifier: Apache-2.0
// The links of one group and the posts on them: what the group's worker does between two sleeps.
#pragma once

#include "base/clock.hpp"
#include "fabric/expectations.hpp"
#include "fabric/part.hpp"
#include "rail/engine.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::fabric {

/// Posts that have ended, of all groups.
struct Tally {
  std::atomic<std::uint64_t> done = 0, failed = 0;
};

/// One thread calls it, the worker's, but for `register_memory` and `deregister`.
class Carrier final : rail::EngineEvents {
 public:
  struct Setup {
    std::shared_ptr<Expectations> expectations;
    std::shared_ptr<Tally> tally;
    std::shared_ptr<const Clock> clock;
    rail::LinkOptions links;
  };
  ///   errors  those of rail::Engine::open
  static Result<std::unique_ptr<Carrier>> open(std::vector<std::unique_ptr<rail::Provider>> providers,
                                               Setup setup);
  ~Carrier() override { close(); }

  // From any thread.
  Result<rail::LocalRegion> register_memory(const rail::Memory& memory);
  void deregister(const rail::LocalRegion& region);
  [[nodiscard]] const NicList& nics() const { return nics_; }

  // Of the worker.
  /// Its end comes by Work::end.
  void post(const std::shared_ptr<Work>& work);
  /// Of a barrier: all peers have told.
  void peers_have_told(Work& work);
  void cancel(Work& work, const Error& cause);
  void connect(const NicList& owner);
  void forget(const NicList& owner);
  /// Cancels the posts that use it, and calls `quiet` when they have ended.
  void quiet(const std::shared_ptr<Memory>& memory, std::function<void()> quiet);
  /// Calls `closed` when no peer has the memory open any more, which was deregistered.
  void when_closed_by_peers(const std::shared_ptr<Memory>& memory, std::function<void()> closed);
  /// Cancels everything.
  void begin_close();
  /// Whether all has ended and left.
  [[nodiscard]] bool is_quiet() const;
  /// No NIC is used from the return on. What has not ended is canceled.
  void close();

  /// Returns how much there was to do: poll again before sleeping if it is not 0.
  std::size_t poll();
  /// False: there is something to do. Before sleeping.
  bool arm();
  /// To wait for; -1 among them: a NIC must be polled.
  [[nodiscard]] std::vector<int> descriptors() const;
  [[nodiscard]] std::uint64_t next_look_ns() const;
  [[nodiscard]] std::vector<rail::Health> health() const;
  /// Posts, links, and memories of peers: to see that nothing stays behind.
  [[nodiscard]] std::size_t held() const;

 private:
  struct Peer {
    rail::Link* link = nullptr;
    std::unordered_map<std::string, std::unique_ptr<KnownRegion>> regions;  // by key
  };
  /// Messages to one peer that its link does not have yet, in their order.
  struct Line {
    std::deque<std::shared_ptr<Part>> waiting;
    std::uint64_t staged_bytes = 0;  ///< host memory of those that it has, and of the one that is copied
  };
  struct Ended {
    std::shared_ptr<Part> part;
    Status status;
    std::string why;
  };

  Carrier(Setup setup, std::vector<rail::Provider*> providers)
      : setup_(std::move(setup)), providers_(std::move(providers)) {}

  void ended(rail::Link& link, rail::Request& request, Status status) override;
  void counted(rail::Link& link, const rail::CountedAt& counted) override;
  void sent(rail::Link& link, std::uint64_t token, Status status, const std::string& why) override;
  void received(rail::Link* link, std::uint64_t token, std::uint64_t bytes, Status status) override;
  void lost(rail::Link& link, const std::string& why) override;
  void linked(rail::Link& link) override { links_.insert(&link); }

  Result<void> begin(const std::shared_ptr<Part>& part);
  Status start(Part& part);
  void stop(Part& part);
  [[nodiscard]] std::shared_ptr<Part> part_of(std::uint64_t token) const;
  Result<Peer*> peer_at(const NicList& owner);
  Result<KnownRegion*> region_of(Peer& peer, const DescriptorParts& there);
  static void drop_unused_regions(Peer& peer);
  void settle();
  void part_ended(const Ended& ended);
  std::size_t look_at_copies();
  void copied(const std::shared_ptr<Part>& part, Result<bool> over);
  [[nodiscard]] static bool is_stopped(const Part& part);
  bool begin_copy_into_gpu(const Ended& ended);
  void send(const std::shared_ptr<Part>& part);
  void send_next(rail::Link& link);
  bool begin_copy_out_of_gpu(const std::shared_ptr<Part>& part, Line& line);
  void give_staged_memory_back(const Part& part);
  void leave_line(const std::shared_ptr<Part>& part);
  bool stop_waiting(const Part& part);
  void end_line(rail::Link& link, const std::string& why);
  [[nodiscard]] bool is_open_at_peers(const Memory& memory) const;
  void look_at_open_memory();
  static void stop(Work& work, const Error& cause);
  void tell_if_quiet(const std::shared_ptr<Memory>& memory);
  void finish_if_over(Work& work);
  void forget_lost_links();
  std::size_t look_at_deadlines();

  const Setup setup_;
  const std::vector<rail::Provider*> providers_;  // of the engine
  NicList nics_;

  std::mutex engine_mutex_;  // registering, and the engine's end
  std::unique_ptr<rail::Engine> engine_;

  std::set<rail::Link*> links_;
  std::unordered_map<NicList, Peer> peers_;
  std::vector<Peer> leaving_;  // forgotten, until their links are lost
  std::map<const Work*, std::shared_ptr<Work>> works_;
  std::unordered_map<const rail::Request*, std::shared_ptr<Part>> parts_;
  std::set<std::pair<std::uint64_t, Work*>> deadlines_;
  std::vector<std::pair<std::shared_ptr<Memory>, std::function<void()>>> waiting_for_memory_;
  std::vector<std::pair<std::shared_ptr<Memory>, std::function<void()>>> open_at_peers_;
  std::map<rail::Link*, Line> lines_;
  std::vector<std::shared_ptr<Part>> copies_;  // whose messages are copied into or out of a GPU's memory

  // Told from inside of the engine, done after it has returned.
  std::vector<Ended> ended_;
  std::map<rail::Link*, std::string> lost_;
};

}  // namespace headrace::fabric
