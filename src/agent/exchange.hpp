// SPDX-License-Identifier: Apache-2.0
// Exchange of metadata between agents: by direct socket and through a store.
#pragma once

#include <headrace/agent.hpp>

#include "agent/secret.hpp"
#include "base/event_fd.hpp"
#include "engine/engine.hpp"
#include "metadata/metadata_socket.hpp"
#include "metadata/open_store.hpp"

namespace headrace {

class Exchange {
 public:
  /// `listen` may be empty and `store` null; `core` holds the rows of metadata::option_rows.
  static Result<std::unique_ptr<Exchange>> open(engine::Engine& engine, const std::string& listen,
                                                std::unique_ptr<metadata::Store> store, const Options& core,
                                                const Secret& secret);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Ends the watch and the server, and cancels the calls that wait for another agent or for the store. The
  /// callback thread may still be inside this object.
  void close();

  [[nodiscard]] const std::string& listen_address() const { return listen_address_; }
  Result<ImportReport> fetch(const std::string& address, Deadline deadline, const std::string& label);
  Result<void> send(const std::string& address, const ExportOptions& options, Deadline deadline);
  Result<void> publish(const ExportOptions& options, const std::string& label);
  Result<void> unpublish();
  Result<ImportReport> find(const std::string& peer, Deadline deadline, const std::string& label);
  Result<std::vector<std::string>> list(Deadline deadline);
  Result<void> watch(std::function<void(const PeerEvent&)> event);

 private:
  Exchange(engine::Engine& engine, metadata::SocketIdentity identity, std::chrono::nanoseconds ttl,
           EventFd closing)
      : engine_(engine), identity_(std::move(identity)), ttl_(ttl), closing_(std::move(closing)) {}

  Result<void> serve(const std::string& listen, const Options& core);
  Result<void> take_sent(const wire::Hello& sender, std::string_view bytes);
  Result<std::string> export_bytes(const ExportOptions& options) const;
  Result<ImportReport> import_bytes_of(std::string_view agent, std::string_view bytes);
  Result<void> need_store() const;
  template <class T>
  Result<T> from_store(Result<T> answer) const;
  Result<void> keep_watching();
  void on_event(const metadata::StoreEvent& event);
  void keep_up_to_date(const metadata::StoreEvent& event, const std::string& label);
  void publish_again();

  engine::Engine& engine_;
  const metadata::SocketIdentity identity_;
  const std::chrono::nanoseconds ttl_;
  const EventFd closing_;  ///< readable from `close` on
  std::unique_ptr<metadata::Store> store_;
  std::string listen_address_;

  std::mutex mutex_;                                ///< guards all below
  std::map<std::string, ExportOptions> published_;  // by label
  std::map<std::string, std::string> found_;        // peer -> label with which it was found
  std::function<void(const PeerEvent&)> on_event_;
  // Last members, destroyed first: their threads use the others.
  std::unique_ptr<metadata::MetadataServer> server_;
  std::unique_ptr<metadata::Store::Watch> watch_;
};

}  // namespace headrace
