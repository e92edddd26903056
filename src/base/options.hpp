// SPDX-License-Identifier: Apache-2.0
// Options: a table of rows, and the one place that reads their values from caller, environment and file.
#pragma once

#include "base/errors.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// One option. The four texts live as long as the program, so that a table is a constant array.
struct OptionRow {
  const char* name;           ///< lower case, dots and underscores: "tcp.sockets"
  const char* default_value;  ///< as a user would write it; "" for none
  const char* unit;           ///< "bytes", "duration", "count", "boolean", "text", "list": for readers
  const char* sentence;       ///< what the option does, in one sentence
};

/// The source of a value, strongest first.
enum class OptionOrigin { caller, environment, file, standard };

struct OptionValue {
  std::string text;
  OptionOrigin origin = OptionOrigin::standard;
  std::string where;  ///< "the caller", "HEADRACE_TCP_SOCKETS", "/etc/headrace.toml:12" or "default"
};

/// Reads a variable of the process's environment. Besides Options this is the only reader of it, for
/// variables of others (XDG_RUNTIME_DIR); Headrace's own variables are options.
[[nodiscard]] std::optional<std::string> environment_variable(const std::string& name);

/// The variable of an option: "HEADRACE_TCP_SOCKETS" for `sockets` of scope `tcp`. The agent's own options
/// have no scope.
[[nodiscard]] std::string variable_name(std::string_view scope, std::string_view name);

/// Where the values of options come from.
struct OptionSources {
  /// Values from the caller, by row name. An unknown name is an error.
  std::map<std::string, std::string> given;
  /// Reads a variable; tests replace it.
  std::function<std::optional<std::string>(const std::string& name)> environment = environment_variable;
  /// The TOML file. Nullopt: the file that HEADRACE_CONFIG names; if that is unset, there is none.
  std::optional<std::string> config_file = std::nullopt;
  /// The TOML table of the rows; for a backend its name: row "sockets" of scope "tcp" is HEADRACE_TCP_SOCKETS
  /// and `sockets` under [tcp]. Empty: the row names are complete.
  std::string scope = {};
  /// Tables of the file that other resolvers read ("tcp", "shm"; "*": all of them): not unknown here. Ignored
  /// if `scope` is set: then only its table is read.
  std::vector<std::string> other_tables = {};
};

/// The values of a table of rows, fixed once resolved. The rows must outlive it.
class Options {
 public:
  /// Finds the value of every row: caller, environment, file, default; the first that has one wins.
  ///   errors   invalid_argument (unknown name, with the nearest valid one; the file is not TOML), not_found
  ///            (no file)
  [[nodiscard]] static Result<Options> resolve(std::span<const OptionRow> rows,
                                               const OptionSources& sources = {});

  // Typed readers. Each fails with invalid_argument and names the option, its value and its source; for an
  // unknown name it names the nearest option.

  [[nodiscard]] Result<std::int64_t> integer(std::string_view name) const;
  /// "65536", "64KiB", "4M", "1 GiB": K, M, G, T are powers of 1024, with or without "iB"; KB, MB, ... are
  /// powers of 1000.
  [[nodiscard]] Result<std::uint64_t> bytes(std::string_view name) const;
  /// "50us", "5s", "1.5 ms", "2min", "1h", "0".
  [[nodiscard]] Result<std::chrono::nanoseconds> duration(std::string_view name) const;
  /// true, yes, on, 1; false, no, off, 0.
  [[nodiscard]] Result<bool> boolean(std::string_view name) const;
  [[nodiscard]] Result<std::string> text(std::string_view name) const;
  /// The texts between commas, trimmed, without empty ones.
  [[nodiscard]] Result<std::vector<std::string>> list(std::string_view name) const;

  [[nodiscard]] std::span<const OptionRow> rows() const noexcept { return rows_; }
  /// The value as text with its source: what `headrace doctor` prints.
  [[nodiscard]] Result<OptionValue> value(std::string_view name) const;

 private:
  explicit Options(std::span<const OptionRow> rows) : rows_(rows) {}

  std::span<const OptionRow> rows_;
  std::map<std::string, OptionValue, std::less<>> values_;
  std::string scope_;
};

/// The readers behind Options::bytes and Options::duration, for command-line arguments in the same syntax.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text);
[[nodiscard]] Result<std::chrono::nanoseconds> parse_duration(std::string_view text);

}  // namespace headrace
