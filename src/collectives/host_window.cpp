// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_window.hpp"

#include "base/random.hpp"

#include <cstring>

namespace headrace::collectives {
namespace {

std::string signals_name(std::uint64_t mailbox) { return fmt::format("window/{:016x}", mailbox); }

/// The first outcome that is an error, as this rank sees it.
Result<void> first_failure(const std::vector<std::string>& texts, int my_rank) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    HEADRACE_TRY(outcome, Outcome::decode(texts[rank]));
    if (outcome.result) continue;
    if (static_cast<int>(rank) == my_rank) return std::move(outcome.result).error();
    return std::move(outcome.result).error().within(fmt::format("rank {}", rank));
  }
  return {};
}

/// Without an entry for it: another host, or a container that forbids it.
Result<std::optional<Mapping>> map_if_possible(Agent& agent, const std::string& peer, std::uint32_t region,
                                               const TimeLimit& limit) {
  auto mapping = agent.map(peer, RegionId{region}, limit.left());
  if (mapping) return std::optional(std::move(*mapping));
  if (mapping.code() == Code::not_supported) return std::optional<Mapping>();
  return std::move(mapping).error();
}

}  // namespace

HostWindow::HostWindow(WindowComm comm, WindowMemory memory, std::uint64_t number)
    : comm_(std::move(comm)),
      station_(comm_.members->station()),
      number_(number),
      mailbox_(random_u64()),
      memory_(std::move(memory)),
      peers_(static_cast<std::size_t>(comm_.members->size())) {}

// ------------------------------------------------------------------ beginning and end

/// What is wrong with a registration is found by all ranks alike and ends nothing else.
Result<std::unique_ptr<HostWindow>> HostWindow::open(const WindowComm& comm, WindowMemory memory,
                                                     std::uint64_t number, const TimeLimit& limit) {
  std::unique_ptr<HostWindow> window(new HostWindow(comm, std::move(memory), number));
  Result<void> outcome;
  HEADRACE_TRY_VOID(comm.collective(CommOperation::tensor_register, [&](const WindowComm::Gather& gather) {
    return window->meet(gather, limit, outcome);
  }));
  if (!outcome) return comm.refused(CommOperation::tensor_register, std::move(outcome).error());
  return window;
}

/// A rank that fails says so: the others do not wait for it.
Result<void> HostWindow::meet(const WindowComm::Gather& gather, const TimeLimit& limit,
                              Result<void>& outcome) {
  const auto mine = make_regions();
  HEADRACE_TRY(texts, gather(mine ? Outcome::encode({}) + mine->encode() : Outcome::encode(mine.error())));
  auto cards = read_cards(texts);
  if (!cards) {
    outcome = std::move(cards).error();
    return {};
  }
  const Result<void> connected = connect(*cards, limit);
  // From here on questions may come: of ranks that are ready first.
  station_->listen(mailbox_, [this](std::string_view mail) { take_mail(mail); });
  HEADRACE_TRY(outcomes, gather(Outcome::encode(connected)));
  outcome = first_failure(outcomes, my_rank());
  return {};
}

Result<WindowCard> HostWindow::make_regions() {
  Agent& agent = station_->agent();
  AllocateOptions options;
  options.registration.name = signals_name(mailbox_);
  HEADRACE_TRY(signals, agent.allocate(static_cast<std::size_t>(size()) * sizeof(SignalWord), options));
  signals_region_ = std::move(signals);
  HEADRACE_TRY(words, agent.storage(signals_region_.id));
  signals_storage_ = std::move(words);
  Elements& elements = memory_.elements;
  if (elements.bytes() == 0) return card();
  if (memory_.allocate) {
    HEADRACE_TRY(region, agent.allocate(elements.bytes()));
    elements_region_ = std::move(region);
    HEADRACE_TRY(storage, agent.storage(elements_region_.id));
    elements.data = storage.get();
    memory_.owner = std::move(storage);
    return card();
  }
  RegisterOptions kept;
  kept.keep_alive = memory_.owner;
  HEADRACE_TRY(region, agent.register_memory({elements.data, elements.bytes()}, kept));
  elements_region_ = std::move(region);
  return card();
}

Result<WindowCard> HostWindow::card() const {
  ExportOptions options;
  options.connection_info = false;
  options.regions.push_back(signals_region_.id);
  if (elements_region_.length_bytes != 0) options.regions.push_back(elements_region_.id);
  HEADRACE_TRY(metadata, station_->agent().export_metadata(options));
  return WindowCard{number_,
                    mailbox_,
                    elements_region_.id.value,
                    signals_region_.id.value,
                    memory_.elements.count,
                    reinterpret_cast<std::uint64_t>(memory_.elements.data),
                    memory_.elements.dtype,
                    memory_.allocate,
                    {station_->agent().name(), std::move(metadata)}};
}

