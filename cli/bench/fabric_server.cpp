// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fabric_server.hpp"

#include "cli/bench/fabric_meeting.hpp"
#include "cli/bench/fabric_orders.hpp"
#include "cli/bench/fabric_rounds.hpp"

#include <csignal>
#include <cstdio>
#include <optional>

namespace headrace::cli {
namespace {

/// What one client asks for, until it goes.
class FabricVisit {
 public:
  FabricVisit(FabricSide& side, int socket) : side_(side), socket_(socket) {}
  ~FabricVisit() {
    rounds_.reset();
    side_.release();
    if (peer_) static_cast<void>(side_.fabric().forget(peer_));
  }
  FabricVisit(const FabricVisit&) = delete;
  FabricVisit& operator=(const FabricVisit&) = delete;

  Result<void> serve(const std::string& from) {
    HEADRACE_CLI_TRY(client, greet_fabric_side(socket_, introduction(side_), "the client of " + from));
    HEADRACE_CLI_TRY(address, FabricAddress::from_bytes(bytes_of(client.at("address"))));
    HEADRACE_CLI_TRY(peer, side_.fabric().connect(address));
    peer_ = peer;
    for (;;) {
      auto order = receive_frame(socket_);
      if (!order && order.code() == Code::timed_out) continue;  // it measures
      if (!order && order.code() == Code::peer_lost) return {};
      if (!order) return std::move(order).error();
      HEADRACE_CLI_CHECK(send_frame(socket_, answer(*order)));
    }
  }

 private:
  Json answer(const Json& order) {
    Result<Json> done = execute(order);
    if (done) return std::move(done).value();
    return {{"error", done.error().message}, {"code", static_cast<int>(done.error().code)}};
  }

  Result<Json> execute(const Json& order) {
    const auto what = order.at("do").get<std::string>();
    if (what == "allocate") return allocate(order.at("bytes"));
    if (what == "fill") return nothing(side_.fill(order.at("seed")));
    if (what == "check") return check(order);
    if (what == "count") return count(order);
    if (what == "echo") return echo(order);
    if (what == "rounds") return rounds();
    if (what == "barrier") return barrier(order.at("value"));
    if (what == "barrier over") return barrier_over();
    if (what == "cpu") return Json{{"seconds", cpu_seconds()}};
    return fail(Code::not_supported, "asked to {}, which it cannot", what);
  }

  static Result<Json> nothing(const Result<void>& done) {
    if (!done) return done.error();
    return Json::object();
  }

  Result<Json> allocate(std::uint64_t bytes) {
    HEADRACE_CLI_CHECK(side_.allocate(bytes));
    Json descriptors = Json::array();
    for (std::size_t i = 0; i < side_.groups().size(); ++i)
      descriptors.push_back(binary(side_.memory(i).descriptor().bytes()));
    return Json{{"descriptors", std::move(descriptors)}};
  }

  Result<Json> check(const Json& order) {
    HEADRACE_CLI_TRY(wrong, side_.wrong(FabricPattern::from_json(order.at("pattern"))));
    return Json{{"wrong", wrong}};
  }

  Result<Json> count(const Json& order) {
    return follow(order, [] { return Result<void>(); });
  }

  Result<Json> echo(const Json& order) {
    const Immediate back{order.at("back"), 0};
    return follow(order, [this, back]() -> Result<void> {
      HEADRACE_CLI_CHECK(side_.fabric().post_immediate(peer_, back));
      return {};
    });
  }

  Result<Json> follow(const Json& order, std::function<Result<void>()> each) {
    rounds_.reset();
    HEADRACE_CLI_TRY(
        started,
        FabricRounds::start(side_.fabric(),
                            {{order.at("value"), 0}, order.at("arrivals"), order.at("rounds"), side_.spins()},
                            std::move(each)));
    rounds_ = std::move(started);
    return Json::object();
  }

  Result<Json> rounds() {
    if (rounds_ == nullptr) return fail(Code::invalid_argument, "nothing is counted");
    auto seconds = rounds_->wait();
    rounds_.reset();
    if (!seconds) return std::move(seconds).error();
    return Json{{"seconds", *seconds}};
  }

  Result<Json> barrier(std::uint32_t value) {
    const FabricAddress addresses[] = {peer_.address()};
    HEADRACE_CLI_TRY(peers, side_.fabric().peer_group(0, addresses));
    FabricPost post;
    post.timeout = fabric_patience;
    HEADRACE_CLI_TRY(work, side_.fabric().barrier(peers, value, post));
    barrier_ = std::move(work);
    return Json::object();
  }

  Result<Json> barrier_over() {
    if (!barrier_) return fail(Code::invalid_argument, "there is no barrier");
    if (const Status status = barrier_.wait(); !status.ok()) return error_of_fabric_work(barrier_, status);
    return Json::object();
  }

  FabricSide& side_;
  const int socket_;
  FabricPeer peer_;
  FabricWork barrier_;
  std::unique_ptr<FabricRounds> rounds_;
};

/// "192.0.2.1:0" of "tcp:192.0.2.1:4711/0123456789abcdef".
std::string port_beside(const std::vector<FabricGroup>& groups) {
  for (const FabricGroup& group : groups) {
    for (const FabricNic& nic : group.nics) {
      if (nic.provider != "tcp") continue;
      const std::size_t begin = nic.address.find(':') + 1;
      return nic.address.substr(begin, nic.address.rfind(':') + 1 - begin) + "0";
    }
  }
  return "127.0.0.1:0";
}

void announce(const FabricServerOptions& options, const FabricSide& side, const std::string& address) {
  if (options.json) {
    Json groups = Json::array();
    for (const FabricGroup& group : side.groups()) groups.push_back(group_text(group));
    fmt::print("{}\n", Json{{"address", address}, {"groups", std::move(groups)}}.dump());
  } else {
    fmt::print("serving at {}; on the other side type headrace bench fabric GPUS NICS {}\n", address,
               address);
    for (const FabricGroup& group : side.groups()) fmt::print("  {}\n", group_text(group));
    fmt::print("stop with Ctrl-C\n");
  }
  std::fflush(stdout);
}

void tell(const FabricServerOptions& options, const std::string& client, const std::string& what) {
  if (options.json) return;
  fmt::print("client {}: {}\n", client, what);
  std::fflush(stdout);
}

Result<void> visit(FabricSide& side, const FabricMeeting::Client& client) {
  try {
    return FabricVisit(side, client.socket.get()).serve(client.from);
  } catch (const Json::exception& error) {
    return fail(Code::corrupt, "an order of the client cannot be read: {}", error.what());
  }
}

}  // namespace

Result<void> serve_fabric_bench(const FabricServerOptions& options) {
  // Nothing of it outlives the process, and clients notice that it goes.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int) { ::_exit(0); });
  HEADRACE_CLI_TRY(side, FabricSide::open(options.side));
  HEADRACE_CLI_TRY(
      meeting, FabricMeeting::listen(options.listen.empty() ? port_beside(side.groups()) : options.listen));
  announce(options, side, meeting.address());
  for (;;) {
    HEADRACE_CLI_TRY(client, meeting.accept());
    tell(options, client.from, "has come");
    const auto done = visit(side, client);
    tell(options, client.from, done ? "has gone" : done.error().message);
  }
}

}  // namespace headrace::cli
