// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fabric_client.hpp"

#include "cli/bench/fabric_meeting.hpp"
#include "cli/bench/fabric_orders.hpp"
#include "cli/bench/fabric_rounds.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t least_rounds = 5, most_rounds = 10'000;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool reads(FabricKind kind) { return kind == FabricKind::read || kind == FabricKind::read_pages; }

}  // namespace

std::string_view fabric_kind_name(FabricKind kind) {
  constexpr std::string_view names[] = {"write", "read", "write-pages", "read-pages", "scatter", "immediate"};
  return names[static_cast<std::size_t>(kind)];
}

// --- the server

Result<std::unique_ptr<FabricClient>> FabricClient::open(const FabricSideOptions& options,
                                                         const std::string& server) {
  HEADRACE_CLI_TRY(socket, meet_fabric_server(server));
  HEADRACE_CLI_TRY(side, FabricSide::open(options));
  std::unique_ptr<FabricClient> client(new FabricClient(std::move(side), std::move(socket), server));
  HEADRACE_CLI_CHECK(client->greet());
  return client;
}

Result<void> FabricClient::greet() {
  HEADRACE_CLI_TRY(told, greet_fabric_side(socket_.get(), introduction(side_), server_));
  told.at("groups").get_to(far_groups_);
  told.at("spins").get_to(far_spins_);
  if (far_groups_.size() != side_.groups().size())
    return fail(Code::invalid_argument, "the server has {} GPU{} or groups, and this side {}: name as many",
                far_groups_.size(), far_groups_.size() == 1 ? "" : "s", side_.groups().size());
  HEADRACE_CLI_TRY(address, FabricAddress::from_bytes(bytes_of(told.at("address"))));
  HEADRACE_CLI_TRY(peer, side_.fabric().connect(address));
  peer_ = peer;
  return {};
}

Result<Json> FabricClient::ask(const Json& order) {
  auto answer = send_frame(socket_.get(), order) ? receive_frame(socket_.get())
                                                 : Result<Json>(Error{Code::peer_lost, {}});
  if (!answer && answer.code() == Code::peer_lost)
    return fail(Code::peer_lost, "the server at {} has gone", server_);
  if (!answer) return std::move(answer).error().within("the server at " + server_);
  if (const auto error = answer->find("error"); error != answer->end())
    return Error{static_cast<Code>(answer->value("code", 0)), "the server: " + error->get<std::string>()};
  return answer;
}

// --- a case

Result<void> FabricClient::prepare(const FabricCase& wanted) {
  case_ = wanted;
  pattern_ = {wanted.page_bytes, wanted.count, fresh_seed(), 0, 0};
  descriptors_.clear();
  pairs_.clear();
  targets_.clear();
  if (wanted.kind == FabricKind::immediate) return {};
  const std::uint64_t bytes = pattern_.memory_bytes();
  HEADRACE_CLI_CHECK(side_.allocate(bytes));
  HEADRACE_CLI_TRY(answer, ask({{"do", "allocate"}, {"bytes", bytes}}));
  for (std::size_t i = 0; i < side_.groups().size(); ++i) {
    HEADRACE_CLI_TRY(descriptor, FabricDescriptor::from_bytes(bytes_of(answer.at("descriptors").at(i))));
    PagePairs pairs = pattern_.pairs(i);
    if (reads(wanted.kind)) std::swap(pairs.from, pairs.to);
    auto& targets = targets_.emplace_back();
    for (std::size_t page = 0; page < pairs.from.size() && wanted.kind == FabricKind::scatter; ++page)
      targets.push_back({descriptor, pairs.from[page] * wanted.page_bytes, pairs.to[page] * wanted.page_bytes,
                         wanted.page_bytes});
    descriptors_.push_back(std::move(descriptor));
    pairs_.push_back(std::move(pairs));
  }
  return {};
}

/// New bytes on both sides.
Result<void> FabricClient::fill() {
  if (case_.kind == FabricKind::immediate) return {};
  pattern_.source_seed = fresh_seed();
  pattern_.target_seed = fresh_seed();
  const bool from_there = reads(case_.kind);
  HEADRACE_CLI_CHECK(side_.fill(from_there ? pattern_.target_seed : pattern_.source_seed));
  HEADRACE_CLI_CHECK(
      ask({{"do", "fill"}, {"seed", from_there ? pattern_.source_seed : pattern_.target_seed}}));
  return {};
}

Result<void> FabricClient::check() {
  if (case_.kind == FabricKind::immediate) return {};
  std::string wrong;
  if (reads(case_.kind)) {
    HEADRACE_CLI_TRY(found, side_.wrong(pattern_));
    wrong = std::move(found);
  } else {
    HEADRACE_CLI_TRY(answer, ask({{"do", "check"}, {"pattern", pattern_.json()}}));
    answer.at("wrong").get_to(wrong);
  }
  if (wrong.empty()) return {};
  return fail(Code::corrupt, "{} of {} bytes: {}", fabric_kind_name(case_.kind), case_.page_bytes, wrong);
}

