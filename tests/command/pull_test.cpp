// SPDX-License-Identifier: Apache-2.0
// `headrace serve` and `headrace pull`: the tensors of a file move from one process to others.
#include "command/command.hpp"
#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>

namespace headrace::test {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Json = nlohmann::ordered_json;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content(fs::file_size(path), '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  return content;
}

class CliPull : public testing::Test {
 protected:
  /// `count` tensors of `bytes` random bytes each, and one empty, one scalar and one odd tensor.
  fs::path make_model(std::size_t count, std::size_t bytes) {
    // At the end of the list: an ordered object compares a new key with all that it has.
    Json::object_t header;
    header.emplace_back("__metadata__", Json{{"format", "pt"}});
    std::size_t at = 0;
    const auto add = [&](const std::string& name, const char* dtype, std::vector<std::size_t> shape,
                         std::size_t length) {
      header.emplace_back(name,
                          Json{{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at, at + length}}});
      at += length;
    };
    add("scalar", "F32", {}, 4);
    add("odd", "BOOL", {3, 5, 7}, 105);
    add("empty", "F16", {0, 9}, 0);
    for (std::size_t i = 0; i < count; ++i)
      add("layers." + std::to_string(i) + ".weight", "U8", {bytes}, bytes);
    std::string text = Json(header).dump() + "   ";  // a copy must keep these blanks
    const std::uint64_t length = text.size();
    fs::path path = folder_ / "model.safetensors";
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text;
    std::mt19937_64 random(std::random_device{}());
    std::vector<std::uint64_t> words(at / 8 + 1);
    for (std::uint64_t& word : words) word = random();
    file.write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(at));
    return path;
  }

  /// Serves a file; returns the address.
  std::string serve(Command& server) {
    const std::string line = server.first_line();
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) ADD_FAILURE() << "the server printed \"" << line << "\": " << server.err;
    return json.value("address", "");
  }

  [[nodiscard]] std::string output(const std::string& name = "copy.safetensors") const {
    return folder_ / name;
  }

  /// The number of tensors that an unfinished pull has noted as complete, in lines "<number> <16 digits>".
  [[nodiscard]] std::size_t noted_tensors() const {
    std::ifstream state(output() + ".part.state");
    std::set<std::string> lines;
    for (std::string line; std::getline(state, line) && !state.eof();)
      if (line.find(' ') + 17 == line.size()) lines.insert(line);
    return lines.size();
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

struct Way {
  const char* name;
  const char* backend;
  bool load;
};

class CliPullOver : public CliPull, public testing::WithParamInterface<Way> {};

TEST_P(CliPullOver, TwoPullersAtOnceGetTheFileByteByByte) {
  const fs::path model = make_model(9, 1'000'003);
  Command server({"serve", model, "--json", GetParam().load ? "--load" : "--map"});
  const std::string address = serve(server);
  Command first({"pull", address, "-o", output("1.safetensors"), "--backend", GetParam().backend, "--json"});
  Command second({"pull", address, "-o", output("2.safetensors"), "--backend", GetParam().backend, "--json"});
  ASSERT_EQ(first.wait(), 0) << first.err;
  ASSERT_EQ(second.wait(), 0) << second.err;
  const std::string source = read_file(model);
  EXPECT_TRUE(read_file(output("1.safetensors")) == source);
  EXPECT_TRUE(read_file(output("2.safetensors")) == source);
  for (const std::string* text : {&first.out, &second.out}) {
    const Json report = Json::parse(*text);
    EXPECT_EQ(report.at("tensors"), 12);
    EXPECT_EQ(report.at("bytes"), 9'000'027 + 109);
    EXPECT_EQ(report.at("path"), GetParam().backend);
  }
  EXPECT_THAT(first.err, IsEmpty()) << "a pipe gets no progress bar";
  server.signal(SIGINT);
  EXPECT_EQ(server.wait(), 0) << server.err;
  EXPECT_THAT(server.err, IsEmpty());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3)
      << "partial files are left";
}

