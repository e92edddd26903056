// SPDX-License-Identifier: Apache-2.0
#include "base/options.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr OptionRow rows[] = {
    {"log", "warn", "text", "what is said"},
    {"tcp.sockets", "2", "count", "sockets to each peer"},
    {"tcp.window", "4MiB", "bytes", "bytes in flight on a socket"},
    {"poll-time", "50us", "duration", "how long to spin"},
    {"check", "no", "boolean", "look for overlaps"},
    {"plugins", "", "list", "directories"},
};

/// Sources that read nothing of the real process.
OptionSources isolated() {
  OptionSources sources;
  sources.environment = [](const std::string&) -> std::optional<std::string> { return std::nullopt; };
  return sources;
}

class ConfigFile {
 public:
  explicit ConfigFile(std::string_view text) {
    std::string name = "/tmp/headrace-options-XXXXXX";
    const int fd = ::mkstemp(name.data());
    ::close(fd);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Options, TheDefaultsHoldWithoutAnySource) {
  const Options options = Options::resolve(rows, isolated()).value();
  EXPECT_EQ(options.integer("tcp.sockets").value(), 2);
  EXPECT_EQ(options.bytes("tcp.window").value(), 4U << 20);
  EXPECT_EQ(options.duration("poll-time").value(), 50us);
  EXPECT_FALSE(options.boolean("check").value());
  EXPECT_TRUE(options.list("plugins").value().empty());
  EXPECT_EQ(options.value("log").value().where, "default");
}

TEST(Options, TheCallerOverridesTheEnvironmentThenTheFileThenTheDefault) {
  const ConfigFile file("log = \"info\"\ncheck = true\n[tcp]\nsockets = 3\nwindow = \"1MiB\"\n");
  OptionSources sources = isolated();
  sources.config_file = file.path();
  sources.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "HEADRACE_TCP_SOCKETS") return "5";
    if (name == "HEADRACE_TCP_WINDOW") return "2MiB";
    if (name == "HEADRACE_POLL_TIME") return "7ms";
    return std::nullopt;
  };
  sources.given = {{"tcp.sockets", "7"}};
  const Options options = Options::resolve(rows, sources).value();
  EXPECT_EQ(options.integer("tcp.sockets").value(), 7);
  EXPECT_EQ(options.bytes("tcp.window").value(), 2U << 20);
  EXPECT_EQ(options.duration("poll-time").value(), 7ms);
  EXPECT_EQ(options.text("log").value(), "info");
  EXPECT_TRUE(options.boolean("check").value());

  EXPECT_EQ(options.value("tcp.sockets").value().where, "the caller");
  EXPECT_EQ(options.value("tcp.window").value().where, "HEADRACE_TCP_WINDOW");
  EXPECT_EQ(options.value("log").value().where, file.path() + ":1");
  EXPECT_EQ(options.value("log").value().origin, OptionOrigin::file);
  EXPECT_EQ(options.value("plugins").value().origin, OptionOrigin::standard);
}

TEST(Options, TheEnvironmentOfTheProcessIsReadWhenNoSourceIsGiven) {
  ::setenv("HEADRACE_TCP_SOCKETS", "11", 1);
  const auto options = Options::resolve(rows);
  ::unsetenv("HEADRACE_TCP_SOCKETS");
  EXPECT_EQ(options->integer("tcp.sockets").value(), 11);
}

TEST(Options, TheEnvironmentVariableNamesTheFile) {
  const ConfigFile file("log = 'debug'\nplugins = ['/a', '/b']\n");
  OptionSources sources;
  sources.environment = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "HEADRACE_CONFIG") return file.path();
    return std::nullopt;
  };
  const Options options = Options::resolve(rows, sources).value();
  EXPECT_EQ(options.text("log").value(), "debug");
  EXPECT_EQ(options.list("plugins").value(), (std::vector<std::string>{"/a", "/b"}));
}

TEST(Options, AnUnknownNameFromTheCallerIsRefusedWithTheNearestName) {
  OptionSources sources = isolated();
  sources.given = {{"tcp.soket", "7"}};
  EXPECT_EQ(Options::resolve(rows, sources).error().message,
            "no option \"tcp.soket\" (given by the caller): did you mean \"tcp.sockets\"?");
}

TEST(Options, AnUnknownNameInTheFileIsRefusedWithItsLine) {
  const ConfigFile file("\n[tcp]\nwindows = 4\n");
  OptionSources sources = isolated();
  sources.config_file = file.path();
  EXPECT_EQ(Options::resolve(rows, sources).error().message,
            "no option \"tcp.windows\" (" + file.path() + ":3): did you mean \"tcp.window\"?");
}

