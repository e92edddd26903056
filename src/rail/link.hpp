// SPDX-License-Identifier: Apache-2.0
// One peer over several NICs: requests are cut into chunks that the rails carry, immediates are counted, and
// what a dead rail has not done the others do. docs/decisions/0016 has the protocol and its reasons.
#pragma once

#include "base/errors.hpp"
#include "rail/arrivals.hpp"
#include "rail/deliveries.hpp"
#include "rail/link_message.hpp"
#include "rail/nic.hpp"
#include "rail/nic_pairs.hpp"
#include "rail/open_numbers.hpp"
#include "rail/rail_state.hpp"
#include "rail/receives.hpp"
#include "rail/region.hpp"
#include "rail/request.hpp"
#include "rail/sends.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail {

struct LinkOptions {
  std::uint64_t chunk_bytes = 1 << 20;
  std::uint64_t rail_bytes = 8 << 20;  ///< on their way over one rail at most
  std::chrono::nanoseconds rail_timeout = std::chrono::seconds(2);
  std::chrono::nanoseconds cancel_timeout = std::chrono::milliseconds(600);
  std::chrono::nanoseconds retry_after = std::chrono::seconds(1);  ///< a dead rail is connected again
  /// Over a rail that carries nothing, each side says so often that it lives.
  std::chrono::nanoseconds heartbeat = std::chrono::seconds(2);
  std::chrono::nanoseconds silent_after =
      std::chrono::seconds(5);  ///< a rail is dead over which nothing came
  /// Of this side. A peer may ask for answers and take none: one for which more wait loses the link.
  std::size_t most_waiting_messages = 65536;
};

class Link;

/// What a link tells. It calls from inside its own calls: post from here, destroy nothing.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  /// `request.why()` says why one has failed.
  virtual void ended(Link& link, Request& request, Status status) = 0;
  virtual void counted(Link& link, const CountedAt& counted) = 0;
  /// A message of ours has ended: its memory is the caller's again. `why`: of one that failed.
  virtual void sent(Link& /*link*/, std::uint64_t /*token*/, Status /*status*/, const std::string& /*why*/) {}
  /// A receive has ended: ok, and `bytes` of it are a message. Messages of one link come in the order in
  /// which they were sent. `link` is null if it was canceled before a message came.
  virtual void received(Link* /*link*/, std::uint64_t /*token*/, std::uint64_t /*bytes*/, Status /*status*/) {
  }
  /// No rail is left and all requests, messages and receives of this link have ended.
  virtual void lost(Link& link, const std::string& why) = 0;
};

/// Not thread-safe: the worker of its engine calls it.
class Link {
 public:
  struct Setup {
    std::uint64_t engine = 0;  ///< of the side that connects
    std::uint64_t id = 0;
    std::uint32_t rails = 0;
    std::uint32_t peer_nics = 0;
    std::vector<std::string> addresses;  ///< of the peer's NICs; empty: the peer connects
    std::vector<NicPair> pairs;          ///< by rail; empty: the peer tells them
  };
  /// `nics`, `receives` and `events` outlive the link.
  Link(Setup setup, Nics& nics, Receives& receives, LinkEvents& events, const LinkOptions& options);

  // For users of the engine.
  /// Begins a post. Its end comes by `ended`, perhaps before this returns.
  ///   errors  invalid_argument (it is posted; a read that is to be counted; a count above 32 bits),
  ///   peer_lost
  Status post(Request& request, const PostPlan& plan);
  /// No more chunks of it are cut. It ends when those on their way have ended; rails that keep one for longer
  /// than `cancel_timeout` are dropped. A deadline is the caller's: it cancels at it.
  void cancel(Request& request, std::uint64_t now_ns);
  /// A message of any length, for the next receive of the peer. It waits until there is one. Its end comes by
  /// `sent`. Messages of a link are received in the order in which they were sent.
  ///   errors  invalid_argument (outside of its region), would_block (too many wait here), peer_lost
  Status send(const OutMessage& message);
  /// `sent` follows, with canceled, or with ok if it was nearly done. A peer that does not answer within
  /// `cancel_timeout` loses the link. Unknown tokens are ignored.
  void cancel_send(std::uint64_t token, std::uint64_t now_ns) { sends_.cancel(token, now_ns); }
  /// Drops all rails. All that is posted ends with peer_lost when its memory is quiet, then `lost` comes.
  void close(const std::string& why, std::uint64_t now_ns);
  /// Whether something of this side is on its way or waits to be.
  [[nodiscard]] bool sends() const;
  [[nodiscard]] bool lost() const { return lost_; }
  /// For sentences: where the peer was found, or the number of an engine that has connected.
  [[nodiscard]] std::string peer_name() const;
  /// corrupt: the peer has lied; else peer_lost.
  [[nodiscard]] Code lost_code() const { return lost_code_; }
  [[nodiscard]] std::size_t live_rails() const;
  /// The same number on both sides: of the NICs of the side that has more.
  [[nodiscard]] std::uint32_t rails() const { return setup_.rails; }
  [[nodiscard]] std::uint64_t id() const { return setup_.id; }
  /// Frees what a peer's memory takes in the providers; no request uses it.
  void unload(RemoteRegion& region);
  /// This side connects its rails. Both ends of a link to the own engine have one id.
  [[nodiscard]] bool connects() const { return !setup_.addresses.empty(); }
  /// Numbers, slots, pieces and messages that it holds: to see that nothing stays behind.
  [[nodiscard]] std::size_t held() const;

