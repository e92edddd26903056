// SPDX-License-Identifier: Apache-2.0
// A link of cuda_ipc: what every link of a host does (host_link/link.hpp), and memory offered and imported.
//
// Memory is asked for when a GPU of ours first needs it, and answered by the owner's progress thread. What
// takes the driver's time, offering and importing, is done by the progress thread with no lock held
// (`attended`).
#pragma once

#include "backends/cuda_ipc/control_messages.hpp"
#include "backends/cuda_ipc/imports.hpp"
#include "backends/cuda_ipc/instance.hpp"
#include "backends/cuda_ipc/owner_copies.hpp"
#include "backends/cuda_ipc/peer_region.hpp"
#include "host_link/link.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

namespace headrace::cuda_ipc {

class Request;

class Link final : public host_link::Link {
 public:
  Link(Instance& instance, host_link::Side side, UnixSocket socket, host_link::PeerProcess process)
      : host_link::Link(instance, side, std::move(socket), std::move(process)), instance_(instance) {}

  /// A link of the site is one of this backend's.
  [[nodiscard]] static Link& of(host_link::Link& link) { return static_cast<Link&>(link); }
  [[nodiscard]] std::shared_ptr<Link> shared() { return std::static_pointer_cast<Link>(shared_from_this()); }

  // Any thread.

  /// The peer's region, known or new.
  [[nodiscard]] std::shared_ptr<PeerRegion> region(std::uint32_t id);
  /// Where GPU `device` of ours reaches a region; asks the owner if nobody has. Does not wait.
  [[nodiscard]] PeerRegion::Found reach(PeerRegion& region, int device);
  /// How many answers have come in.
  [[nodiscard]] std::uint64_t answers() const { return answers_.load(); }
  /// Keeps a post, which the link knows as active, until more memory has come in than when it looked. Takes a
  /// reference.
  void add_starved(Request* request, std::uint64_t answers_seen);
  /// Tells the peer that a region of ours is gone.
  void tell_gone(std::uint32_t region_id);
  /// Ends what we do for the peer with a region of ours, or has it end soon.
  void give_up(std::uint32_t region_id) { copies_.give_up(region_id); }

  // Requests that the peer carries out, and those of the peer's that we do.

  /// Sends one; returns the number that it has on this link.
  [[nodiscard]] std::uint32_t tell_move(UniqueFd file, std::uint32_t end_word);
  /// For a request's ends; one without a number where the peer has given none, or too few.
  [[nodiscard]] EndWordsView::Word take_end_word();
  void tell_go(std::uint32_t number);
  /// Later, for whoever drops it may be inside the link.
  void tell_drop(std::uint32_t number);
  /// Looks again what the file of that request of the peer's asks for, later.
  void look_again(std::uint32_t number) { note(Go{number}); }

 private:
  struct ComingMove {
    Move move;
    UniqueFd file;
  };
  struct LeftToOwner {
    ByOwner answer;
    UniqueFd end_words;
  };
  struct LeavingMove {
    std::uint32_t number = 0;
  };
  using Event = std::variant<Want, WholeOffer, Refused, Gone, LeftToOwner, ComingMove, Go, Drop, LeavingMove>;

  // With the control mutex held.
  [[nodiscard]] void* handle() override { return this; }
  [[nodiscard]] std::string greeting() override { return {}; }
  void greeted(std::string_view /*greeting*/) override {}
  void say_first() override;
  [[nodiscard]] Result<void> on_other(const host_link::Other& message,
                                      std::vector<UniqueFd> descriptors) override;
  [[nodiscard]] Result<void> on_pieces(const Pieces& pieces, std::vector<UniqueFd> descriptors);
  void closed() override;
  void note(Event event);

  // The progress thread, no lock held.
  std::uint32_t attended() override;
  void await_posts() override;
  void handle(const Want& want);
  void handle(WholeOffer& offered);
  void handle(const Refused& refused);
  void handle(const Gone& gone);
  void handle(const LeftToOwner& left);
  void handle(const ComingMove& coming);
  void handle(const Go& go) { copies_.go(go.number); }
  void handle(const Drop& drop) { copies_.drop(drop.number); }
  void handle(const LeavingMove& leaving);
  [[nodiscard]] Result<WholeOffer> offer(const Want& want);
  [[nodiscard]] static Result<WholeOffer> offer_host_memory(const Want& want, const Region& region);
  [[nodiscard]] Result<WholeOffer> offer_gpu_memory(const Want& want, const Region& region);
  [[nodiscard]] bool leaves_to_us(const Want& want) const;
  [[nodiscard]] Result<void> send_by_owner(const Want& want);
  void send_offer(WholeOffer offered);
  void send_refusal(const Want& want, Error error);
  [[nodiscard]] std::vector<Event> take_events();
  void feed_starved();
  [[nodiscard]] std::vector<Request*> take_starved();
  [[nodiscard]] std::shared_ptr<PeerRegion> known_region(std::uint32_t id);

  Instance& instance_;
  Imports imports_;
  OwnerCopies copies_{instance_, *this};
  std::atomic<std::uint32_t> next_move_{0};
  std::mutex words_mutex_;
  std::shared_ptr<EndWordsView> end_words_;  // of the peer's

  std::mutex regions_mutex_;
  std::unordered_map<std::uint32_t, std::weak_ptr<PeerRegion>> regions_;

  // With the control mutex held.
  std::optional<WholeOffer> incoming_;  // until all its pieces are here
  std::vector<Want> unsent_;            // before we are introduced
  // Our regions that the peer asked for, and for which of its GPUs: of others it keeps nothing.
  std::unordered_map<std::uint32_t, std::unordered_set<std::uint32_t>> wanted_;

  std::mutex events_mutex_;
  std::vector<Event> events_;

  std::atomic<std::uint64_t> answers_{0};
  std::atomic<bool> hungry_{false};  // a post came too late to be fed with the others
  std::mutex starved_mutex_;
  std::vector<Request*> starved_;
};

}  // namespace headrace::cuda_ipc
