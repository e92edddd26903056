// SPDX-License-Identifier: Apache-2.0
// The command line: help, exit codes, and the streams of the output.
#include "command/command.hpp"

#include <gmock/gmock.h>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class CliHelp : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(CliHelp, TheHelpHasExamplesAndFitsTheTerminal) {
  std::vector<std::string> arguments = GetParam();
  arguments.emplace_back("--help");
  const Outcome outcome = run_command(arguments);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out, HasSubstr("Examples:\n  headrace "));
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  // A value is described by its meaning, not by the parser's name of its type.
  for (const char* word : {"TEXT", "UINT", "FLOAT", ":INT", "BOOLEAN", "{", " in ["})
    EXPECT_THAT(outcome.out, Not(HasSubstr(word))) << outcome.out;
}

INSTANTIATE_TEST_SUITE_P(Commands, CliHelp,
                         testing::Values(std::vector<std::string>{}, std::vector<std::string>{"serve"},
                                         std::vector<std::string>{"pull"}, std::vector<std::string>{"doctor"},
                                         std::vector<std::string>{"plugins"},
                                         std::vector<std::string>{"bench"},
                                         std::vector<std::string>{"bench", "pages"},
                                         std::vector<std::string>{"bench", "coll"}));

TEST(CliUsage, TheVersionIsPrinted) {
  const Outcome outcome = run_command({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, testing::MatchesRegex("headrace [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(CliUsage, AWrongCommandLineIsExitCode2) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"sereve"},
                                             {"serve"},
                                             {"pull", "here:1"},
                                             {"pull", "here:1", "-o", "a.npz", "--no-resume", "--resume"},
                                             {"doctor", "--jsn"},
                                             {"bench", "pages", "--threads", "0"},
                                             {"bench", "pages", "--sequential", "--random"},
                                             {"plugins", "--option", "noequals"},
                                             {"plugins", "--log", "loud"}}) {
    const Outcome outcome = run_command(arguments);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(arguments) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("headrace: ")) << testing::PrintToString(arguments);
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(CliUsage, AWrongWordIsNamedWithTheNearestRightOne) {
  using Words = std::vector<std::string>;
  for (const auto& [arguments, text] : std::vector<std::pair<Words, const char*>>{
           {{}, "name a command: demo, serve, pull, "},
           {{"bench"}, "name a command: pages, coll"},
           {{"doctr"}, "no command `headrace doctr`: did you mean doctor?"},
           {{"export", "mlp.py:build"}, "no command `headrace export`: `python -m headrace.export` makes"},
           {{"bench", "page"}, "no command `headrace bench page`: did you mean pages?"},
           {{"bench", "pages", "--pages", "4K"},
            "`headrace bench pages` has no option --pages: did you mean --page?"},
           {{"doctor", "--optin=a=b"}, "`headrace doctor` has no option --optin: did you mean --option?"}}) {
    EXPECT_THAT(run_command(arguments).err, HasSubstr(text)) << testing::PrintToString(arguments);
  }
}

TEST(CliUsage, AFailureIsExitCode1WithASentenceOnStderr) {
  const Outcome outcome = run_command({"serve", "/nowhere/model.safetensors"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("opening /nowhere/model.safetensors"));
  EXPECT_THAT(outcome.out, IsEmpty());
}

TEST(CliUsage, AnUnknownAgentOptionIsNamed) {
  for (const char* command : {"doctor", "plugins"}) {
    const Outcome outcome = run_command({command, "--option", "tcp.sokets=2"});
    EXPECT_EQ(outcome.code, 1) << command;
    EXPECT_THAT(outcome.err, HasSubstr("did you mean \"sockets\"?")) << command;
    EXPECT_THAT(outcome.out, IsEmpty()) << command;
  }
}

TEST(CliUsage, TheCommandPluginsRefusesAnOptionThatAnAgentRefuses) {
  for (const auto& [option, words] : {std::pair{"runtme_dir=/tmp", "runtime_dir"},
                                      {"tpc.sockets=2", "did you mean tcp?"},
                                      {"inbox_capacity=0", "at least 1"},
                                      {"check=perhaps", "perhaps"},
                                      {"tcp.sockets=many", "many"}}) {
    const Outcome outcome = run_command({"plugins", "--option", option});
    EXPECT_EQ(outcome.code, 1) << option;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  }
}

TEST(CliUsage, ALogLevelForARoomThatDoesNotExistIsRefused) {
  const Outcome outcome = run_command({"plugins", "--log", "warn,tpc=debug"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("\"tpc\" in \"warn,tpc=debug\" is no room: did you mean tcp?"));
  EXPECT_EQ(run_command({"plugins", "--log", "warn,tcp=debug,engine=off,local=info"}).code, 0);
}

TEST(CliUsage, AClosedOutputPipeIsNoError) {
  Command command({"plugins"});
  command.close_output();
  EXPECT_EQ(command.wait(), 0) << command.err;
}

TEST(CliUsage, OutputThatCannotBeWrittenIsAnError) {
  Command command({"-c", "exec \"$0\" plugins > /dev/full", HEADRACE_COMMAND}, "/bin/sh");
  EXPECT_EQ(command.wait(), 1);
  EXPECT_THAT(command.err, HasSubstr("standard output"));
}

}  // namespace
}  // namespace headrace::test
