// SPDX-License-Identifier: Apache-2.0
#include "collectives/launch.hpp"

#include "base/errors.hpp"
#include "base/options.hpp"

#include <array>
#include <charconv>

namespace headrace::collectives {
namespace {

struct Pair {
  const char* launcher;
  const char* rank;
  const char* size;
  bool size_is_shared = false;  ///< another launcher sets it too: alone it says nothing
};
/// The one that starts a process last comes first: torchrun and mpirun may run under Slurm.
constexpr std::array pairs{Pair{"set by hand", "HEADRACE_RANK", "HEADRACE_SIZE"},
                           Pair{"torchrun", "RANK", "WORLD_SIZE"},
                           Pair{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                           Pair{"HPE PALS", "PALS_RANKID", "PMI_SIZE", true},
                           Pair{"PMI", "PMI_RANK", "PMI_SIZE"},
                           Pair{"Slurm", "SLURM_PROCID", "SLURM_NTASKS"}};

/// An empty variable is as good as none.
std::optional<std::string> value_of(const Lookup& lookup, const char* name) {
  auto value = lookup(name);
  return value && !value->empty() ? value : std::nullopt;
}

Result<int> number(const char* name, const std::string& text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end)
    return make_error(Code::invalid_argument, "the variable {} is \"{}\": a whole number is expected", name,
                      text);
  return value;
}

Error half(const char* there, const char* missing) {
  return make_error(Code::invalid_argument,
                    "the environment has {} and not {}: set both, or give rank, size and meeting in the call",
                    there, missing);
}

Error none() {
  std::string looked_for;
  for (const Pair& pair : pairs)
    looked_for += fmt::format("{}{} and {}", looked_for.empty() ? "" : "; ", pair.rank, pair.size);
  return make_error(Code::not_found,
                    "rank and size are not given, and no launcher has set them: give both, or set "
                    "HEADRACE_RANK and HEADRACE_SIZE. Looked for {}",
                    looked_for);
}

}  // namespace

Result<CommOptions> launched_options(const Lookup& lookup) {
  for (const Pair& pair : pairs) {
    const auto rank = value_of(lookup, pair.rank);
    const auto size = value_of(lookup, pair.size);
    if (!rank && (!size || pair.size_is_shared)) continue;
    if (!rank) return half(pair.size, pair.rank);
    if (!size) return half(pair.rank, pair.size);
    CommOptions options;
    HEADRACE_TRY(own, number(pair.rank, *rank));
    HEADRACE_TRY(all, number(pair.size, *size));
    options.rank = own;
    options.size = all;
    if (all > 1) {
      HEADRACE_TRY(meeting, launched_meeting(lookup));
      options.meeting = std::move(meeting);
    }
    return options;
  }
  return none();
}

Result<std::string> launched_meeting(const Lookup& lookup) {
  const auto host = value_of(lookup, "MASTER_ADDR");
  const auto port = value_of(lookup, "MASTER_PORT");
  if (!host && !port) return std::string();
  if (!host) return half("MASTER_PORT", "MASTER_ADDR");
  if (!port) return half("MASTER_ADDR", "MASTER_PORT");
  // At the port listens a store of torchrun, so rank 0 cannot.
  if (lookup("TORCHELASTIC_USE_AGENT_STORE") == "True") return std::string();
  const bool bare_ipv6 = host->find(':') != std::string::npos && !host->starts_with('[');
  return fmt::format("{}{}{}{}:{}", "tcp://", bare_ipv6 ? "[" : "", *host, bare_ipv6 ? "]" : "", *port);
}

}  // namespace headrace::collectives

namespace headrace {

Result<CommOptions> CommOptions::from_environment() {
  return collectives::launched_options(environment_variable);
}
Result<std::string> CommOptions::meeting_from_environment() {
  return collectives::launched_meeting(environment_variable);
}

std::vector<LauncherVariables> list_launcher_variables() {
  std::vector<LauncherVariables> all;
  for (const auto& pair : collectives::pairs)
    all.push_back({pair.launcher, pair.rank, pair.size,
                   collectives::value_of(environment_variable, pair.rank),
                   collectives::value_of(environment_variable, pair.size)});
  return all;
}

}  // namespace headrace
