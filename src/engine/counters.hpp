// SPDX-License-Identifier: Apache-2.0
// The counters of an engine, looked up once: the data path counts through these references.
#pragma once

#include "telemetry/telemetry.hpp"

namespace headrace::engine {

struct EngineCounters {
  explicit EngineCounters(Telemetry& t)
      : posts(t.counter("requests.posted")),
        done(t.counter("requests.done")),
        failed(t.counter("requests.failed")),
        canceled(t.counter("requests.canceled")),
        failed_over(t.counter("requests.failed_over")),
        read_bytes(t.counter("requests.read_bytes")),
        written_bytes(t.counter("requests.written_bytes")),
        captured(t.counter("requests.captured")),
        replayed(t.counter("requests.replayed")),
        pages(t.counter("requests.pages")),
        notifications_sent(t.counter("notifications.sent")),
        notifications_received(t.counter("notifications.received")),
        notifications_dropped(t.counter("notifications.dropped")),
        completions_ignored(t.counter("completions.ignored")),
        links_flooded(t.counter("links.flooded")),
        request_ns(t.histogram("requests.duration_ns")) {
    // Rare ones, which are looked up where they rise: a reader finds them from the start, as 0.
    for (const char* const refused : {"links.refused", "metadata.refused"}) (void)t.counter(refused);
  }
  TelemetryCounter &posts, &done, &failed, &canceled, &failed_over, &read_bytes, &written_bytes, &captured,
      &replayed, &pages, &notifications_sent, &notifications_received, &notifications_dropped,
      &completions_ignored, &links_flooded;  ///< links_flooded: links closed for too much that waited
  Histogram& request_ns;
};

}  // namespace headrace::engine
