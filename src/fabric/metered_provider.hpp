// SPDX-License-Identifier: Apache-2.0
// A provider that counts what its NIC carries, for telemetry. All else it passes on.
#pragma once

#include "rail/provider.hpp"
#include "telemetry/telemetry.hpp"

#include <memory>
#include <string>
#include <utility>

namespace headrace::fabric {

class MeteredProvider final : public rail::Provider {
 public:
  /// Counters "fabric.NAME.written_bytes", "read_bytes", "posts", "failed_posts", "lost_peers". `telemetry`
  /// outlives it.
  MeteredProvider(std::unique_ptr<rail::Provider> nic, Telemetry& telemetry)
      : nic_(std::move(nic)),
        written_(counter(telemetry, "written_bytes")),
        read_(counter(telemetry, "read_bytes")),
        posts_(counter(telemetry, "posts")),
        failed_(counter(telemetry, "failed_posts")),
        lost_(counter(telemetry, "lost_peers")) {}

  [[nodiscard]] const rail::ProviderInfo& info() const override { return nic_->info(); }
  [[nodiscard]] std::string address() const override { return nic_->address(); }
  [[nodiscard]] rail::Health health() const override { return nic_->health(); }
  Result<rail::Registered> register_memory(const rail::Memory& memory) override {
    return nic_->register_memory(memory);
  }
  void deregister(rail::MemoryId memory) override { nic_->deregister(memory); }
  [[nodiscard]] bool is_open_at_peers(rail::MemoryId memory) override {
    return nic_->is_open_at_peers(memory);
  }
  Result<rail::PeerId> add_peer(std::string_view address, std::string_view hello) override {
    return nic_->add_peer(address, hello);
  }
  void drop_peer(rail::PeerId peer) override { nic_->drop_peer(peer); }
  Result<rail::RemoteId> load_memory(rail::PeerId peer, std::string_view key) override {
    return nic_->load_memory(peer, key);
  }
  void unload_memory(rail::PeerId peer, rail::RemoteId memory) override { nic_->unload_memory(peer, memory); }

  Status post_write(const rail::Write& write) override {
    return posted(nic_->post_write(write), written_, write.moves);
  }
  Status post_read(const rail::Read& read) override {
    return posted(nic_->post_read(read), read_, read.moves);
  }
  Status post_message(rail::PeerId peer, const rail::LocalRange& bytes, std::uint64_t token) override {
    return nic_->post_message(peer, bytes, token);
  }
  Status post_receive(const rail::LocalRange& room, std::uint64_t token) override {
    return nic_->post_receive(room, token);
  }
  void cancel(rail::PeerId peer, std::uint64_t token) override { nic_->cancel(peer, token); }

  bool heard_from(rail::PeerId peer) override { return nic_->heard_from(peer); }
  std::size_t poll(std::span<rail::Event> events) override {
    const std::size_t count = nic_->poll(events);
    for (const rail::Event& event : events.first(count)) {
      if (event.kind == rail::Event::Kind::ended && !event.status.ok()) failed_.add();
      if (event.kind == rail::Event::Kind::lost) lost_.add();
    }
    return count;
  }
  [[nodiscard]] int descriptor() const override { return nic_->descriptor(); }
  bool arm() override { return nic_->arm(); }

 private:
  TelemetryCounter& counter(Telemetry& telemetry, const char* what) const {
    return telemetry.counter("fabric." + nic_->info().name + "." + what);
  }
  Status posted(Status status, TelemetryCounter& bytes, std::span<const rail::Move> moves) {
    if (!status.ok()) return status;
    posts_.add();
    for (const rail::Move& move : moves) bytes.add(move.bytes);
    return status;
  }

  const std::unique_ptr<rail::Provider> nic_;
  TelemetryCounter& written_;
  TelemetryCounter& read_;
  TelemetryCounter& posts_;
  TelemetryCounter& failed_;
  TelemetryCounter& lost_;
};

}  // namespace headrace::fabric
