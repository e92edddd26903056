// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/backend.hpp"

namespace headrace::fake {

Result<std::unique_ptr<FakeBackend>> FakeBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  return open(host, args, FakeNetwork::of_process(), std::make_shared<FaultScript>());
}

Result<std::unique_ptr<FakeBackend>> FakeBackend::open(plugin::Host host, const plugin::CreateArgs& args,
                                                       FakeNetwork& network,
                                                       std::shared_ptr<FaultScript> script) {
  HEADRACE_TRY(settings, FakeSettings::read(args));
  HEADRACE_TRY(bell, Bell::create());
  script->add(settings.faults);
  return std::unique_ptr<FakeBackend>(
      new FakeBackend(host, network, std::move(script), std::move(settings), std::move(bell)));
}

FakeBackend::FakeBackend(plugin::Host host, FakeNetwork& network, std::shared_ptr<FaultScript> script,
                         FakeSettings settings, Bell bell)
    : script_(std::move(script)),
      objects_(std::move(settings.objects)),
      here_{.host = host,
            .network = network,
            .script = *script_,
            .worker = {network, host, settings.completion, std::move(bell)},
            .regions = Regions(network),
            .links = {}},
      messages_(here_),
      requests_(here_, messages_, settings.completion, settings.queue_depth),
      links_(here_, requests_),
      remotes_(here_) {
  here_.worker.start([this](Lock& lock, Event& event) { handle(lock, event); });
  number_ = network.join(here_);
}

FakeBackend::~FakeBackend() {
  {
    const Lock lock(here_.network.mutex);
    here_.network.instances.erase(number_);  // no peer finds us from now on
  }
  links_.disconnect_all();
  here_.worker.stop();
}

void FakeBackend::handle(Lock& lock, Event& event) {
  switch (event.kind) {
    case Event::Kind::run:
      return requests_.run(lock, event);
    case Event::Kind::accept:
      return links_.accept(lock, event.link);
    case Event::Kind::message:
      // The peer's host may send before its `accepted` returns, hence before the event that says so.
      links_.ready(lock, event.link);
      return messages_.receive(lock, event.link, std::move(event.message));
    case Event::Kind::ready:
      return links_.ready(lock, event.link);
    case Event::Kind::lost:
      return links_.lost(lock, event.link);
  }
}

headrace_info_v1 FakeBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof(info);
  info.abilities = HEADRACE_LOCAL | HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_MAP | HEADRACE_REVOKE_SAFE |
                   HEADRACE_QUERY | HEADRACE_GRID | HEADRACE_COUNT;
  info.local_kinds = info.remote_kinds = memory_kinds;
  info.max_message_bytes = Messages::max_bytes;
  return info;
}

headrace_cost_v1 FakeBackend::cost(const headrace_prepare_v1& /*args*/) {
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = 2'000,
          .ns_per_page = 40,
          .bytes_per_second = 4e9,
          .margin = 1,
          .method = "constant"};
}

}  // namespace headrace::fake
