// SPDX-License-Identifier: Apache-2.0
// What the options `comm.` add to each communicator: flight recorder, NaN check, log.
#pragma once

#include "collectives/core.hpp"

#include <memory>
#include <string>

namespace headrace::collectives {

struct Observers {
  std::size_t trace_entries = 0;  ///< 0: no flight recorder
  std::string trace_file;
  bool nan_check = false;
  std::string log;

  /// Reads the options.
  [[nodiscard]] static Result<Observers> read();
  [[nodiscard]] Result<void> add_to(Comm& comm, const std::shared_ptr<Comm::Core>& core) const;
};

/// Option comm.tune; empty: it names no file.
[[nodiscard]] Result<std::string> tuning_option();

/// Waits until the files of flight recorders are written, before the process ends.
void flush_trace_files();

}  // namespace headrace::collectives