INSTANTIATE_TEST_SUITE_P(Paths, CliPullOver,
                         testing::Values(Way{"shm_mapped_file", "shm", false},
                                         Way{"shm_allocated", "shm", true},
                                         Way{"tcp_mapped_file", "tcp", false},
                                         Way{"tcp_allocated", "tcp", true}),
                         [](const auto& chosen) { return chosen.param.name; });

TEST_F(CliPull, TheServerPrintsOneLineWithItsAddress) {
  Command server({"serve", make_model(1, 1'000'000)});
  EXPECT_THAT(
      server.first_line(),
      testing::MatchesRegex("serving 4 tensors, 1\\.0 MB at 127\\.0\\.0\\.1:[0-9]+; stop with Ctrl-C"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err;
}

TEST_F(CliPull, TheLogHasTheLevelOfTheCommandLineOrOfTheEnvironment) {
  const std::string file = make_model(1, 1000);
  const auto said = [&](const std::string& before) {
    Command server({"-c", before + " serve \"$1\" --listen 0.0.0.0:0 --backend tcp", HEADRACE_COMMAND, file},
                   "/bin/sh");
    server.first_line();
    server.signal(SIGTERM);
    server.wait();
    return server.err;
  };
  const auto warning = HasSubstr("without a secret");
  const auto opened = HasSubstr("is open: backends tcp");
  EXPECT_THAT(said("exec \"$0\""), testing::AllOf(warning, Not(opened)));
  EXPECT_THAT(said("exec \"$0\" --log off"), IsEmpty());
  EXPECT_THAT(said("exec \"$0\" --log warn"), testing::AllOf(warning, Not(opened)));
  EXPECT_THAT(said("exec \"$0\" --log info"), testing::AllOf(warning, opened));
  EXPECT_THAT(said("HEADRACE_LOG=off exec \"$0\""), IsEmpty());
  EXPECT_THAT(said("HEADRACE_LOG=info exec \"$0\""), testing::AllOf(warning, opened));
  EXPECT_THAT(said("HEADRACE_LOG=info exec \"$0\" --log off"), IsEmpty()) << "the command line wins";
}

TEST_F(CliPull, ADataPortThatOtherHostsReachIsPrintedAndSaid) {
  const std::string model = make_model(1, 1000);
  const std::string store = "file://" + (folder_ / "store").string();
  fs::create_directory(folder_ / "store");
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{"--store", store}, std::vector<std::string>{"--listen", "0.0.0.0:0"}}) {
    std::vector<std::string> arguments{"serve", model, "--backend", "tcp"};
    arguments.insert(arguments.end(), way.begin(), way.end());
    Command server(arguments);
    const std::string line = server.first_line();
    const std::size_t at = line.find(", data port ");
    ASSERT_NE(at, std::string::npos) << line << server.err;
    const std::string port = line.substr(at + 12, line.find(';') - at - 12);
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait(), 0);
    EXPECT_THAT(server.err, HasSubstr("tcp " + port)) << "the warning names it";
  }
  Command local({"serve", model, "--json", "--backend", "tcp"});
  const Json ports = Json::parse(local.first_line()).at("data_ports");
  ASSERT_EQ(ports.size(), 1U);
  EXPECT_THAT(ports[0].get<std::string>(), testing::StartsWith("127.0.0.1:"));
}