Result<FabricWork> FabricClient::post(std::size_t group, const FabricPost& options) {
  Fabric& fabric = side_.fabric();
  if (case_.kind == FabricKind::immediate) return fabric.post_immediate(peer_, *options.immediate, options);
  const FabricMemory& here = side_.memory(group);
  const FabricDescriptor& there = descriptors_[group];
  const PagePairs& pairs = pairs_[group];
  const std::uint64_t page = case_.page_bytes, count = case_.count;
  switch (case_.kind) {
    case FabricKind::write:
      return fabric.write(here, pairs.from[0] * page, there, pairs.to[0] * page, page, options);
    case FabricKind::read:
      return fabric.read(here, pairs.from[0] * page, there, pairs.to[0] * page, page, options);
    case FabricKind::write_pages:
      return fabric.write_pages(here, {.indices = pairs.from}, there, {.indices = pairs.to}, page, count,
                                options);
    case FabricKind::read_pages:
      return fabric.read_pages(here, {.indices = pairs.from}, there, {.indices = pairs.to}, page, count,
                               options);
    default:
      return fabric.scatter(here, targets_[group], options);
  }
}

/// Posts on all groups in turn, then waits for all ends. Immediates alone go from the first group.
Result<void> FabricClient::run_once() {
  const bool alone = case_.kind == FabricKind::immediate;
  const std::uint64_t groups = alone ? 1 : side_.groups().size();
  const std::uint64_t posts = alone ? case_.count : case_.posts * groups;
  FabricPost options;
  options.timeout = fabric_patience;
  options.immediate = counted_;
  std::vector<FabricWork> works;
  works.reserve(posts);
  for (std::uint64_t i = 0; i < posts; ++i) {
    HEADRACE_CLI_TRY(work, post(i % groups, options));
    works.push_back(std::move(work));
  }
  for (const FabricWork& work : works)
    if (const Status status = wait_fabric_work(work, side_.spins()); !status.ok())
      return error_of_fabric_work(work, status);
  return {};
}

Result<std::vector<double>> FabricClient::run_often(std::uint64_t rounds, const Progress& progress) {
  HEADRACE_CLI_CHECK(begin_counting(rounds));
  std::vector<double> seconds;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    HEADRACE_CLI_CHECK(run_once());
    seconds.push_back(since(begin));
    if (progress) progress(round + 1, rounds);
  }
  return seconds;
}

// --- the counter at the server

/// A round is one sample. Reads are not counted: the server's CPU takes no part.
Result<void> FabricClient::begin_counting(std::uint64_t rounds) {
  counted_.reset();
  if (reads(case_.kind)) return {};
  counted_ = Immediate{++last_immediate_, 0};
  std::uint64_t arrivals = case_.posts * side_.groups().size();
  if (case_.kind == FabricKind::scatter) arrivals *= case_.count;
  if (case_.kind == FabricKind::immediate) arrivals = case_.count;
  HEADRACE_CLI_CHECK(
      ask({{"do", "count"}, {"value", counted_->value}, {"arrivals", arrivals}, {"rounds", rounds}}));
  return {};
}

Result<std::optional<double>> FabricClient::end_counting() {
  if (!counted_) return std::optional<double>();
  HEADRACE_CLI_TRY(answer, ask({{"do", "rounds"}}));
  return std::optional<double>(answer.at("seconds").get<double>());
}

// --- what the command asks for

std::uint64_t FabricClient::rounds_for(const Effort& effort, double one_takes) {
  if (effort.iterations) return *effort.iterations;
  return static_cast<std::uint64_t>(std::clamp(effort.seconds / std::max(one_takes, 1e-9),
                                               static_cast<double>(least_rounds),
                                               static_cast<double>(most_rounds)));
}

Result<double> FabricClient::verify(const FabricCase& wanted) {
  HEADRACE_CLI_CHECK(prepare(wanted));
  HEADRACE_CLI_CHECK(fill());
  HEADRACE_CLI_TRY(seconds, run_often(2, {}));
  HEADRACE_CLI_CHECK(end_counting());
  HEADRACE_CLI_CHECK(check());
  return *std::ranges::min_element(seconds);
}

Result<void> FabricClient::verify_barrier() {
  const std::uint32_t value = ++last_immediate_;
  const FabricAddress addresses[] = {peer_.address()};
  HEADRACE_CLI_TRY(peers, side_.fabric().peer_group(0, addresses));
  HEADRACE_CLI_CHECK(ask({{"do", "barrier"}, {"value", value}}));
  FabricPost post;
  post.timeout = fabric_patience;
  HEADRACE_CLI_TRY(work, side_.fabric().barrier(peers, value, post));
  if (const Status status = work.wait(); !status.ok()) return error_of_fabric_work(work, status);
  HEADRACE_CLI_CHECK(ask({{"do", "barrier over"}}));
  return {};
}

