// SPDX-License-Identifier: Apache-2.0
// The backends that the contract suite runs over. A new backend joins with one row in cases.cpp.
#pragma once

#include "support/plugin_instance.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace headrace::contract {

/// Where posts and messages are carried out. It decides what a test must have met before it may pass: a
/// cancel that came in time, a sleep while a post is in flight, a message that was held back.
enum class CarriedOut : std::uint8_t {
  unknown,       ///< a backend without a row here: nothing is asked of it
  inside_calls,  ///< when `post` or `notify` returns, the post has ended and the message has been received
  in_progress,   ///< in `progress` of the instances, and nowhere else
  elsewhere,     ///< in other threads, in the kernel, on a GPU, or later
};

/// One way of using a backend that must keep the contract.
struct BackendCase {
  std::string backend;  ///< "<name>" of headrace_backend_<name>.so, or the path of a shared object
  std::string variant;  ///< what the settings make of it; tells the rows of one backend apart
  test::Settings settings;
  bool between_processes = true;                      ///< instances of two processes can reach each other
  std::int32_t kept_kind = HEADRACE_OBJECT;           ///< of what a query is about
  std::map<std::string, std::uint64_t> objects = {};  ///< that a query finds, by key or path, and their bytes
  bool vram = false;                                  ///< memories are a fake GPU's
  bool linked_in = false;       ///< the backend is a part of this program, not a shared object
  bool faulty_sockets = false;  ///< the backend is this program's own, over sockets that fail
  /// Of its instances, bits of headrace_ability_v1; none: an instance is asked. They stand in the row, and a
  /// test compares them, so that the tests can be listed without an instance of every row.
  std::optional<std::uint32_t> abilities = {};
  bool posts_succeed =
      true;  ///< false: its faults end posts with errors, or keep them from ending by themselves
  bool whole_suite = true;  ///< false: the suite Faults alone runs over it
  CarriedOut carried_out = CarriedOut::elsewhere;
  bool local_posts_run_to_their_end = false;  ///< a cancel never ends a request without a connection

  /// Whether a post can end with canceled.
  [[nodiscard]] bool cancels(headrace_ability_v1 of) const {
    if (carried_out == CarriedOut::unknown || carried_out == CarriedOut::inside_calls) return false;
    return of != HEADRACE_LOCAL || !local_posts_run_to_their_end;
  }

  /// What `load_plugin` opens.
  [[nodiscard]] std::string plugin() const { return faulty_sockets ? backend + "_faulty" : backend; }
  /// For test names: letters, digits and underscores.
  [[nodiscard]] std::string name() const;
};
std::ostream& operator<<(std::ostream& out, const BackendCase& which);

/// The rows to run over: those that HEADRACE_CONTRACT_BACKENDS or --backends names (comma separated; names of
/// rows' backends, or of others, which get a row of their own with default settings), else every row whose
/// shared object has been built.
std::vector<BackendCase> backend_cases();
/// Those of them that all suites run over and whose instances have all of `abilities` (bits of
/// headrace_ability_v1). A row whose abilities are unknown and that cannot be opened is in every answer, so
/// that its tests say why.
std::vector<BackendCase> cases_with(std::uint32_t abilities);
/// Those that all suites run over and whose instances lack `ability`, or cannot be opened.
std::vector<BackendCase> cases_without(std::uint32_t ability);
/// Those of cases_with(abilities) that reach other processes.
std::vector<BackendCase> process_cases(std::uint32_t abilities);

/// The rows with scripted faults, those included that no other suite runs over.
std::vector<BackendCase> fault_cases();

/// Takes --backends=... out of the arguments.
void read_backends_flag(int& argc, char** argv);

}  // namespace headrace::contract