Result<std::vector<WindowCard>> HostWindow::read_cards(const std::vector<std::string>& texts) const {
  HEADRACE_TRY_VOID(first_failure(texts, my_rank()));
  std::vector<WindowCard> cards;
  for (const std::string& text : texts) {
    HEADRACE_TRY(outcome, Outcome::decode(text));
    HEADRACE_TRY(card, WindowCard::decode(outcome.rest));
    cards.push_back(std::move(card));
  }
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].window != cards[0].window)
      return make_error(
          Code::invalid_argument,
          "rank {} registers memory of its window number {}, rank 0 of number {}: all ranks make "
          "their windows in the same order",
          rank, cards[rank].window, cards[0].window);
    if (cards[rank].dtype != cards[0].dtype)
      return make_error(Code::invalid_argument,
                        "rank {} registers {}, rank 0 {}: a window has the same type on all ranks", rank,
                        dtype_name(cards[rank].dtype), dtype_name(cards[0].dtype));
  }
  return cards;
}

Result<void> HostWindow::connect(const std::vector<WindowCard>& cards, const TimeLimit& limit) {
  for (int rank = 0; rank < size(); ++rank) {
    auto connected = connect_to(rank, cards[static_cast<std::size_t>(rank)], limit);
    if (!connected) return std::move(connected).error().within(fmt::format("connect to rank {}", rank));
  }
  return {};
}

Result<void> HostWindow::connect_to(int rank, const WindowCard& card, const TimeLimit& limit) {
  Peer& peer = at(rank);
  peer.count = card.count;
  peer.address = card.address;
  if (rank == my_rank()) {
    static std::byte nothing{};
    const bool empty = memory_.elements.count == 0;
    peer.memory = empty ? &nothing : static_cast<std::byte*>(memory_.elements.data);
    peer.words = reinterpret_cast<SignalWord*>(signals_storage_.get());
    return {};
  }
  HEADRACE_TRY_VOID(map_peer(peer, card, limit));
  // Of a mapped rank, too: that rank may not have mapped this one.
  const FarWindowAddress address{card.seat.agent, card.mailbox, RegionId{card.elements},
                                 signals_name(card.mailbox), my_rank()};
  peer.far = std::make_unique<FarWindow>(station_, address);
  return {};
}

Result<void> HostWindow::map_peer(Peer& peer, const WindowCard& card, const TimeLimit& limit) {
  Agent& agent = station_->agent();
  HEADRACE_TRY_VOID(agent.import_metadata(card.seat.metadata));
  HEADRACE_TRY(signals, map_if_possible(agent, card.seat.agent, card.signals, limit));
  if (!signals) return {};
  const std::size_t words_bytes = static_cast<std::size_t>(size()) * sizeof(SignalWord);
  if (signals->bytes().size() < words_bytes)
    return make_error(Code::corrupt, "its words for signals have {} bytes, {} were expected",
                      signals->bytes().size(), words_bytes);
  peer.words = reinterpret_cast<SignalWord*>(signals->bytes().data());
  peer.signals_mapping = std::move(signals);
  if (!card.allocated || card.elements == 0) return {};
  HEADRACE_TRY(elements, map_if_possible(agent, card.seat.agent, card.elements, limit));
  if (!elements) return {};
  const std::size_t bytes = card.count * width();
  if (elements->bytes().size() < bytes)
    return make_error(Code::corrupt, "its elements have {} bytes, {} were expected", elements->bytes().size(),
                      bytes);
  peer.memory = elements->bytes().data();
  peer.elements_mapping = std::move(elements);
  return {};
}

HostWindow::~HostWindow() {
  closing_ = true;
  const std::unique_lock all(uses_);
  if (!closed_.exchange(true)) static_cast<void>(withdraw(std::chrono::seconds(1)));
}

Result<void> HostWindow::close(const TimeLimit& limit) {
  constexpr auto operation = CommOperation::tensor_deregister;
  if (closing_.exchange(true)) return comm_.refused(operation, deregistered());
  std::unique_lock all(uses_, std::defer_lock);
  auto quiet =
      WindowCall(comm_, my_rank(), limit)
          .until([&]() -> Result<bool> { return all.try_lock(); },
                 [&] {
                   return fmt::format("operations of other threads are under way after {}", limit.text());
                 });
  if (!quiet && comm_.look()) {
    closing_ = false;
    return comm_.refused(operation, std::move(quiet).error());
  }
  if (!quiet) all.lock();  // the communicator has ended, and so do they
  closed_ = true;
  all.unlock();
  // No rank goes on before all have come here.
  Result<void> met = comm_.collective(operation, [](const WindowComm::Gather& gather) -> Result<void> {
    HEADRACE_TRY_VOID(gather({}));
    return {};
  });
  auto withdrawn = withdraw(std::chrono::seconds(10));
  if (!met) return met;
  return withdrawn ? withdrawn : comm_.refused(operation, std::move(withdrawn).error());
}

