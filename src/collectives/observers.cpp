// SPDX-License-Identifier: Apache-2.0
#include "collectives/observers.hpp"

#include "agent/backend_set.hpp"
#include "agent/unknown_variables.hpp"
#include "base/log.hpp"
#include "base/names.hpp"
#include "base/options.hpp"
#include "collectives/call_log.hpp"
#include "collectives/line_file.hpp"
#include "collectives/trace_file.hpp"
#include "nccl/backend.hpp"
#include "oneccl/backend.hpp"
#include "p2p/settings.hpp"

#include <headrace/flight_recorder.hpp>
#include <headrace/nan_check.hpp>

#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::collectives {
namespace {

constexpr std::array option_rows{
    OptionRow{"trace", "0", "count",
              "Calls that the flight recorder of each rank keeps; 0: no flight recorder, or 2000 if "
              "trace_file is set"},
    OptionRow{"trace_file", "", "text",
              "When a communicator ends by an error, each rank writes its last calls to this path with its "
              "rank behind it: \"/tmp/trace_\" makes /tmp/trace_0"},
    OptionRow{"nan_check", "false", "boolean", "Refuse operations whose input has a NaN"},
    OptionRow{"log", "", "text", "File for a line a call and event, or \"stderr\"; empty: none"},
    OptionRow{"tune", "", "text",
              "File by which backend auto chooses, as `headrace tune` writes it; empty: "
              "headrace/collectives.json in $XDG_CONFIG_HOME or ~/.config"},
};

Result<Options> resolve_options() {
  OptionSources sources;
  sources.scope = "comm";
  return Options::resolve(option_rows, sources);
}

/// HEADRACE_COMM_LIB_<NAME> and the switches of a build begin as the first ones do.
void warn_of_misspelt_options() {
  warn_of_unknown_options(Log(Logger::process_default(), "collectives"),
                          {{"comm", {option_rows.begin(), option_rows.end()}, false},
                           {"p2p", {p2p::hint_rows.begin(), p2p::hint_rows.end()}}});
}

/// The recorders of this process, one for each rank that is in it: a dump has all communicators of a rank.
class ProcessTraces {
 public:
  /// A forked child has its own: the thread that writes is its parent's.
  static std::shared_ptr<ProcessTraces> the() {
    static std::mutex mutex;
    static std::shared_ptr<ProcessTraces> traces;
    const std::scoped_lock lock(mutex);
    if (traces && traces->fork_guard_.forked()) (void)new std::shared_ptr<ProcessTraces>(std::move(traces));
    if (!traces) traces = std::make_shared<ProcessTraces>();
    return traces;
  }
  ~ProcessTraces() {
    for (auto& [rank, trace] : traces_)
      if (trace.file) trace.file->close();
  }

  struct Trace {
    FlightRecorder recorder;
    std::shared_ptr<TraceFile> file;  // null: none
  };
  Result<Trace> open(int rank, std::size_t entries, const std::string& prefix) {
    const std::scoped_lock lock(mutex_);
    if (const auto known = traces_.find(rank); known != traces_.end()) return known->second;
    Trace trace{FlightRecorder(entries), nullptr};
    if (!prefix.empty()) {
      HEADRACE_TRY(file, TraceFile::open(trace.recorder, prefix));
      trace.file = std::move(file);
    }
    return traces_.emplace(rank, std::move(trace)).first->second;
  }
  std::optional<Trace> find(int rank) {
    const std::scoped_lock lock(mutex_);
    const auto found = traces_.find(rank);
    return found == traces_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<Trace> all() {
    const std::scoped_lock lock(mutex_);
    std::vector<Trace> all;
    for (const auto& [rank, trace] : traces_) all.push_back(trace);
    return all;
  }

 private:
  const ForkGuard fork_guard_;
  std::mutex mutex_;
  std::map<int, Trace> traces_;
};

Result<void> add_trace(Comm& comm, const std::shared_ptr<Comm::Core>& core, const Observers& wanted) {
  const int rank = comm.ranks()[static_cast<std::size_t>(comm.rank())];
  HEADRACE_TRY(trace, ProcessTraces::the()->open(rank, wanted.trace_entries, wanted.trace_file));
  trace.recorder.attach(comm);
  if (!trace.file) return {};
  trace.file->watch(core);
  CommHooks hooks;
  hooks.aborted = [file = trace.file](const Error&) { file->ask(); };
  comm.add_hooks(std::move(hooks));
  return {};
}

}  // namespace

Result<Observers> Observers::read() {
  warn_of_misspelt_options();
  HEADRACE_TRY(options, resolve_options());
  Observers observers;
  HEADRACE_TRY(entries, options.integer("trace"));
  HEADRACE_TRY(trace_file, options.text("trace_file"));
  HEADRACE_TRY(nan_check, options.boolean("nan_check"));
  HEADRACE_TRY(log, options.text("log"));
  if (entries < 0)
    return make_error(Code::invalid_argument,
                      "option comm.trace (HEADRACE_COMM_TRACE) is {}: give the number of calls to keep",
                      entries);
  observers.trace_entries = static_cast<std::size_t>(entries);
  if (entries == 0 && !trace_file.empty()) observers.trace_entries = FlightRecorder::default_entries;
  observers.trace_file = std::move(trace_file);
  observers.nan_check = nan_check;
  observers.log = std::move(log);
  return observers;
}

Result<void> Observers::add_to(Comm& comm, const std::shared_ptr<Comm::Core>& core) const {
  if (nan_check && core->on_gpu())
    Log(Logger::process_default(), "collectives")
        .warn(
            "{}: its elements are on {}, and option comm.nan_check reads host memory alone: nothing is "
            "checked",
            name_text(comm.name()), device_text(comm.device()));
  else if (nan_check)
    comm.add_hooks(headrace::nan_check(comm));
  if (trace_entries != 0) HEADRACE_TRY_VOID(add_trace(comm, core, *this));
  if (log.empty()) return {};
  HEADRACE_TRY(file, LineFile::open(log));
  comm.add_hooks(call_log(comm, std::move(file)));
  return {};
}

Result<std::string> tuning_option() {
  HEADRACE_TRY(options, resolve_options());
  return options.text("tune");
}

void flush_trace_files() {
  for (const auto& trace : ProcessTraces::the()->all())
    if (trace.file) trace.file->flush();
}

}  // namespace headrace::collectives

namespace headrace {

Result<std::vector<OptionInfo>> list_comm_options() {
  HEADRACE_TRY(options, collectives::resolve_options());
  std::vector<OptionInfo> all = option_infos(options, "comm.", {});
  const auto add = [&all](const Options& of_backend, std::string_view backend) {
    const std::vector<OptionInfo> more = option_infos(of_backend, fmt::format("{}.", backend), {});
    all.insert(all.end(), more.begin(), more.end());
  };
  for (const std::string_view backend : nccl::backend_names()) {
    HEADRACE_TRY(of_backend, nccl::backend_options(backend));
    add(of_backend, backend);
  }
  HEADRACE_TRY(of_oneccl, oneccl::backend_options());
  add(of_oneccl, oneccl::backend_name);
  HEADRACE_TRY(of_p2p, p2p::default_options());
  add(of_p2p, "p2p");
  return all;
}

std::optional<FlightRecorder> FlightRecorder::of_environment(int rank) {
  auto trace = collectives::ProcessTraces::the()->find(rank);
  if (!trace) return std::nullopt;
  return std::move(trace->recorder);
}

}  // namespace headrace
