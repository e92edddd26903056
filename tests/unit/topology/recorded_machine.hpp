// SPDX-License-Identifier: Apache-2.0
// A recorded machine laid out as files under a folder of its own, which goes with the object.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace headrace::test {

class RecordedMachine {
 public:
  /// Lays out tests/fixtures/topology/<name>.sysfs; without a name the folder stays empty.
  explicit RecordedMachine(const std::string& name = "") : root_("/tmp/headrace-machine-XXXXXX") {
    if (::mkdtemp(root_.data()) == nullptr) throw std::runtime_error("mkdtemp " + root_);
    if (name.empty()) return;
    std::ifstream record(HEADRACE_TEST_DIR "/fixtures/topology/" + name + ".sysfs");
    if (!record) throw std::runtime_error("no recorded machine " + name);
    for (std::string line; std::getline(record, line);) {
      const std::size_t colon = line.find(':');
      append(line.substr(0, colon), line.substr(colon + 1));
    }
  }
  ~RecordedMachine() { std::filesystem::remove_all(root_); }
  RecordedMachine(const RecordedMachine&) = delete;
  RecordedMachine& operator=(const RecordedMachine&) = delete;

  /// Adds a line to one of its files.
  void append(const std::string& path, const std::string& line) {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path, std::ios::app) << line << "\n";
  }
  void remove(const std::string& path) { std::filesystem::remove_all(root_ + path); }
  void replace(const std::string& path, const std::string& line) {
    remove(path);
    append(path, line);
  }

  [[nodiscard]] const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace headrace::test
