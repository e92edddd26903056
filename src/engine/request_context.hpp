// SPDX-License-Identifier: Apache-2.0
// The parts of an engine that its requests use.
#pragma once

namespace headrace {
class Log;
}

namespace headrace::engine {

class ArrivalCounters;
class CallGate;
class CallbackQueue;
class InFlight;
class Links;
class Notifications;
class PageLists;
class PathChoice;
class Progress;
class Requests;
class Revocation;
struct EngineCounters;

struct RequestContext {
  CallGate& calls;
  Progress& progress;
  CallbackQueue& callbacks;
  EngineCounters& counters;
  const Log& log;
  Links& links;
  const PageLists& lists;
  const PathChoice& paths;
  Notifications& notifications;
  ArrivalCounters& arrivals;
  Revocation& revocation;
  Requests& requests;
  InFlight& own_flights;  ///< of posts between our own regions
};

}  // namespace headrace::engine
