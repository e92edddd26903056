// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fabric_figures.hpp"

#include "cli/common/text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <optional>

namespace headrace::cli {
namespace {

std::string duration_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

/// Speeds of the network cards of this side.
class LineSpeeds {
 public:
  void read(const std::vector<FabricGroup>& groups) {
    for (const FabricGroup& group : groups)
      for (const FabricNic& nic : group.nics) speeds_[nic.name] = static_cast<double>(nic.bits_per_second);
  }
  /// nullopt: unknown.
  [[nodiscard]] std::optional<double> percent(const std::string& nic, double bits_per_second) const {
    const auto at = speeds_.find(nic);
    if (at == speeds_.end() || at->second == 0) return std::nullopt;
    return bits_per_second / at->second * 100;
  }
  /// Of all network cards that have carried something.
  [[nodiscard]] std::optional<double> percent(const FabricFigure& figure, double bits_per_second) const {
    double line = 0;
    for (const auto& [nic, bytes] : figure.nic_bytes) {
      if (bytes == 0) continue;
      const auto at = speeds_.find(nic);
      if (at == speeds_.end() || at->second == 0) return std::nullopt;
      line += at->second;
    }
    if (line == 0) return std::nullopt;
    return bits_per_second / line * 100;
  }

 private:
  std::map<std::string, double> speeds_;
};

/// Bits a second of each network card that has carried something, if there are several.
std::map<std::string, double> rates_of_nics(const FabricFigure& figure) {
  double seconds = 0;
  for (const double each : figure.seconds) seconds += each;
  std::map<std::string, double> rates;
  for (const auto& [nic, bytes] : figure.nic_bytes)
    if (bytes > 0) rates[nic] = static_cast<double>(bytes) * 8 / seconds;
  if (rates.size() < 2) rates.clear();
  return rates;
}

// --- for people

class FabricTable final : public FabricReport {
 public:
  void begin(FabricClient& client) override {
    speeds_.read(client.side().groups());
    for (const FabricGroup& group : client.side().groups()) line("here: " + group_text(group));
    for (const std::string& group : client.far_groups()) line("there: " + group);
  }

  void verified(const std::string& names) override {
    line(fmt::format("{}: every byte is right\n", names));
    line(fmt::format("{:<30}{:>10}{:>10}{:>10}{:>10}{:>9}{:>8}{:>11}{:>11}{:>9}", "", "mean", "deviation",
                     "p50", "p99", "Gbit/s", "line", "op/s", "at counter", "Gbit/s"));
  }

  void round_trips(const FabricFigure& figure, bool spinning) override {
    const FabricRates rates(figure);
    line(times(fmt::format("round trip, {}", spinning ? "spinning" : "asleep"), rates));
  }

  void figure(const FabricCase& measured, const FabricFigure& figure) override {
    const FabricRates rates(figure);
    std::string text = times(name_of(measured), rates);
    text += fmt::format("{:>9}{:>8}{:>11.0f}", bits(rates.bits_per_second),
                        percent(speeds_.percent(figure, rates.bits_per_second)), rates.operations_per_second);
    if (figure.far_seconds)
      text += fmt::format("{:>11}{:>9}", duration_text(*figure.far_seconds), bits(rates.far_bits_per_second));
    line(text);
    for (const auto& [nic, rate] : rates_of_nics(figure))
      line(fmt::format("  {:<68}{:>9}{:>8}", shorten(nic, 68), bits(rate),
                       percent(speeds_.percent(nic, rate))));
  }

  void idle(const FabricClient::Idle& idle, double seconds) override {
    line(fmt::format("idle for {}: {:.3f} % of a core here, {:.3f} % there", seconds_text(seconds),
                     idle.here * 100, idle.there * 100));
  }

 private:
  static void line(const std::string& text) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }
  static std::string times(const std::string& name, const FabricRates& rates) {
    return fmt::format("{:<30}{:>10}{:>10}{:>10}{:>10}", name, duration_text(rates.mean),
                       duration_text(rates.deviation), duration_text(rates.p50), duration_text(rates.p99));
  }
  static std::string bits(double bits_per_second) {
    return bits_per_second == 0 ? "-" : fmt::format("{:.3f}", bits_per_second / 1e9);
  }
  static std::string percent(std::optional<double> of_line) {
    return of_line ? fmt::format("{:.1f} %", *of_line) : "-";
  }
  static std::string name_of(const FabricCase& measured) {
    const auto kind = fabric_kind_name(measured.kind);
    if (measured.page_bytes == 0) return fmt::format("{} x {}", kind, measured.count);
    std::string name = fmt::format("{} {}", kind, size_text(measured.page_bytes));
    if (measured.count > 1) name += fmt::format(" x {}", measured.count);
    if (measured.posts > 1) name += fmt::format(", {} posts", measured.posts);
    return name;
  }

