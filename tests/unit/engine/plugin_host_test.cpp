// SPDX-License-Identifier: Apache-2.0
#include "engine/plugin_host.hpp"

#include "base/unique_fd.hpp"
#include "engine/plugin_trial.hpp"
#include "engine/verdict_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace headrace::engine {
namespace {

namespace fs = std::filesystem;

class PluginHostTest : public ::testing::Test {
 protected:
  PluginHostTest() : folder_(fs::temp_directory_path() / ("headrace-plugins-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~PluginHostTest() override {
    ::signal(SIGCHLD, SIG_DFL);
    fs::remove_all(folder_);
  }

  PluginPaths paths() const {
    PluginPaths p = default_plugin_paths({HEADRACE_TEST_BIN_DIR "/plugins"});
    p.cache_folder = (folder_ / "cache").string();
    return p;
  }
  std::string refusal(const std::string& name) {
    PluginHost host(paths(), Log(logger_, "plugins"));
    const FoundBackend found = host.find(name);
    EXPECT_EQ(found.table, nullptr) << name;
    return found.refusal;
  }
  /// As for a plugin that this process has not loaded, and nothing is remembered of.
  Result<void> trial_of_sound(const std::string& program) const {
    return try_in_child(HEADRACE_TEST_BIN_DIR "/plugins/headrace_backend_sound.so", program,
                        VerdictFolder::open(paths().cache_folder).value());
  }
  static bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  Logger logger_;
  fs::path folder_;
};

TEST_F(PluginHostTest, the_verdict_on_a_sound_plugin_is_stored) {
  const Result<void> tried = trial_of_sound(paths().probe_program);
  ASSERT_TRUE(tried.ok()) << tried.error().message;
  const auto verdicts = std::distance(fs::directory_iterator(folder_ / "cache"), fs::directory_iterator());
  EXPECT_EQ(verdicts, 1);
  EXPECT_TRUE(trial_of_sound("/nonexistent").ok())
      << "the verdict is stored under a hash of the file, so there is no second trial";
  fs::remove_all(folder_ / "cache");
  EXPECT_FALSE(trial_of_sound("/nonexistent").ok());
}

TEST_F(PluginHostTest, a_plugin_that_this_process_has_loaded_needs_no_trial) {
  PluginHost host(paths(), Log(logger_, "plugins"));
  const FoundBackend found = host.find("sound");
  ASSERT_NE(found.table, nullptr) << found.refusal;
  EXPECT_STREQ(found.table->version, "1.0");
  fs::remove_all(folder_ / "cache");
  PluginPaths without_probe = paths();
  without_probe.probe_program = "/nonexistent";
  PluginHost again(without_probe, Log(logger_, "plugins"));
  EXPECT_NE(again.find("sound").table, nullptr);
  EXPECT_EQ(again.find("crashes").table, nullptr) << "it was never loaded";
}

TEST_F(PluginHostTest, a_plugin_that_does_not_fit_is_refused_with_a_sentence) {
  EXPECT_TRUE(says(
      refusal("other_major"),
      fmt::format("it speaks plugin version 2.{0}, this Headrace speaks 1.{0}", HEADRACE_BACKEND_ABI_MINOR)))
      << refusal("other_major");
  EXPECT_TRUE(says(refusal("short_table"), "struct_size 64")) << refusal("short_table");
  EXPECT_TRUE(says(refusal("missing_entry"), "no entry `post`")) << refusal("missing_entry");
  EXPECT_TRUE(says(refusal("half_map"), "only one of `map` and `unmap`")) << refusal("half_map");
  EXPECT_TRUE(says(refusal("wrong_name"), "called `somebody_else`")) << refusal("wrong_name");
  EXPECT_TRUE(says(refusal("throws"), "the flux is out of phase")) << refusal("throws");
  EXPECT_TRUE(says(refusal("no_symbol"), "does not export headrace_backend_v1_table"))
      << refusal("no_symbol");
  EXPECT_TRUE(says(refusal("nowhere"), "there is no backend `nowhere`")) << refusal("nowhere");
}

TEST_F(PluginHostTest, a_plugin_that_kills_its_process_kills_its_trial_only) {
  EXPECT_TRUE(says(refusal("crashes"), "signal 9")) << refusal("crashes");
  EXPECT_TRUE(says(refusal("crashes"), "remembered")) << "the second time there is no trial";
}

TEST_F(PluginHostTest, a_plugin_that_kills_its_process_is_refused_where_sigchld_is_ignored) {
  ::signal(SIGCHLD, SIG_IGN);
  EXPECT_TRUE(says(refusal("crashes"), "how is unknown")) << refusal("crashes");
  EXPECT_TRUE(fs::is_empty(folder_ / "cache")) << "what is not known is not remembered";
  const Result<void> sound = trial_of_sound(paths().probe_program);
  EXPECT_TRUE(sound.ok()) << sound.error().message;
}

TEST_F(PluginHostTest, a_plugin_that_kills_its_process_is_refused_where_another_thread_reaps_all_children) {
  const std::jthread reaper([](const std::stop_token& stop) {
    while (!stop.stop_requested())
      if (::waitpid(-1, nullptr, 0) < 0) std::this_thread::yield();
  });
  EXPECT_TRUE(says(refusal("crashes"), "its trial in a child process")) << refusal("crashes");
  const Result<void> sound = trial_of_sound(paths().probe_program);
  EXPECT_TRUE(sound.ok()) << sound.error().message;
}

TEST_F(PluginHostTest, a_verdict_that_another_user_could_have_written_does_not_count) {
  const auto crashes_with = [&](const char* planted) {
    for (const auto& file : fs::directory_iterator(folder_ / "cache")) std::ofstream(file.path()) << planted;
    return says(refusal("crashes"), "signal 9");
  };
  ASSERT_TRUE(says(refusal("crashes"), "signal 9"));
  fs::permissions(folder_ / "cache", fs::perms::all);
  EXPECT_TRUE(crashes_with("ok\n")) << "others may write to the folder";
  fs::permissions(folder_ / "cache", fs::perms::owner_all);
  EXPECT_TRUE(crashes_with("ok")) << "a verdict that was cut off";
  for (const auto& file : fs::directory_iterator(folder_ / "cache")) {
    std::ofstream(folder_ / "elsewhere") << "ok\n";
    fs::remove(file.path());
    fs::create_symlink(folder_ / "elsewhere", file.path());
  }
  EXPECT_TRUE(says(refusal("crashes"), "signal 9")) << "a link";
}

TEST_F(PluginHostTest, find_all_lists_every_plugin_and_a_bad_one_does_not_hide_the_others) {
  PluginHost host(paths(), Log(logger_, "plugins"));
  const auto all = host.find_all().value();
  const auto has = [&](const std::string& name, bool loaded) {
    return std::any_of(all.begin(), all.end(), [&](const FoundBackend& f) {
      return f.name == name && (f.table != nullptr) == loaded;
    });
  };
  EXPECT_TRUE(has("sound", true));
  EXPECT_TRUE(has("fake", true));
  EXPECT_TRUE(has("shm", true));
  EXPECT_TRUE(has("throws", false));
}

TEST_F(PluginHostTest, a_file_that_is_no_shared_object_is_refused) {
  std::ofstream(folder_ / "headrace_backend_text.so") << "hello";
  PluginPaths p = paths();
  p.other_folders = {folder_.string()};
  PluginHost host(p, Log(logger_, "plugins"));
  EXPECT_TRUE(says(host.find("text").refusal, "text.so")) << host.find("text").refusal;
}

TEST_F(PluginHostTest, without_descriptors_a_search_is_exhausted_and_the_next_one_finds_the_backend) {
  PluginHost host(paths(), Log(logger_, "plugins"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(UniqueFd(::dup(0)).get()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const FoundBackend shm = host.find("shm");
  const auto all = host.find_all();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(shm.code, Code::exhausted);
  EXPECT_TRUE(says(shm.refusal, "ulimit -n")) << shm.refusal;
  EXPECT_EQ(all.code(), Code::exhausted);
  EXPECT_NE(host.find("shm").table, nullptr);
}

}  // namespace
}  // namespace headrace::engine