TEST_F(CliPull, PatternsSelectTensorsAndTheMetadataIsKept) {
  Command server({"serve", make_model(12, 1000), "--json"});
  const std::string address = serve(server);
  const Outcome outcome =
      run_command({"pull", address, "layers.1*", "scalar", "-o", output(), "--json", "--explain"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = Json::parse(outcome.out);
  EXPECT_EQ(report.at("tensors"), 4);  // scalar, layers.1, .10, .11
  EXPECT_THAT(report.at("explanation").get<std::string>(), HasSubstr("shm"));
  const std::string file = read_file(output());
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const Json header = Json::parse(file.substr(8, length));
  EXPECT_EQ(header.at("__metadata__").at("format"), "pt");
  EXPECT_EQ(header.size(), 5U);
  const Json offsets = header.at("layers.11.weight").at("data_offsets");
  const std::string source = read_file(folder_ / "model.safetensors");
  EXPECT_TRUE(file.substr(8 + length + offsets[0].get<std::size_t>(), 1000) ==
              source.substr(source.size() - 1000));
}

TEST_F(CliPull, TheTableOfAPullFitsTheTerminal) {
  Command server({"serve", make_model(3, 1000), "--json"});
  const Outcome outcome = run_command({"pull", serve(server), "-o", output(), "--explain"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  for (const char* word : {"tensors", "seconds", "GB/s", "path", "shm"})
    EXPECT_THAT(outcome.out, HasSubstr(word));
}

TEST_F(CliPull, AnArchiveIsPulledIntoAFileAndBack) {
  make_model(2, 4096);
  Command first({"serve", folder_ / "model.safetensors", "--json"});
  ASSERT_EQ(run_command({"pull", serve(first), "-o", output("copy.npz")}).code, 0);
  Command second({"serve", output("copy.npz"), "--json"});
  const Outcome back = run_command({"pull", serve(second), "-o", output("back.safetensors"), "--json"});
  ASSERT_EQ(back.code, 0) << back.err;
  const std::string source = read_file(folder_ / "model.safetensors"),
                    copy = read_file(output("back.safetensors"));
  const std::size_t data = 4 + 105 + 2 * 4096;
  EXPECT_TRUE(source.substr(source.size() - data) == copy.substr(copy.size() - data));
}

TEST_F(CliPull, ThousandsOfSmallTensorsArriveWhole) {
  Command server({"serve", make_model(10'000, 3), "--json"});
  const Outcome outcome = run_command({"pull", serve(server), "-o", output(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out).at("tensors"), 10'003);
  EXPECT_TRUE(read_file(output()) == read_file(folder_ / "model.safetensors"));
}

TEST_F(CliPull, AnExistingOutputIsKeptUnlessForced) {
  const fs::path model = make_model(3, 100'000);
  Command server({"serve", model, "--json"});
  const std::string address = serve(server);
  for (const char* name : {"copy.safetensors", "copy.npz"}) {
    const std::vector<std::string> pull{"pull", address, "-o", output(name), "--json"};
    std::ofstream(output(name)) << "years of work";
    const Outcome refused = run_command(pull);
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err, HasSubstr(name));
    EXPECT_THAT(refused.err, HasSubstr("--force"));
    EXPECT_EQ(read_file(output(name)), "years of work");
    EXPECT_FALSE(fs::exists(output(name) + ".part"));

    std::vector<std::string> forced = pull;
    forced.emplace_back("--force");
    const Outcome replaced = run_command(forced);
    ASSERT_EQ(replaced.code, 0) << replaced.err;
    EXPECT_EQ(Json::parse(replaced.out).at("tensors"), 6);
    const std::string copy = read_file(output(name));

    // If the output already equals the source, the pull succeeds and moves nothing.
    const Outcome again = run_command(pull);
    ASSERT_EQ(again.code, 0) << again.err;
    const Json report = Json::parse(again.out);
    EXPECT_EQ(report.at("tensors"), 0);
    EXPECT_EQ(report.at("kept_tensors"), 6);
    EXPECT_EQ(report.at("kept_bytes"), 300'109);
    EXPECT_TRUE(read_file(output(name)) == copy);
    const Outcome told = run_command({"pull", address, "-o", output(name)});
    EXPECT_EQ(told.code, 0) << told.err;
    EXPECT_THAT(told.out, HasSubstr("Nothing was pulled"));

    // One other byte or another selection makes it a different file.
    {
      std::fstream file(output(name), std::ios::binary | std::ios::in | std::ios::out);
      const auto place = static_cast<std::streamoff>(copy.size() / 2);
      file.seekp(place);
      file.put(static_cast<char>(copy[copy.size() / 2] ^ 1));
    }
    EXPECT_EQ(run_command(pull).code, 1);
    EXPECT_EQ(run_command(forced).code, 0);
    EXPECT_EQ(run_command({"pull", address, "scalar", "-o", output(name)}).code, 1);
    EXPECT_TRUE(read_file(output(name)) == copy);
  }
}

TEST_F(CliPull, AnOutputThatAppearsDuringThePullIsKept) {
  const fs::path model = make_model(40, 2'000'000);
  Command server({"serve", model, "--json"});
  Command pull({"pull", serve(server), "-o", output(), "--backend", "tcp"});
  while (pull.running() && !fs::exists(output() + ".part.state")) {
  }
  pull.signal(SIGSTOP);
  ASSERT_FALSE(fs::exists(output())) << "80 MB were pulled before the stop signal came";
  std::ofstream(output()) << "somebody else's";
  pull.signal(SIGCONT);
  EXPECT_EQ(pull.wait(), 1);
  EXPECT_THAT(pull.err, HasSubstr("another process has made"));
  EXPECT_EQ(read_file(output()), "somebody else's");
  fs::remove(output());
  const Outcome rest = run_command({"pull", serve(server), "-o", output(), "--json"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(Json::parse(rest.out).at("kept_tensors"), 43);
}

TEST_F(CliPull, TheServedTensorsAreListed) {
  Command server({"serve", make_model(3, 1000), "--json", "--name", "granary"});
  const std::string address = serve(server);
  const Outcome json = run_command({"pull", address, "--list", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json list = Json::parse(json.out);
  EXPECT_EQ(list.at("peer"), "granary");
  EXPECT_EQ(list.at("bytes"), 3109);
  ASSERT_EQ(list.at("tensors").size(), 6U);
  EXPECT_EQ(list.at("tensors")[1].dump(), R"({"name":"odd","dtype":"BOOL","shape":[3,5,7],"bytes":105})");
  EXPECT_EQ(list.at("tensors")[0].at("shape"), Json::array());

  const Outcome text = run_command({"pull", address, "--list"});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* word :
       {"dtype", "layers.2.weight", "BOOL", "[3, 5, 7]", "105", "6 tensors, 3.1 kB, served by granary"})
    EXPECT_THAT(text.out, HasSubstr(word));
  EXPECT_LE(widest_line(text.out), 120U);

  const Outcome chosen = run_command({"pull", address, "layers.*", "--list", "--json"});
  EXPECT_EQ(Json::parse(chosen.out).at("tensors").size(), 3U);
  EXPECT_EQ(run_command({"pull", address, "nothing*", "--list"}).code, 1);
}

TEST_F(CliPull, AnUnknownNameIsRefusedWithSimilarNames) {
  Command server({"serve", make_model(3, 1000), "--json"});
  const Outcome outcome = run_command({"pull", serve(server), "layers.1.wieght", "-o", output()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("layers.1.weight"));
  EXPECT_FALSE(fs::exists(output() + ".part"));
}

TEST_F(CliPull, AnAddressWithoutAServerIsAnErrorThatNamesIt) {
  const Outcome outcome = run_command({"pull", "127.0.0.1:1", "-o", output(), "--timeout", "2"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1"));
}

TEST_F(CliPull, ANameWithoutAStoreIsRefusedWithTheOptionThatFindsIt) {
  const Outcome refused = run_command({"pull", "llama", "--list"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("to find a server by its name, give the store with --store"));
}

TEST_F(CliPull, ATensorWithAWrongChecksumIsNamedAndTheRestIsKept) {
  const fs::path model = make_model(6, 100'000);
  const std::string source = read_file(model);
  Command server({"serve", model, "--json"});
  const std::string address = serve(server);
  // The file is changed while it is served: the checksum of its last tensor is wrong now.
  const auto write_last_byte = [&](char byte) {
    std::fstream file(model, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put(byte);
  };
  write_last_byte(static_cast<char>(source.back() ^ 1));
  const Outcome wrong = run_command({"pull", address, "-o", output(), "--json"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("layers.5.weight"));
  EXPECT_THAT(wrong.err, HasSubstr("checksum"));
  EXPECT_FALSE(fs::exists(output()));

  write_last_byte(source.back());
  const Outcome right = run_command({"pull", address, "-o", output(), "--json"});
  ASSERT_EQ(right.code, 0) << right.err;
  const Json report = Json::parse(right.out);
  EXPECT_EQ(report.at("tensors"), 1);
  EXPECT_EQ(report.at("kept_tensors"), 8);
  EXPECT_TRUE(read_file(output()) == source);
}

TEST_F(CliPull, ADamagedTensorThatWasNotedAsCompleteIsFetchedAgain) {
  const fs::path model = make_model(4, 100'000);
  const std::string source = read_file(model);
  Command server({"serve", model, "--json"});
  const std::string address = serve(server);
  std::fstream file(model, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(source.back() ^ 1)).flush();
  ASSERT_EQ(run_command({"pull", address, "-o", output()}).code, 1);
  file.seekp(-1, std::ios::end);
  file.put(source.back()).flush();
  {
    // As after a power failure: the note reached the disk, the data did not.
    std::fstream part(output() + ".part", std::ios::binary | std::ios::in | std::ios::out);
    part.seekp(static_cast<std::streamoff>(source.size()) - 400'000);
    part.put(static_cast<char>(source[source.size() - 400'000] ^ 1));
  }
  const Outcome outcome = run_command({"pull", address, "-o", output(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out).at("tensors"), 2);
  EXPECT_TRUE(read_file(output()) == source);
}

TEST_F(CliPull, APullThatIsKilledSeveralTimesCompletesTheFile) {
  const fs::path model = make_model(64, 500'000);
  Command server({"serve", model, "--json"});
  const std::string address = serve(server);
  std::mt19937 random(std::random_device{}());
  // Some pulls are killed before they have a part file, some after they have noted a number of tensors. A
  // pull that finishes first does not count: the next one begins anew. The last kill leaves complete tensors.
  int kills = 0;
  for (int pulls = 0; kills < 10 || noted_tensors() == 0; ++pulls) {
    ASSERT_LT(pulls, 60) << kills << " pulls were killed, the others had finished before";
    Command pull({"pull", address, "-o", output(), "--backend", pulls % 2 == 0 ? "tcp" : "shm"});
    const std::size_t enough = noted_tensors() + random() % 8;
    while (pull.running() && noted_tensors() < enough) {
    }
    pull.signal(SIGKILL);
    const int end = pull.wait();
    ASSERT_THAT(end, AnyOf(0, -SIGKILL)) << pull.err;
    if (end == 0)
      fs::remove(output());
    else
      ++kills;
  }
  const std::size_t noted = noted_tensors();
  const Outcome last = run_command({"pull", address, "-o", output(), "--json"});
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_GE(Json::parse(last.out).at("kept_tensors"), noted);
  EXPECT_TRUE(read_file(output()) == read_file(model));
}

TEST_F(CliPull, AServerThatDiesDuringAPullIsNamedAndCompleteTensorsAreKept) {
  const fs::path model = make_model(100, 2'000'000);
  for (int attempt = 0; attempt < 10; ++attempt) {
    Command server({"serve", model, "--json", "--name", "granary"});
    Command pull({"pull", serve(server), "-o", output(), "--no-resume", "--backend", "tcp"});
    // The pull is stopped when it has the first tensors, so that the server is dead before the last one
    // moves.
    std::error_code none;
    while (pull.running()) {
      if (fs::file_size(output() + ".part.state", none) > 100 && !none) break;
    }
    pull.signal(SIGSTOP);
    server.signal(SIGKILL);
    EXPECT_EQ(server.wait(), -SIGKILL);
    pull.signal(SIGCONT);
    if (pull.wait() == 0) {  // the pull had finished before it was stopped
      fs::remove(output());
      continue;
    }
    EXPECT_THAT(pull.err, HasSubstr("granary"));
    EXPECT_THAT(pull.err, HasSubstr("Complete tensors are kept"));
    Command again({"serve", model, "--json", "--name", "granary"});
    const Outcome rest = run_command({"pull", serve(again), "-o", output(), "--json"});
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_GT(Json::parse(rest.out).at("kept_tensors"), 0);
    EXPECT_TRUE(read_file(output()) == read_file(model));
    return;
  }
  FAIL() << "ten pulls finished before their server was killed";
}

TEST_F(CliPull, AServerIsFoundByNameInAStore) {
  const std::string store = "file://" + (folder_ / "store").string();
  fs::create_directory(folder_ / "store");
  Command server({"serve", make_model(2, 1000), "--json", "--name", "granary", "--store", store});
  serve(server);
  const Outcome outcome = run_command({"pull", "granary", "--store", store, "-o", output()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(read_file(output()) == read_file(folder_ / "model.safetensors"));
}

TEST_F(CliPull, AServerThatMayOpenFewFilesSaysSo) {
  const std::string model = make_model(1, 1000);
  Command server({"-c", "ulimit -n 60 && exec \"$0\" serve \"$1\" --backend tcp", HEADRACE_COMMAND, model},
                 "/bin/sh");
  server.first_line();
  server.signal(SIGTERM);
  server.wait();
  EXPECT_THAT(server.err, HasSubstr("this process may open 60 files")) << server.out;
}

TEST_F(CliPull, APullThatWaitsSaysSo) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof place;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&place), length), 0);
  ASSERT_EQ(::listen(silent, 1), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&place), &length), 0);
  Command pull({"pull", "127.0.0.1:" + std::to_string(ntohs(place.sin_port)), "--list"});
  EXPECT_TRUE(pull.complains("waiting, for 30 s at most (--timeout)")) << pull.err;
  ::close(silent);
}

TEST_F(CliPull, AServerWhoseNameAnotherTakesSaysSo) {
  const std::string model = make_model(1, 1000), store = "file://" + (folder_ / "store").string();
  fs::create_directory(folder_ / "store");
  Command first({"serve", model, "--json", "--name", "granary", "--store", store});
  serve(first);
  Command second({"serve", model, "--json", "--name", "granary", "--store", store});
  serve(second);
  EXPECT_TRUE(first.complains("another agent has published itself as granary")) << first.err;
  EXPECT_THAT(second.err, Not(HasSubstr("another agent")));
}

TEST_F(CliPull, FilesThatAreNoTensorFilesAreRefused) {
  std::ofstream(folder_ / "bad.safetensors") << "certainly not a header";
  std::ofstream(folder_ / "bad.npz") << "certainly not an archive";
  std::ofstream(folder_ / "bad.txt") << "text";
  std::ofstream(folder_ / "none.safetensors") << std::string("\x02\0\0\0\0\0\0\0{}", 10);
  for (const char* name : {"bad.safetensors", "bad.npz", "bad.txt", "none.safetensors"}) {
    const Outcome outcome = run_command({"serve", folder_ / name});
    EXPECT_EQ(outcome.code, 1) << name;
    EXPECT_THAT(outcome.err, HasSubstr(name));
  }
  EXPECT_EQ(run_command({"pull", "127.0.0.1:1", "-o", output("copy.bin")}).code, 1);
}

TEST_F(CliPull, ATypeThatNumpyLacksIsNotPulledIntoAnArchive) {
  const fs::path path = folder_ / "bf16.safetensors";
  const std::string header = R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  const std::uint64_t length = header.size();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&length), 8) << header << "abcd";
  Command server({"serve", path, "--json"});
  const Outcome outcome = run_command({"pull", serve(server), "-o", output("w.npz")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("BF16"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("continues")));
}

}  // namespace
}  // namespace headrace::test