Result<FabricFigure> FabricClient::measure(const FabricCase& wanted, const Effort& effort) {
  HEADRACE_CLI_TRY(one_takes, verify(wanted));
  HEADRACE_CLI_CHECK(fill());
  FabricFigure figure;
  const auto before = nic_bytes();
  HEADRACE_CLI_TRY(seconds, run_often(rounds_for(effort, one_takes), effort.progress));
  figure.nic_bytes = nic_bytes();
  for (auto& [nic, bytes] : figure.nic_bytes)
    if (const auto old = before.find(nic); old != before.end()) bytes -= old->second;
  HEADRACE_CLI_TRY(far_seconds, end_counting());
  HEADRACE_CLI_CHECK(check());
  figure.seconds = std::move(seconds);
  figure.far_seconds = far_seconds;
  figure.operations = wanted.kind == FabricKind::immediate
                          ? wanted.count
                          : wanted.count * wanted.posts * side_.groups().size();
  figure.bytes = figure.operations * wanted.page_bytes;
  return figure;
}

Result<FabricFigure> FabricClient::round_trips(const Effort& effort) {
  constexpr std::uint64_t warm_up = 64;
  HEADRACE_CLI_TRY(first, echoes(warm_up));
  std::ranges::sort(first);
  HEADRACE_CLI_TRY(seconds, echoes(rounds_for(effort, first[warm_up / 2])));
  FabricFigure figure;
  figure.seconds = std::move(seconds);
  figure.operations = 1;
  return figure;
}

Result<std::vector<double>> FabricClient::echoes(std::uint64_t rounds) {
  const Immediate there{++last_immediate_, 0}, back{++last_immediate_, 0};
  HEADRACE_CLI_TRY(expected, side_.fabric().expect(back, 1));
  HEADRACE_CLI_CHECK(ask(
      {{"do", "echo"}, {"value", there.value}, {"back", back.value}, {"arrivals", 1}, {"rounds", rounds}}));
  std::vector<double> seconds;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const auto begin = Clock::now();
    HEADRACE_CLI_TRY(work, side_.fabric().post_immediate(peer_, there));
    HEADRACE_CLI_CHECK(wait_echo(expected, round));
    seconds.push_back(since(begin));
  }
  static_cast<void>(expected.remove());
  HEADRACE_CLI_CHECK(ask({{"do", "rounds"}}));
  return seconds;
}

/// Looks each second whether the server is still there.
Result<void> FabricClient::wait_echo(const FabricExpectation& expected, std::uint64_t round) {
  constexpr auto slice = std::chrono::seconds(1);
  const std::atomic<bool> over = false;
  for (auto left = fabric_patience; left > left.zero(); left -= slice) {
    const Status status = wait_fabric_round(expected, round, side_.spins(), over, slice);
    if (status.ok()) return {};
    if (status.code != Code::timed_out) return fail(status.code, "immediate {} has not come back", round);
    pollfd server{socket_.get(), POLLIN, 0};  // it says nothing now: readable means gone
    if (::poll(&server, 1, 0) > 0) return fail(Code::peer_lost, "the server at {} has gone", server_);
  }
  return fail(Code::timed_out, "immediate {} has not come back within {} s", round, fabric_patience.count());
}

Result<FabricClient::Idle> FabricClient::idle(double seconds) {
  HEADRACE_CLI_CHECK(echoes(1));  // there is a link
  const auto there = [this]() -> Result<double> {
    HEADRACE_CLI_TRY(answer, ask({{"do", "cpu"}}));
    return answer.at("seconds").get<double>();
  };
  HEADRACE_CLI_TRY(there_before, there());
  const double here_before = cpu_seconds();
  pollfd server{socket_.get(), POLLIN, 0};  // readable: it has gone, as the next order says
  ::poll(&server, 1, static_cast<int>(seconds * 1e3));
  const double here_after = cpu_seconds();
  HEADRACE_CLI_TRY(there_after, there());
  return Idle{(here_after - here_before) / seconds, (there_after - there_before) / seconds};
}

/// "fabric.NAME.written_bytes" and "fabric.NAME.read_bytes".
std::map<std::string, std::uint64_t> FabricClient::nic_bytes() {
  constexpr std::string_view prefix = "fabric.";
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& [name, value] : side_.fabric().telemetry().counters) {
    for (const std::string_view ending : {".written_bytes", ".read_bytes"})
      if (name.starts_with(prefix) && name.ends_with(ending))
        bytes[name.substr(prefix.size(), name.size() - prefix.size() - ending.size())] += value;
  }
  return bytes;
}

}  // namespace headrace::cli