/// Until it returns, other ranks may still write to the memory.
Result<void> HostWindow::withdraw(Timeout timeout) {
  station_->stop_listening(mailbox_);
  for (Peer& peer : peers_) peer.far.reset();
  std::vector<RegionId> regions;
  for (const Region* region : {&elements_region_, &signals_region_})
    if (region->length_bytes != 0) regions.push_back(region->id);
  if (regions.empty()) return {};
  auto done = station_->agent().deregister(regions, timeout);
  memory_.owner.reset();
  if (!done && done.code() == Code::timed_out) return std::move(done).error().within("withdraw the memory");
  return {};  // any other error: the agent is closed, and nobody reaches its memory
}

// ------------------------------------------------------------------ what other ranks ask for

void HostWindow::take_mail(std::string_view bytes) {
  WindowMail mail;
  if (bytes.size() != sizeof mail) return;
  std::memcpy(&mail, bytes.data(), sizeof mail);
  if (mail.from >= static_cast<std::uint32_t>(size())) return;
  Peer& peer = at(static_cast<int>(mail.from));
  if (peer.far == nullptr) return;
  if (mail.kind == WindowMailKind::answer) {
    peer.far->answered(mail);
    return comm_.members->bell().ring();
  }
  // A question that is asked again has been answered, and the answer has not left.
  if (mail.number < peer.question) return;
  if (mail.number != peer.question) peer.answer = change(mail);
  peer.question = mail.number;
  comm_.members->bell().ring();
  peer.far->answer(mail.number, peer.answer);
}

std::uint64_t HostWindow::change(const WindowMail& question) {
  if (question.kind == WindowMailKind::atomic_add) {
    const Elements& elements = memory_.elements;
    if (!has_atomic_add(elements.dtype) || question.at_bytes >= elements.bytes()) return 0;
    std::byte* const element = static_cast<std::byte*>(elements.data) + question.at_bytes;
    if (reinterpret_cast<std::uintptr_t>(element) % width() != 0) return 0;
    return static_cast<std::uint64_t>(
        collectives::atomic_add(element, elements.dtype, static_cast<std::int64_t>(question.value)));
  }
  const bool set = question.kind == WindowMailKind::signal_set;
  apply({set ? Signal::Kind::set : Signal::Kind::add, question.value}, at(my_rank()).words[question.from]);
  return 0;
}

// ------------------------------------------------------------------ checks

Error HostWindow::deregistered() const {
  return make_error(Code::invalid_argument,
                    "the window has been deregistered: register memory before the next operation");
}

Result<void> HostWindow::check_range(int rank, const ConstElements& elements, std::size_t at) const {
  HEADRACE_TRY_VOID(check_rank(rank));
  return check_window_range(elements, at, {rank, this->at(rank).count, memory_.elements.dtype});
}

Result<void> HostWindow::check_atomic(int rank, std::size_t at) const {
  const Peer& peer = this->at(rank);
  return check_window_atomic(at, {rank, peer.count, memory_.elements.dtype}, peer.address);
}

Result<HostWindow::Use> HostWindow::begin(int rank) {
  HEADRACE_TRY_VOID(check_rank(rank));
  if (closing_) return deregistered();
  HEADRACE_TRY_VOID(comm_.look());
  Use use(uses_);
  if (closed_) return deregistered();
  return use;
}

Result<void> HostWindow::check_mapping(const Peer& peer, int rank) const {
  if (!peer.signals_mapping || peer.signals_mapping->alive()) return {};
  return WindowCall(comm_, rank, {}).unreachable();
}

// ------------------------------------------------------------------ operations

Result<void> HostWindow::put(const ConstElements& from, int rank, std::size_t at, const TimeLimit& limit) {
  HEADRACE_TRY(use, begin(rank));
  HEADRACE_TRY_VOID(check_range(rank, from, at));
  if (from.count == 0) return {};
  Peer& peer = this->at(rank);
  HEADRACE_TRY_VOID(check_mapping(peer, rank));
  const std::size_t at_bytes = at * width();
  if (peer.memory != nullptr) {
    std::memmove(peer.memory + at_bytes, from.data, from.bytes());  // to itself they may overlap
    return {};
  }
  WindowCall call(comm_, rank, limit);
  return peer.far->write(static_cast<const std::byte*>(from.data), from.bytes(), at_bytes, call);
}

