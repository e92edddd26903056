// SPDX-License-Identifier: Apache-2.0
// `headrace plugins` and `headrace doctor`.
#include "command/command.hpp"
#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using PlainJson = nlohmann::json;

PlainJson find(const PlainJson& list, const std::string& name) {
  for (const PlainJson& entry : list)
    if (entry.at("name") == name) return entry;
  ADD_FAILURE() << "no " << name << " in " << list.dump();
  return PlainJson::object();
}

TEST(CliPlugins, TheListShowsTheAbilitiesAndOptionsOfEachBackend) {
  const Outcome outcome = run_command({"plugins", "--json", "--option", "tcp.sockets=3"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const PlainJson backends = PlainJson::parse(outcome.out).at("backends");
  const PlainJson shm = find(backends, "shm"), tcp = find(backends, "tcp");
  EXPECT_EQ(shm.at("loaded"), true);
  EXPECT_EQ(shm.at("mapping"), true);
  EXPECT_EQ(shm.at("kinds").at(0), "dram");
  EXPECT_EQ(tcp.at("remote"), true);
  EXPECT_EQ(tcp.at("mapping"), false);
  // Only the kinds that this machine has, of those that the plugin supports.
  if (!std::filesystem::exists("/dev/nvidiactl")) {
    EXPECT_EQ(tcp.at("kinds"), PlainJson({"dram"}));
  }
  EXPECT_EQ(find(backends, "posix").at("kinds"), PlainJson({"dram", "file"}));
  const PlainJson sockets = find(tcp.at("options"), "tcp.sockets");
  EXPECT_EQ(sockets.at("value"), "3");
  EXPECT_EQ(sockets.at("source"), "caller");
}

TEST(CliPlugins, TheTextFitsTheTerminalAndNamesEveryBackend) {
  const Outcome outcome = run_command({"plugins"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("shm"));
  EXPECT_THAT(outcome.out, HasSubstr("tcp.sockets"));
}

TEST(CliPlugins, TheFakeBackendIsShownOnlyIfAnOptionNamesIt) {
  for (const char* command : {"plugins", "doctor"}) {
    EXPECT_THAT(run_command({command}).out, testing::Not(HasSubstr("fake"))) << command;
    EXPECT_THAT(run_command({command, "--option", "backends=shm,tcp,fake"}).out,
                HasSubstr("fake.queue_depth"))
        << command;
  }
}

TEST(CliPlugins, ARefusedPluginIsListedWithItsRefusal) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("headrace-cli-plugins-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "headrace_backend_broken.so") << "this is no shared object";
  const Outcome json = run_command({"plugins", "--json", "--option", "plugin_path=" + folder.string()});
  const Outcome text = run_command({"plugins", "--option", "plugin_path=" + folder.string()});
  std::filesystem::remove_all(folder);
  ASSERT_EQ(json.code, 0) << json.err;
  const PlainJson broken = find(PlainJson::parse(json.out).at("backends"), "broken");
  EXPECT_EQ(broken.at("loaded"), false);
  EXPECT_NE(broken.at("refusal"), "");
  EXPECT_THAT(text.out, HasSubstr("refused"));
  EXPECT_THAT(text.out, HasSubstr("broken"));
  EXPECT_LE(widest_line(text.out), 120U) << text.out;
}

TEST(CliDoctor, TheCollectivesReportNamesEveryBackendAndTheLaunchersVariables) {
  Command command({"RANK=1", "WORLD_SIZE=3", HEADRACE_COMMAND, "doctor", "--collectives", "--json"},
                  "/usr/bin/env");
  ASSERT_EQ(command.wait(), 0) << command.err;
  const PlainJson report = PlainJson::parse(command.out);
  EXPECT_EQ(report.at("works"), true);
  const PlainJson host = find(report.at("comm_backends"), "host");
  EXPECT_EQ(host.at("usable"), true);
  EXPECT_EQ(host.at("devices"), PlainJson({"cpu"}));
  const PlainJson nccl = find(report.at("comm_backends"), "nccl");
  if (!nccl.at("usable")) {
    EXPECT_NE(nccl.at("refusal"), "");
  }
  EXPECT_EQ(find(report.at("findings"), "rank: torchrun").at("value"), "RANK=1, WORLD_SIZE=3");
  EXPECT_THAT(find(report.at("findings"), "rank").at("value").get<std::string>(),
              testing::HasSubstr("rank 1 of 3"));
  EXPECT_NE(find(report.at("findings"), "torch").at("value"), "");
  EXPECT_EQ(find(report.at("options"), "comm.trace").at("source"), "default");
}

TEST(CliDoctor, TheCollectivesTableFitsTheTerminal) {
  const Outcome outcome = run_command({"doctor", "--collectives"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  for (const char* text : {"a communicator", "backend host", "backend nccl", "torch", "rank", "comm.trace"})
    EXPECT_THAT(outcome.out, testing::HasSubstr(text));
}

TEST(CliDoctor, ABrokenLibraryOfABackendIsListedWithItsRefusal) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/libheadrace_comm_broken.so") << "this is no shared object";
  Command command(
      {"HEADRACE_PLUGIN_PATH=" + folder.path(), HEADRACE_COMMAND, "doctor", "--collectives", "--json"},
      "/usr/bin/env");
  ASSERT_EQ(command.wait(), 0) << command.err;
  const PlainJson broken = find(PlainJson::parse(command.out).at("comm_backends"), "broken");
  EXPECT_EQ(broken.at("usable"), false);
  EXPECT_THAT(broken.at("refusal").get<std::string>(),
              testing::HasSubstr("libheadrace_comm_broken.so refused"));
}

TEST(CliDoctor, TheReportSaysThatTheCoreWorksAndDescribesTheMachine) {
  const Outcome outcome = run_command({"doctor", "--json", "--option", "tcp.sockets=3"});
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const PlainJson report = PlainJson::parse(outcome.out);
  EXPECT_EQ(report.at("works"), true);
  const PlainJson& findings = report.at("findings");
  for (const char* name :
       {"kernel", "CPUs", "NUMA", "GPUs", "cross-memory attach", "shared memory", "huge pages",
        "locked memory", "runtime folder", "topology", "interfaces", "RDMA devices", "fabric", "libcurl",
        "etcd", "backend shm", "backend tcp", "an agent"})
    EXPECT_NE(find(findings, name).value("value", ""), "") << name;
  EXPECT_EQ(find(findings, "an agent").at("state"), "ok");
  for (const PlainJson& finding : findings) {
    const auto state = finding.at("state").get<std::string>();
    EXPECT_THAT(state, testing::AnyOf("ok", "note", "warning", "bad"));
    if (state == "warning" || state == "bad") {
      EXPECT_NE(finding.at("advice"), "") << finding.dump();
    }
  }
  EXPECT_EQ(find(report.at("options"), "tcp.sockets").at("source"), "caller");
  const PlainJson& fabric = report.at("fabric");
  ASSERT_FALSE(fabric.at("groups").empty());
  for (const PlainJson& group : fabric.at("groups")) EXPECT_FALSE(group.at("cpus").empty()) << group.dump();
  EXPECT_EQ(find(fabric.at("providers"), "ucx").at("usable"), false);
}

TEST(CliDoctor, AMissingSecretIsSaidAndARequiredOneIsAskedFor) {
  const auto secret = [](const std::vector<std::string>& arguments) {
    return find(PlainJson::parse(run_command(arguments).out).at("findings"), "secret");
  };
  const PlainJson none = secret({"doctor", "--json"});
  EXPECT_EQ(none.at("state"), "warning");
  EXPECT_THAT(none.at("advice").get<std::string>(), HasSubstr("auth_token_file"));
  EXPECT_THAT(none.at("value").get<std::string>(), HasSubstr("the data port of tcp is on every interface"));
  EXPECT_EQ(secret({"doctor", "--json", "--option", "tcp.listen=127.0.0.1:0"}).at("state"), "ok");
  const Outcome set = run_command({"doctor", "--json", "--option", "auth_token=hunter2"});
  EXPECT_EQ(find(PlainJson::parse(set.out).at("findings"), "secret").at("state"), "ok");
  EXPECT_EQ(set.out.find("hunter2"), std::string::npos);
  const Outcome required = run_command({"--require-auth", "doctor"});
  EXPECT_EQ(required.code, 1);
  EXPECT_THAT(required.err, HasSubstr("option auth is \"required\""));
}

TEST(CliDoctor, ASecretThatOtherUsersCanReadIsSaid) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/secret";
  std::ofstream(file) << "open sesame\n";
  const auto state = [&] {
    const Outcome outcome = run_command({"doctor", "--json", "--option", "auth_token_file=" + file});
    return find(PlainJson::parse(outcome.out).at("findings"), "secret");
  };
  ::chmod(file.c_str(), 0640);
  EXPECT_EQ(state().at("state"), "warning");
  EXPECT_THAT(state().at("advice").get<std::string>(), HasSubstr("chmod 600 " + file));
  ::chmod(file.c_str(), 0600);
  EXPECT_EQ(state().at("state"), "ok");
}

TEST(CliDoctor, TheReportFitsTheTerminal) {
  const Outcome outcome = run_command({"doctor"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("Headrace works here."));
}

TEST(CliDoctor, ThePathOfEachPairOfMemoriesIsTried) {
  const Outcome outcome = run_command({"doctor", "--paths", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const PlainJson paths = PlainJson::parse(outcome.out).at("paths");
  EXPECT_GE(paths.size(), 4U);
  for (const PlainJson& path : paths) {
    if (path.at("here") == "vram" || path.at("there") == "vram") continue;
    EXPECT_EQ(path.at("path"), "shm") << path.dump();
    EXPECT_GT(path.at("gb_per_second").get<double>(), 0);
    EXPECT_GT(path.at("page_us").get<double>(), 0);
    EXPECT_THAT(path.at("explanation").get<std::string>(), HasSubstr("256 pages"));
  }
}

TEST(CliDoctor, TheListOfPathsFitsTheTerminal) {
  const Outcome outcome = run_command({"doctor", "--paths", "--option", "shm.map=off"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("dram from allocate"));
}

TEST(CliDoctor, AnImpossibleRuntimeFolderIsBadAndTheExitCodeIs1) {
  const Outcome outcome =
      run_command({"doctor", "--json", "--option", "runtime_dir=/proc/headrace-cannot-be"});
  EXPECT_EQ(outcome.code, 1);
  const PlainJson report = PlainJson::parse(outcome.out);
  EXPECT_EQ(report.at("works"), false);
  EXPECT_EQ(find(report.at("findings"), "runtime folder").at("state"), "bad");
  EXPECT_THAT(find(report.at("findings"), "an agent").at("value").get<std::string>(),
              HasSubstr("/proc/headrace-cannot-be"));
}

TEST(CliPlugins, WithoutARuntimeFolderEachBackendIsListedWithItsRefusal) {
  const Outcome outcome =
      run_command({"plugins", "--json", "--option", "runtime_dir=/proc/headrace-cannot-be"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const PlainJson tcp = find(PlainJson::parse(outcome.out).at("backends"), "tcp");
  EXPECT_EQ(tcp.at("loaded"), true);
  EXPECT_THAT(tcp.at("refusal").get<std::string>(), HasSubstr("/proc/headrace-cannot-be"));
}

}  // namespace
}  // namespace headrace::test