  LineSpeeds speeds_;
};

// --- for programs

class FabricJson final : public FabricReport {
 public:
  explicit FabricJson(const std::string& command) : rows_(command) {}

  void begin(FabricClient& client) override {
    speeds_.read(client.side().groups());
    if (client.side().groups().front().device) prefix_ = "vram/";
  }
  void verified(const std::string&) override {}

  void round_trips(const FabricFigure& figure, bool spinning) override {
    times(spinning ? "round-trip/spinning" : "round-trip/asleep", FabricRates(figure));
  }

  void figure(const FabricCase& measured, const FabricFigure& figure) override {
    const std::string name = prefix_ + name_of(measured);
    const FabricRates rates(figure);
    times(name, rates);
    row(name, "op/s", "1/s", rates.operations_per_second);
    if (figure.bytes > 0) row(name, "Gbit/s", "Gbit/s", rates.bits_per_second / 1e9);
    if (const auto percent = speeds_.percent(figure, rates.bits_per_second))
      row(name, "line_percent", "%", *percent);
    if (figure.far_seconds) {
      row(name, "counter_mean_us", "us", *figure.far_seconds * 1e6);
      if (figure.bytes > 0) row(name, "counter_Gbit/s", "Gbit/s", rates.far_bits_per_second / 1e9);
    }
    for (const auto& [nic, rate] : rates_of_nics(figure))
      row(fmt::format("{}/{}", name, nic), "Gbit/s", "Gbit/s", rate / 1e9);
  }

  void idle(const FabricClient::Idle& idle, double) override {
    row("idle/client", "core_percent", "%", idle.here * 100, false);
    row("idle/server", "core_percent", "%", idle.there * 100, false);
  }

 private:
  void times(const std::string& name, const FabricRates& rates) const {
    row(name, "mean_us", "us", rates.mean * 1e6);
    row(name, "deviation_us", "us", rates.deviation * 1e6);
    row(name, "p50_us", "us", rates.p50 * 1e6);
    row(name, "p99_us", "us", rates.p99 * 1e6);
  }
  void row(const std::string& name, const std::string& metric, const std::string& unit, double value,
           bool checked = true) const {
    fmt::print("{}\n", rows_.line({"fabric", name, metric, unit, value, checked}));
    std::fflush(stdout);
  }
  static std::string name_of(const FabricCase& measured) {
    const auto kind = fabric_kind_name(measured.kind);
    if (measured.page_bytes == 0) return fmt::format("{}/x{}", kind, measured.count);
    const bool single = measured.kind == FabricKind::write || measured.kind == FabricKind::read;
    std::string name = fmt::format("{}/{}", kind, measured.page_bytes);
    if (!single) name += fmt::format("x{}", measured.count);
    if (measured.posts > 1) name += fmt::format("/{}-posts", measured.posts);
    return name;
  }

  const RowWriter rows_;
  std::string prefix_;
  LineSpeeds speeds_;
};

}  // namespace

FabricRates::FabricRates(const FabricFigure& figure) {
  const Summary summary(figure.seconds);
  mean = summary.mean;
  p50 = summary.median();
  p99 = summary.percentile(99);
  double squares = 0;
  for (const double each : figure.seconds) squares += (each - mean) * (each - mean);
  deviation = std::sqrt(squares / static_cast<double>(figure.seconds.size()));
  bits_per_second = static_cast<double>(figure.bytes) * 8 / mean;
  operations_per_second = static_cast<double>(figure.operations) / mean;
  if (figure.far_seconds) far_bits_per_second = static_cast<double>(figure.bytes) * 8 / *figure.far_seconds;
}

std::unique_ptr<FabricReport> fabric_table() { return std::make_unique<FabricTable>(); }
std::unique_ptr<FabricReport> fabric_rows(const std::string& command) {
  return std::make_unique<FabricJson>(command);
}

}  // namespace headrace::cli