Result<void> HostWindow::get(const Elements& to, int rank, std::size_t at, const TimeLimit& limit) {
  HEADRACE_TRY(use, begin(rank));
  HEADRACE_TRY_VOID(check_range(rank, to, at));
  if (to.count == 0) return {};
  Peer& peer = this->at(rank);
  HEADRACE_TRY_VOID(check_mapping(peer, rank));
  const std::size_t at_bytes = at * width();
  if (peer.memory != nullptr) {
    std::memmove(to.data, peer.memory + at_bytes, to.bytes());
    return {};
  }
  WindowCall call(comm_, rank, limit);
  return peer.far->read(static_cast<std::byte*>(to.data), to.bytes(), at_bytes, call);
}

Result<void> HostWindow::signal(int rank, const Signal& signal, const TimeLimit& limit) {
  HEADRACE_TRY(use, begin(rank));
  HEADRACE_TRY_VOID(check_window_signal(signal));
  Peer& peer = at(rank);
  HEADRACE_TRY_VOID(check_mapping(peer, rank));
  if (peer.words != nullptr) {
    apply(signal, peer.words[my_rank()]);
    comm_.members->bell_of(rank).ring();
    return {};
  }
  WindowCall call(comm_, rank, limit);
  const bool set = signal.kind == Signal::Kind::set;
  HEADRACE_TRY_VOID(
      peer.far->ask(set ? WindowMailKind::signal_set : WindowMailKind::signal_add, 0, signal.value, call));
  return {};
}

Result<std::uint64_t> HostWindow::wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                              const TimeLimit& limit) {
  HEADRACE_TRY(use, begin(rank));
  HEADRACE_TRY_VOID(check_window_condition(condition));
  std::atomic<std::uint64_t>& word = at(my_rank()).words[rank].value;
  std::uint64_t seen = 0;
  WindowCall call(comm_, rank, limit);
  HEADRACE_TRY_VOID(call.until(
      [&]() -> Result<bool> {
        if (closing_) return deregistered();
        // Pairs with `apply`.
        seen = word.load(std::memory_order_seq_cst);
        if (condition) return holds(*condition, seen);
        return seen != 0 && word.compare_exchange_strong(seen, seen - 1, std::memory_order_acq_rel);
      },
      [&] {
        return fmt::format("the signal of rank {} is {}, and {} was awaited for {}", rank, seen,
                           text_of(condition), limit.text());
      }));
  return seen;
}

Result<std::int64_t> HostWindow::atomic_add(int rank, std::size_t at, std::int64_t value,
                                            const TimeLimit& limit) {
  HEADRACE_TRY(use, begin(rank));
  HEADRACE_TRY_VOID(check_atomic(rank, at));
  Peer& peer = this->at(rank);
  HEADRACE_TRY_VOID(check_mapping(peer, rank));
  const std::size_t at_bytes = at * width();
  if (peer.memory != nullptr)
    return collectives::atomic_add(peer.memory + at_bytes, memory_.elements.dtype, value);
  WindowCall call(comm_, rank, limit);
  HEADRACE_TRY(before,
               peer.far->ask(WindowMailKind::atomic_add, at_bytes, static_cast<std::uint64_t>(value), call));
  return static_cast<std::int64_t>(before);
}

Result<RemoteTensor> HostWindow::map(int rank) {
  HEADRACE_TRY(use, begin(rank));
  Peer& peer = at(rank);
  HEADRACE_TRY_VOID(check_mapping(peer, rank));
  const DType dtype = memory_.elements.dtype;
  if (rank == my_rank()) return RemoteTensor{memory_.elements, memory_.owner};
  if (peer.count == 0) return RemoteTensor{{nullptr, 0, dtype}, nullptr};
  if (peer.memory == nullptr)
    return make_error(Code::not_supported,
                      "the elements of rank {} cannot be mapped: it is on another host, or has registered "
                      "memory of its own; use put and get, or allocate on all ranks of a host",
                      rank);
  return RemoteTensor{{peer.memory, peer.count, dtype}, std::make_shared<Mapping>(*peer.elements_mapping)};
}

Result<WindowAttr> HostWindow::attr(int rank) {
  HEADRACE_TRY(use, begin(rank));
  const Peer& peer = at(rank);
  const bool unified = peer.memory != nullptr;
  return WindowAttr{unified ? WindowAccess::unified : WindowAccess::separate, peer.count};
}

}  // namespace headrace::collectives
