// SPDX-License-Identifier: Apache-2.0
// One figure of a benchmark as one line of JSON, the form of the rows in bench/results.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace headrace::cli {

/// The figure that a row's value is compared with.
struct Comparison {
  std::string peer;
  double value = 0;
  double ratio = 0;  ///< how many times better ours is
};

struct BenchRow {
  std::string table;   ///< "pages-cpu"
  std::string name;    ///< "read/4096x16384"
  std::string metric;  ///< "GB/s"
  std::string unit;
  double value = 0;
  bool checked = false;  ///< the data that the figure is about was compared after the run, and is right
  const Comparison* against = nullptr;
};

/// Writes the rows of one run; they share date, commit, machine and command.
class RowWriter {
 public:
  explicit RowWriter(std::string command);
  /// The line without its line end.
  [[nodiscard]] std::string line(const BenchRow& row) const;

 private:
  const std::string command_, date_, commit_, machine_;
};

/// Statistics of at least one sample, in any order.
struct Summary {
  explicit Summary(std::vector<double> samples);
  [[nodiscard]] double percentile(double percent) const;  ///< `percent` % of the samples are at most this one
  [[nodiscard]] double median() const { return percentile(50); }
  double mean = 0;
  double least = 0;

 private:
  std::vector<double> sorted_;
};

/// "AMD EPYC, 2 cores, 23 GiB, Linux 6.1.0": the properties that a figure depends on, without a host name.
[[nodiscard]] std::string machine_text();

}  // namespace headrace::cli
