// SPDX-License-Identifier: Apache-2.0
#include "collectives/station.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::collectives {
namespace {

// Not that of a communicator, whose mailboxes are random numbers.
constexpr std::uint64_t assemblies_mailbox = 0;

}  // namespace

Result<std::shared_ptr<Station>> Station::open(const std::string& name,
                                               const std::vector<std::string>& backends, bool local) {
  AgentOptions options;
  options.backends = backends;
  if (local && std::ranges::count(backends, "tcp") != 0) options.options["tcp.listen"] = "127.0.0.1";
  HEADRACE_TRY(agent, Agent::open(name, options));
  std::shared_ptr<Station> station(new Station(std::move(agent)));
  station->agent_.on_notification(
      [self = station.get()](const Notification& mail) { self->hand_over(mail.peer, mail.payload); });
  return station;
}

Station::~Station() { agent_.close(); }

void Station::listen(std::uint64_t mailbox, std::function<void(std::string_view)> taken) {
  const std::scoped_lock lock(mutex_);
  listeners_[mailbox] = std::move(taken);
}

void Station::stop_listening(std::uint64_t mailbox) {
  const std::scoped_lock lock(mutex_);
  listeners_.erase(mailbox);
}

bool Station::leave() {
  if (--users_ != 0) return false;
  agent_.close();
  return true;
}

std::string Station::mail_of_assemblies(std::string_view piece) {
  std::string mail(reinterpret_cast<const char*>(&assemblies_mailbox), sizeof assemblies_mailbox);
  return mail.append(piece);
}

void Station::hand_over(const std::string& peer, std::string_view payload) {
  std::uint64_t mailbox = 0;
  if (payload.size() < sizeof mailbox) return;
  std::memcpy(&mailbox, payload.data(), sizeof mailbox);
  if (mailbox == assemblies_mailbox) return assembly_mail_.put(peer, payload.substr(sizeof mailbox));
  const std::scoped_lock lock(mutex_);
  // Mail for a communicator that has ended here needs no answer: its sender learns it from the farewell.
  if (const auto found = listeners_.find(mailbox); found != listeners_.end())
    found->second(payload.substr(sizeof mailbox));
}

}  // namespace headrace::collectives