TEST(Options, ABackendReadsItsOwnTableAndTheCoreIgnoresIt) {
  static constexpr OptionRow backend_rows[] = {{"sockets", "2", "count", "sockets to each peer"}};
  static constexpr OptionRow core_rows[] = {{"log", "warn", "text", "what is said"}};
  const ConfigFile file("log = 'info'\n[tcp]\nsockets = 6\n[shm]\nthreads = 1\n");
  OptionSources backend = isolated();
  backend.config_file = file.path();
  backend.scope = "tcp";
  EXPECT_EQ(Options::resolve(backend_rows, backend)->integer("sockets").value(), 6);
  backend.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "HEADRACE_TCP_SOCKETS") return "x";
    return std::nullopt;
  };
  EXPECT_EQ(Options::resolve(backend_rows, backend)->integer("sockets").error().message,
            "option tcp.sockets (from HEADRACE_TCP_SOCKETS): \"x\" is not a whole number");

  OptionSources core = isolated();
  core.config_file = file.path();
  EXPECT_EQ(Options::resolve(core_rows, core).code(), Code::invalid_argument);
  core.other_tables = {"tcp", "shm"};
  EXPECT_EQ(Options::resolve(core_rows, core)->text("log").value(), "info");
}

TEST(Options, AMissingOrBrokenFileIsAnErrorThatNamesTheFile) {
  OptionSources sources = isolated();
  sources.config_file = "/nonexistent/headrace.toml";
  const auto missing = Options::resolve(rows, sources);
  EXPECT_EQ(missing.code(), Code::not_found);
  EXPECT_NE(missing.error().message.find("/nonexistent/headrace.toml"), std::string::npos);
  const ConfigFile broken("log = \n");
  sources.config_file = broken.path();
  const auto refused = Options::resolve(rows, sources);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.error().message.find(broken.path() + ":1: not TOML"), std::string::npos)
      << refused.error().message;
  const ConfigFile dated("log = 1979-05-27\n");
  sources.config_file = dated.path();
  EXPECT_EQ(Options::resolve(rows, sources).code(), Code::invalid_argument);
}

TEST(Options, AnOptionThatIsNotInTheTableIsRefusedWithTheNearestName) {
  const Options options = Options::resolve(rows, isolated()).value();
  EXPECT_EQ(options.integer("tcp.socket").error().message,
            "no option \"tcp.socket\" (asked for by the program): did you mean \"tcp.sockets\"?");
}

TEST(Options, AValueOfTheWrongKindIsRefusedWithItsSource) {
  OptionSources sources = isolated();
  sources.given = {
      {"tcp.sockets", "two"}, {"tcp.window", "4 furlongs"}, {"poll-time", "50"}, {"check", "maybe"}};
  const Options options = Options::resolve(rows, sources).value();
  EXPECT_EQ(options.integer("tcp.sockets").error().message,
            "option tcp.sockets (from the caller): \"two\" is not a whole number");
  EXPECT_EQ(
      options.bytes("tcp.window").error().message,
      "option tcp.window (from the caller): \"4 furlongs\" is not a number of bytes: write for example 4096, "
      "64KiB or 4M");
  EXPECT_EQ(options.duration("poll-time").code(), Code::invalid_argument);
  EXPECT_EQ(options.boolean("check").code(), Code::invalid_argument);
}

TEST(Options, ANumberOfBytesTakesBinaryAndDecimalSuffixes) {
  EXPECT_EQ(parse_bytes("0").value(), 0U);
  EXPECT_EQ(parse_bytes(" 64 KiB ").value(), 65536U);
  EXPECT_EQ(parse_bytes("64K").value(), 65536U);
  EXPECT_EQ(parse_bytes("64kB").value(), 64000U);
  EXPECT_EQ(parse_bytes("1.5GiB").value(), 1610612736U);
  EXPECT_EQ(parse_bytes("18446744073709551615").value(), ~std::uint64_t{0});
  for (const char* wrong :
       {"", "-1", "K", "1.2.3K", "64kib", "18446744073709551616", "16777216T", "1e3", "0x10"}) {
    EXPECT_EQ(parse_bytes(wrong).code(), Code::invalid_argument) << wrong;
  }
}

TEST(Options, ADurationNeedsAUnitUnlessItIsZero) {
  EXPECT_EQ(parse_duration("0").value(), 0ns);
  EXPECT_EQ(parse_duration("50us").value(), 50us);
  EXPECT_EQ(parse_duration("1.5 ms").value(), 1500us);
  EXPECT_EQ(parse_duration("2min").value(), 120s);
  EXPECT_EQ(parse_duration("1h").value(), 1h);
  for (const char* wrong : {"", "5", "-5s", "5 sec", "9223372036854775808ns", "99999999999h"}) {
    EXPECT_EQ(parse_duration(wrong).code(), Code::invalid_argument) << wrong;
  }
}

}  // namespace
}  // namespace headrace
