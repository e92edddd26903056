// SPDX-License-Identifier: Apache-2.0
// Settings: one table of rows, one place that reads them from the caller, the environment and the file.
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

/// One option. All four are text that lives as long as the program, so that a table is a constant array.
struct OptionRow {
  const char* name;           ///< lower case, dots and underscores: "tcp.sockets"
  const char* default_value;  ///< as a user would write it; "" for none
  const char* unit;           ///< "bytes", "duration", "count", "boolean", "text", "list": for the reader
  const char* sentence;       ///< what it does, in one sentence
};

/// Where a value came from, strongest first.
enum class OptionOrigin { caller, environment, file, standard };

struct OptionValue {
  std::string text;
  OptionOrigin origin = OptionOrigin::standard;
  std::string where;  ///< "the caller", "HEADRACE_TCP_SOCKETS", "/etc/headrace.toml:12" or "default"
};

/// A variable of the process's environment. Besides Options the only reader of it, for names that are not
/// ours (XDG_RUNTIME_DIR); everything of ours is an option.
[[nodiscard]] std::optional<std::string> environment_variable(const std::string& name);

/// Where options are looked for.
struct OptionSources {
  /// Values that the caller gave, by row name. An unknown name is an error.
  std::map<std::string, std::string> given;
  /// Looks a variable up; tests put their own here.
  std::function<std::optional<std::string>(const std::string& name)> environment = environment_variable;
  /// The TOML file; without a value HEADRACE_CONFIG names it, and if that is unset there is none.
  std::optional<std::string> config_file = std::nullopt;
  /// The table that the rows lie in, for a backend its name: row "sockets" of scope "tcp" is
  /// HEADRACE_TCP_SOCKETS and `sockets` under [tcp]. Empty: the rows' names are whole.
  std::string scope = {};
  /// Tables of the file that somebody else resolves ("tcp", "shm"; "*": all of them): not unknown here. Not
  /// looked at with a scope, which looks at its own table alone.
  std::vector<std::string> other_tables = {};
};

/// The values of a table of rows, fixed once resolved. The rows must outlive it.
class Options {
 public:
  /// Looks every row up: given, environment, file, default; the first that has it wins.
  ///   errors   invalid_argument (unknown name, with the nearest valid one; the file is not TOML), not_found
  ///   (no file)
  [[nodiscard]] static Result<Options> resolve(std::span<const OptionRow> rows,
                                               const OptionSources& sources = {});

  // Typed readers. Each fails with invalid_argument, naming the option, its value and where that came from,
  // or naming the nearest option where there is none of that name.

  [[nodiscard]] Result<std::int64_t> integer(std::string_view name) const;
  /// "65536", "64KiB", "4M", "1 GiB": K, M, G, T are powers of 1024, with or without "iB"; KB, MB, ... powers
  /// of 1000.
  [[nodiscard]] Result<std::uint64_t> bytes(std::string_view name) const;
  /// "50us", "5s", "1.5 ms", "2min", "1h", "0".
  [[nodiscard]] Result<std::chrono::nanoseconds> duration(std::string_view name) const;
  /// true, yes, on, 1; false, no, off, 0.
  [[nodiscard]] Result<bool> boolean(std::string_view name) const;
  [[nodiscard]] Result<std::string> text(std::string_view name) const;
  /// The parts between commas, trimmed, empty ones left out.
  [[nodiscard]] Result<std::vector<std::string>> list(std::string_view name) const;

  [[nodiscard]] std::span<const OptionRow> rows() const noexcept { return rows_; }
  /// The value as text, and where it came from: what `headrace doctor` prints.
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
