// SPDX-License-Identifier: Apache-2.0
// What `headrace bench fabric` prints: lines of a table, each as soon as it is measured, or rows of JSON.
#pragma once

#include "cli/bench/bench_row.hpp"
#include "cli/bench/fabric_client.hpp"

#include <map>
#include <string>

namespace headrace::cli {

/// A figure, computed.
struct FabricRates {
  explicit FabricRates(const FabricFigure& figure);
  double mean = 0, deviation = 0, p50 = 0, p99 = 0;  ///< seconds of one sample
  double bits_per_second = 0, operations_per_second = 0;
  double far_bits_per_second = 0;  ///< by the server's counter
};

class FabricReport {
 public:
  virtual ~FabricReport() = default;
  /// The groups of both sides.
  virtual void begin(FabricClient& client) = 0;
  virtual void verified(const std::string& names) = 0;
  virtual void round_trips(const FabricFigure& figure, bool spinning) = 0;
  virtual void figure(const FabricCase& measured, const FabricFigure& figure) = 0;
  virtual void idle(const FabricClient::Idle& idle, double seconds) = 0;
};

[[nodiscard]] std::unique_ptr<FabricReport> fabric_table();
[[nodiscard]] std::unique_ptr<FabricReport> fabric_rows(const std::string& command);

}  // namespace headrace::cli
