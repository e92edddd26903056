// SPDX-License-Identifier: Apache-2.0
// Moves pages between two processes again and again, with the clock running from post to the end of wait and
// at no other time, and looks at every byte after each transfer.
#pragma once

#include "cli/bench_side.hpp"
#include "cli/page_pattern.hpp"
#include "cli/peer_process.hpp"

#include <functional>

namespace headrace::cli {

struct PageCase {
  Op op = Op::read;
  std::uint64_t page_bytes = 0;
  std::uint64_t count = 0;    ///< pages that one iteration moves
  bool scattered = true;      ///< pages at random places of both buffers, else in order
  unsigned threads = 1;       ///< that share the pages of an iteration
  unsigned in_flight = 1;     ///< requests that each thread posts before it waits for them
  unsigned posts = 1;         ///< of each request in what is timed, one after the other
  bool new_requests = false;  ///< made anew for each iteration; else made once and posted again
  unsigned warm_up = 3;
  unsigned iterations = 15;
};

struct PageSamples {
  std::vector<double> seconds;        ///< from the first post to the end of the last wait, one an iteration
  std::vector<double> first_seconds;  ///< of single pages: the same for pages that nobody has touched since
                                      ///< the whole buffer was filled
  std::vector<double> make_seconds;   ///< making an iteration's requests, several times, once connected
  std::string path;                   ///< the backend that carried it
  std::string explanation;            ///< of the path, by the last request
  std::uint64_t transfers = 0;        ///< that were carried out with data of their own
  std::uint64_t right = 0;            ///< of these: every byte was compared afterwards, and is right

  [[nodiscard]] bool checked() const { return transfers > 0 && right == transfers; }
};

struct NotificationSamples {
  std::vector<double> seconds;  ///< there and back
  std::uint64_t right = 0;      ///< of these: the answer was compared with the message, and is the same

  [[nodiscard]] bool checked() const { return !seconds.empty() && right == seconds.size(); }
};

class PageBench {
 public:
  /// Called between transfers.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t of)>;

  /// Starts the peer process and connects the two.
  /// A GPU that `there` does not name (-1) is another one than ours, if there are two.
  static Result<PageBench> open(const BenchSetup& here, BenchSetup there);

  ///   errors  invalid_argument (more pages than the buffer has), corrupt (a page is not what it should be:
  ///   which), and
  ///           what a transfer answers
  Result<PageSamples> pages(const PageCase& plan, const Progress& progress);
  /// One page a request, one request at a time, a place of its own for each of a set, the set several times
  /// in turn.
  Result<PageSamples> single(const PageCase& plan, const Progress& progress);
  /// A message to the peer that it sends back. Spinning: both sides ask again and again; else both block in
  /// wait.
  Result<NotificationSamples> notifications(unsigned rounds, bool spinning);
  /// Where this thread and the peer's first one run, which are the two that wait. Whether the scheduler puts
  /// two processes that take turns on one core or on two makes a factor of seven, so it is not left to it.
  enum class Cores { one, two };
  ///   errors  not_supported (two cores of one)
  Result<void> place(Cores cores);
  /// The same with nothing but two eventfds.
  Result<NotificationSamples> eventfds(unsigned rounds);

 private:
  PageBench(PeerProcess peer, BenchSide side, std::string peer_name, const Region& remote)
      : peer_(std::move(peer)),
        side_(std::move(side)),
        peer_name_(std::move(peer_name)),
        remote_(remote.id),
        remote_kind_(remote.kind) {}

  struct Seeds {
    std::uint64_t source = 0, target = 0, pages = 0;
  };
  Result<void> refill(const PageCase& plan, const Seeds& seeds);
  /// Compares all bytes of the target and counts the transfer as right.
  ///   errors  corrupt (which page, and where)
  Result<void> check(const PageCase& plan, const Seeds& seeds, std::uint64_t slots, PageSamples& samples);
  [[nodiscard]] bool by_gpu() const;

  PeerProcess peer_;
  BenchSide side_;
  std::string peer_name_;
  RegionId remote_;
  MemoryKind remote_kind_;
};

}  // namespace headrace::cli
