// SPDX-License-Identifier: Apache-2.0
// The model backend: moves bytes between agents of one process with memcpy, keeps every sentence of
// backend_v1.h, and goes wrong on request. Read it before writing another one. README.md has its options and
// limits.
#pragma once

#include "backends/fake/links.hpp"
#include "backends/fake/messages.hpp"
#include "backends/fake/remote_regions.hpp"
#include "backends/fake/requests.hpp"
#include "backends/fake/settings.hpp"

namespace headrace::fake {

/// One instance: the entries of the table, each by the part that it is about.
class FakeBackend final : public plugin::Backend<Handles> {
 public:
  static constexpr const char* name = "fake";
  static constexpr const char* version = "1.0";
  static constexpr std::uint32_t memory_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  static constexpr bool maps = true;
  static std::span<const headrace_option_v1> options() { return FakeSettings::options(); }

  /// What the plugin calls: the network of the process, faults from the options.
  static Result<std::unique_ptr<FakeBackend>> open(plugin::Host host, const plugin::CreateArgs& args);
  /// What tests call: their own network, which must outlive the instance, and a script that they may add to
  /// later.
  static Result<std::unique_ptr<FakeBackend>> open(plugin::Host host, const plugin::CreateArgs& args,
                                                   FakeNetwork& network, std::shared_ptr<FaultScript> script);

  ~FakeBackend() override;
  FakeBackend(const FakeBackend&) = delete;
  FakeBackend& operator=(const FakeBackend&) = delete;

  [[nodiscard]] headrace_info_v1 info() override;
  Result<std::string> connection_info() override { return links_.info(number_); }
  Result<Link*> connect(const headrace_connect_v1& args) override { return links_.connect(args); }
  void disconnect(Link& link) override { links_.disconnect(link); }

  Result<Region*> register_region(const headrace_region_v1& region) override {
    return here_.regions.add(region);
  }
  void deregister_region(Region& region) override { here_.regions.remove(region); }
  Result<Remote*> load_local(Region& region) override { return remotes_.load_local(region); }
  Result<Remote*> load_remote(Link& link, const headrace_remote_region_v1& region) override {
    return remotes_.load_remote(link, region);
  }
  void unload(Remote& remote) override { remotes_.unload(remote); }
  Result<std::span<std::byte>> map(Remote& remote, int device, unsigned access) override {
    return remotes_.map(remote, device, access);
  }
  void unmap(Remote& /*remote*/, void* address) override { remotes_.unmap(address); }

  Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) override {
    return requests_.prepare(link, args);
  }
  Status post(Request& request, const headrace_post_v1& args) override {
    return requests_.post(request, args);
  }
  bool poll(Request& request) override { return requests_.poll(request); }
  void cancel(Request& request) override { requests_.cancel(request); }
  void release(Request& request) override { requests_.release(request); }
  Status notify(Link& link, std::uint32_t channel, std::string_view bytes) override {
    return messages_.notify(link, channel, bytes);
  }
  std::uint64_t unsent(Link& link) override { return messages_.unsent(link); }

  std::uint32_t progress() override { return here_.worker.progress(); }
  [[nodiscard]] int descriptor() override { return here_.worker.descriptor(); }
  std::uint32_t arm(bool on) override { return here_.worker.arm(on); }

  Result<std::string> query(const headrace_query_v1& args) override { return objects_.answer(args); }
  headrace_cost_v1 cost(const headrace_prepare_v1& args) override;

 private:
  FakeBackend(plugin::Host host, FakeNetwork& network, std::shared_ptr<FaultScript> script,
              FakeSettings settings, Bell bell);

  void handle(Lock& lock, Event& event);

  const std::shared_ptr<FaultScript> script_;
  const Objects objects_;
  FakeInstance here_;
  Messages messages_;
  Requests requests_;
  Links links_;
  RemoteRegions remotes_;
  std::uint64_t number_ = 0;  // in the network
};

}  // namespace headrace::fake