  // For the engine.
  void connect(std::uint64_t now_ns);
  /// The peer has connected a rail. False: it is not taken, and the engine drops the peer.
  bool joined(const RailHello& hello, std::uint32_t nic, PeerId peer, std::uint64_t now_ns);
  /// The rail of a provider's peer; null: none.
  [[nodiscard]] Rail* rail_of(std::uint32_t nic, PeerId peer);
  void take(Rail& rail, const Event& event, std::uint64_t now_ns);
  void message(Rail& rail, std::string_view bytes, std::uint64_t now_ns);
  void nic_is_down(std::uint32_t nic, const std::string& why, std::uint64_t now_ns);
  /// Gives the peer's next message a receive. False: it has none, or there is none.
  bool match_message() { return !lost_ && deliveries_.match_one(); }
  bool cancel_receive(std::uint64_t token, std::uint64_t now_ns) { return deliveries_.cancel(token, now_ns); }
  /// Posts what there is to post, and looks at the time.
  void pump(std::uint64_t now_ns);
  /// Sends a heartbeat over each rail, at most four in an interval. A host without this peer resets the
  /// connection.
  void ask(std::uint64_t now_ns);
  /// `pump` was not called for that long: the peer is not to blame for it.
  void was_away(std::uint64_t now_ns, std::uint64_t for_ns);
  /// When `pump` has something to do although no NIC has.
  [[nodiscard]] std::uint64_t next_ns(std::uint64_t now_ns) const;

 private:
  // Requests (link.cpp).
  [[nodiscard]] std::uint64_t counts_of(const Request& request, const PostPlan& plan) const;
  void give_numbers();
  void begin_cutting(Request& request);
  bool cut(Request& request, Rail& rail, std::uint64_t now_ns);
  void after_cut(Request& request, const transport::Chunk& chunk);
  void cut_all(Request& request);
  void piece_ended(const Piece& piece, Status status, const Rail& rail);
  void piece_unreachable(const Piece& piece);
  void stop_cutting(Request& request, Status status, const std::string& why);
  void fail(Request& request, Status status, const std::string& why) const;
  void finish_if_done(Request& request);
  void use_up_number(Request& request);
  void tell_end(Request& request, Status status);
  void tell_sent();

  // What is posted (link_posts.cpp).
  void send_pieces(std::uint64_t now_ns);
  void send_messages(std::uint64_t now_ns);
  void repeat(std::uint64_t now_ns);
  Status post_piece(Rail& rail, const Piece& piece, std::optional<std::uint32_t> mark, std::uint64_t now_ns);
  Result<void> fill_moves(Rail& rail, const Piece& piece);
  bool post_message(Rail& rail, const std::string& bytes, std::uint64_t now_ns);
  Rail* pick(const Request& request);
  Rail* freest(const Request& request);
  Rail* next_in_turn(const Request& request);
  [[nodiscard]] bool carries(const Rail& rail, const Request& request) const;
  [[nodiscard]] bool reaches(const Rail& rail, const Request& request) const;
  [[nodiscard]] bool may_reach(const Request& request, std::uint64_t now_ns) const;
  void end_unreachable(std::uint64_t now_ns);
  [[nodiscard]] bool has_room(const Rail& rail) const;
  void say(const LinkMessage& message) { outgoing_.push_back(encode(message)); }
  void ended(Rail& rail, const Event& event, std::uint64_t now_ns);

  // Rails (link_rails.cpp).
  void add_peer(Rail& rail, std::uint64_t now_ns);
  void dies(Rail& rail, const std::string& why, std::uint64_t now_ns);
  void dropped(Rail& rail, std::uint64_t now_ns);
  void tell_down(const Rail& rail);
  void settle();
  void heard_down(const RailDown& down, std::uint64_t now_ns);
  void fence(Rail& rail, std::uint64_t now_ns);
  void comes_to_life(Rail& rail, std::uint64_t now_ns);
  void look_at_time(std::uint64_t now_ns);
  void look_at_heartbeat(Rail& rail, std::uint64_t now_ns);
  void look_at_cancels(std::uint64_t now_ns);
  void try_again(std::uint64_t now_ns);
  void look_for_rails(std::uint64_t now_ns);
  void lose(const std::string& why);
  [[nodiscard]] bool ends() const { return !ends_why_.empty(); }  // for a reason of its own
  void end_with(Error why, std::uint64_t now_ns);
  [[nodiscard]] std::string reasons() const;
  void check(const Result<void>& result, std::uint64_t now_ns);
  void count_arrivals();

  Setup setup_;
  Nics& nics_;
  LinkEvents& events_;
  const LinkOptions options_;
  std::vector<Rail> rails_;
  std::uint64_t born_ns_ = 0;
  bool near_ = false;         // a rail of this host lives: it carries all
  std::size_t partials_ = 0;  // of the posted requests, whose memory some NIC does not reach
  bool lost_ = false;
  Code lost_code_ = Code::peer_lost;
  std::string ends_why_;
  std::string lie_;  // of the peer, found out where the time is not known

  std::map<std::uint64_t, Request*> posted_;  // by the number of their post, so in order
  std::uint64_t next_post_ = 1;
  std::deque<Request*> without_number_;  // wait for one
  std::deque<Request*> uncut_;           // have bytes left to be cut, the next one first
  std::deque<Piece> repeats_;
  struct Canceling {
    Request* request;
    std::uint64_t since_ns;
  };
  std::vector<Canceling> canceling_;
  std::deque<std::string> outgoing_;  // messages
  std::uint64_t next_token_ = 1;
  std::uint32_t turn_ = 0;
  std::vector<Move> moves_;  // of the piece that is posted

  OpenNumbers numbers_;
  std::uint64_t settle_below_ = 0;  // these numbers are announced without marks
  Arrivals arrivals_;
  std::uint64_t told_below_;  // of the arrivals, what the peer knows
  Sends sends_;
  Deliveries deliveries_;
};

}  // namespace headrace::rail
