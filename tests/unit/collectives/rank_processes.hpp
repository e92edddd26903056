// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator as processes: the test program starts itself again for each. process_test.cpp
// has its main function.
#pragma once

#include "ranks.hpp"

#include "support/temporary_folder.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace headrace::test {

/// Whether a program of ranks is one of survivors_test.cpp, and its main function: NAME RANK SIZE FOLDER.
bool is_faulty_program(const std::string& program);
int run_faulty_rank(char** words);
/// The same for p2p_test.cpp.
bool is_p2p_program(const std::string& program);
int run_p2p_rank(char** words);
/// The same for oneccl_test.cpp.
bool is_oneccl_program(const std::string& program);
int run_oneccl_rank(char** words);

template <class T>
std::string text_of(const Result<T>& result) {
  return result.ok() ? "ok" : std::string(code_name(result.code())) + ": " + result.error().message;
}

inline std::string work_through(Comm& comm) {
  for (const std::size_t count : {1UL, 1000UL, 1'000'000UL}) {
    std::vector<float> data(count, static_cast<float>(comm.rank() + 1));
    if (const auto done = comm.all_reduce(data, ReduceOp::sum); !done.ok()) return text_of(done);
    const int all_ranks = comm.size() * (comm.size() + 1) / 2;
    for (const float element : data)
      if (element != static_cast<float>(all_ranks)) return "a wrong sum";
    std::vector<float> got(count);
    MessageOptions async;
    async.async = true;
    const auto sent = comm.send(data, (comm.rank() + 1) % comm.size(), async);
    if (const auto done = comm.recv(got, any_source); !done.ok()) return text_of(done);
    if (!sent.ok() || !sent->wait().ok() || got != data) return "a wrong message";
  }
  return "all right";
}

class RankProcesses {
 public:
  RankProcesses(const std::string& program, int size) : pids_(static_cast<std::size_t>(size)) {
    std::filesystem::create_directory(folder_.path() + "/store");
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) start(rank, program);
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Starts a rank that is not there, or has ended.
  void start(std::size_t rank, const std::string& program) {
    std::vector<std::string> words{
        "/proc/self/exe", "--rank", program, std::to_string(rank), std::to_string(pids_.size()),
        folder_.path()};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pids_[rank] = ::vfork();  // NOLINT(bugprone-unsafe-functions): the child only executes a program
    if (pids_[rank] == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  /// The signal that ends a rank.
  int signal_of(std::size_t rank) {
    int status = 0;
    EXPECT_EQ(::waitpid(pids_[rank], &status, 0), pids_[rank]);
    pids_[rank] = 0;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  /// Waits until a rank has stopped, and lets it go on after a time.
  void resume(std::size_t rank, std::chrono::milliseconds after) {
    int status = 0;
    EXPECT_EQ(::waitpid(pids_[rank], &status, WUNTRACED), pids_[rank]);
    EXPECT_TRUE(WIFSTOPPED(status));
    std::this_thread::sleep_for(after);
    ::kill(pids_[rank], SIGCONT);
  }
  /// Waits for the end of a rank, and returns its line.
  std::string line_of(std::size_t rank) {
    int status = 0;
    EXPECT_EQ(::waitpid(pids_[rank], &status, 0), pids_[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": " << status;
    pids_[rank] = 0;
    return text_of_file(std::to_string(rank));
  }
  /// What a rank has written into another file of the folder.
  [[nodiscard]] std::string text_of_file(const std::string& name) const {
    std::ifstream file(folder_.path() + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  const TemporaryFolder folder_;
  std::vector<pid_t> pids_;
};

}  // namespace headrace::test
