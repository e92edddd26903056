// SPDX-License-Identifier: Apache-2.0
// What a benchmark found, as one line of JSON: the form in which bench/results keeps every figure.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace headrace::cli {

/// Whose figure a row's value is held against.
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

/// Date, commit, machine and command of every row of one run.
class RowWriter {
 public:
  explicit RowWriter(std::string command);
  /// The line, without its end.
  [[nodiscard]] std::string line(const BenchRow& row) const;

 private:
  const std::string command_, date_, commit_, machine_;
};

/// Of samples in any order; at least one.
struct Summary {
  explicit Summary(std::vector<double> samples);
  [[nodiscard]] double percentile(double percent) const;  ///< the sample that so many do not exceed
  [[nodiscard]] double median() const { return percentile(50); }
  double mean = 0;
  double least = 0;

 private:
  std::vector<double> sorted_;
};

/// "AMD EPYC, 2 cores, 23 GiB, Linux 6.1.0": what a figure depends on, and no name.
[[nodiscard]] std::string machine_text();

}  // namespace headrace::cli
