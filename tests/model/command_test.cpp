// SPDX-License-Identifier: Apache-2.0
// The commands for models as a user runs them: exit codes, tables or JSON on stdout, errors on stderr.
#include "command/command.hpp"
#include "model/model_fixture.hpp"
#include "support/package_file.hpp"

#include <nlohmann/json.hpp>

#include <cstdlib>

namespace headrace {
namespace {

using nlohmann::json;
using test::Outcome;
using test::run_command;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::package_path;

class ModelCommand : public testing::ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    ::setenv("HEADRACE_CACHE_DIR", folder_.path().c_str(), 1);
  }
  void TearDown() override { ::unsetenv("HEADRACE_CACHE_DIR"); }
  static std::string beside(const std::string& name) {
    return std::string(HEADRACE_TEST_MODELS) + "/" + name;
  }
};

TEST_F(ModelCommand, inspect_describes_the_inputs_and_outputs_of_a_model) {
  const Outcome outcome = run_command({"inspect", package_path("mlp"), "--constants", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json said = json::parse(outcome.out);
  EXPECT_EQ(said["described_by"], "exported");
  EXPECT_EQ(
      said["inputs"],
      json::parse(
          R"([{"name": "x", "dtype": "float32", "shape": [{"name": "batch", "min": 1, "max": 64}, 256], "strides": null}])"));
  EXPECT_EQ(said["outputs"][0]["name"], "logits");
  EXPECT_EQ(said["runs_here"], true);
  EXPECT_EQ(said["constants"].size(), 4U);
  EXPECT_EQ(said["constants"][1],
            json::parse(R"({"name": "first.weight", "dtype": "float32", "shape": [512, 256]})"));
}

TEST_F(ModelCommand, infer_reads_and_writes_files_of_every_format) {
  for (const char* ending : {"npz", "safetensors", "json"}) {
    const std::string output = folder_.path() + "/out." + ending;
    const Outcome outcome =
        run_command({"infer", package_path("mlp"), "--input", beside("mlp_inputs.safetensors"), "--output",
                     output, "--runs", "3", "--warmup", "1", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json said = json::parse(outcome.out);
    EXPECT_EQ(said["runs"], 3);
    EXPECT_GT(said["latency_us"]["p99"], 0);
    EXPECT_EQ(said["outputs"][1]["shape"], (json{4, 512}));
    // The written file equals the results of torch, and verify reads every format that infer writes.
    const Outcome same =
        run_command({"verify", package_path("mlp"), "--input", beside("mlp_inputs.safetensors"), "--expect",
                     output, "--rtol", "0", "--atol", "0"});
    EXPECT_EQ(same.code, 0) << same.err << same.out;
  }
}

TEST_F(ModelCommand, an_npy_file_is_the_only_input_or_the_only_output) {
  const std::string in = folder_.path() + "/in.json", out = folder_.path() + "/out.npy";
  json x;
  for (int i = 0; i < 1024; ++i) x["anything"].push_back(i + 0.5);
  testing::write_file(in, x.dump());
  const Outcome unnamed = run_command({"infer", package_path("add"), "-i", in, "-o", out});
  EXPECT_EQ(unnamed.code, 1) << "names of other files count";
  EXPECT_THAT(unnamed.err, HasSubstr("the model has no input anything"));
  const std::string named = "arg0_1=" + in;
  const Outcome outcome = run_command({"infer", package_path("add"), "-i", named, "-o", out});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(run_command({"verify", package_path("add"), "-i", named, "-e", out}).code, 0);
  const Outcome wrong = run_command({"verify", package_path("add"), "-i", out, "-e", out, "--json"});
  EXPECT_EQ(wrong.code, 1);
  const json said = json::parse(wrong.out);
  EXPECT_EQ(said["passed"], false);
  EXPECT_EQ(said["outputs"][0]["different"], 1024);
  EXPECT_EQ(said["outputs"][0]["largest_difference"], 1);
  EXPECT_THAT(wrong.err, HasSubstr("1 of 1 outputs"));
}

TEST_F(ModelCommand, verify_compares_with_the_results_of_torch) {
  const Outcome outcome =
      run_command({"verify", package_path("mlp"), "--input", beside("mlp_inputs.safetensors"), "--expect",
                   beside("mlp_outputs.safetensors"), "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(json::parse(outcome.out)["passed"], true);
  const Outcome other =
      run_command({"verify", package_path("mlp"), "--input", beside("mlp_inputs.safetensors"), "--expect",
                   beside("mlp_inputs.safetensors"), "--json"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out, HasSubstr("has no tensor of that name: it has x"));
}

TEST_F(ModelCommand, verify_names_tensors_that_the_model_does_not_output) {
  const std::string file = folder_.path() + "/out.json";
  const std::string inputs = beside("mlp_inputs.safetensors");
  ASSERT_EQ(run_command({"infer", package_path("mlp"), "-i", inputs, "-o", file}).code, 0);
  json expected = json::parse(std::ifstream(file));
  expected["zz"] = json{1};
  testing::write_file(file, expected.dump());
  const Outcome outcome = run_command({"verify", package_path("mlp"), "-i", inputs, "-e", file, "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["not_compared"], json{"zz"});
  EXPECT_THAT(outcome.err, HasSubstr("not compared, because the model has no output of that name: zz of "));
}

TEST_F(ModelCommand, a_tolerance_that_is_no_number_is_a_wrong_command_line) {
  for (const char* option : {"--rtol", "--atol"}) {
    for (const char* value : {"nan", "-1", "inf"}) {
      const Outcome outcome = run_command({"verify", package_path("mlp"), "-e", "x.npz", option, value});
      EXPECT_EQ(outcome.code, 2);
      EXPECT_THAT(outcome.err, HasSubstr("is not a number from 0 to 1"));
    }
  }
}

TEST_F(ModelCommand, infer_keeps_an_existing_output_unless_it_is_forced) {
  const std::string output = folder_.path() + "/out.npz";
  const auto infer_to = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"infer", package_path("mlp"), "-g", "-o", output};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  };
  testing::write_file(output, "somebody's");
  const Outcome refused = infer_to({});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.out, IsEmpty());
  EXPECT_THAT(refused.err, HasSubstr("exists: --force replaces it, or choose another"));
  EXPECT_EQ(std::filesystem::file_size(output), 10U);
  EXPECT_EQ(infer_to({"--force"}).code, 0);
  EXPECT_GT(std::filesystem::file_size(output), 10U);

  std::filesystem::remove(output);
  std::filesystem::create_symlink("nowhere", output);
  EXPECT_EQ(infer_to({}).code, 1);
  EXPECT_TRUE(std::filesystem::is_symlink(output));
}

TEST_F(ModelCommand, infer_generates_inputs_and_runs_on_several_threads) {
  const Outcome outcome = run_command({"infer", package_path("mlp"), "--generate", "--dim", "batch=3",
                                       "--runs", "5", "--threads", "2", "--torch-threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json said = json::parse(outcome.out);
  EXPECT_EQ(said["runs"], 10);
  EXPECT_EQ(said["outputs"][0]["shape"], (json{3, 10}));
  const Outcome again =
      run_command({"infer", package_path("mlp"), "--generate", "--dim", "batch=3", "--json"});
  EXPECT_EQ(json::parse(again.out)["outputs"][0]["mean"], said["outputs"][0]["mean"])
      << "the same seed gives the same inputs";
}

TEST_F(ModelCommand, runs_per_second_count_the_measured_runs_only) {
  const auto infer = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"infer", package_path("mlp"), "--generate", "--json"});
    const Outcome outcome = run_command(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json said = infer({"--runs", "2", "--warmup", "200"});
  const double seconds_a_run = said["latency_us"]["mean"].get<double>() / 1e6;
  EXPECT_GT(said["runs_per_second"].get<double>() * seconds_a_run, 0.1)
      << "the 200 warm-up runs must not count";
  EXPECT_EQ(infer({})["warmup"], 0);
  EXPECT_EQ(infer({"--runs", "2"})["warmup"], 1);
}

TEST_F(ModelCommand, errors_are_printed_on_stderr_with_advice) {
  const auto complaint = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_command(arguments);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.out, IsEmpty());
    std::string text = outcome.err;
    for (std::size_t at = 0; (at = text.find("\n  ", at)) != std::string::npos;) text.replace(at, 3, " ");
    return text;
  };
  EXPECT_THAT(complaint({"infer", package_path("mlp")}),
              HasSubstr("input x (float32 [batch 1..64, 256]) is missing"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--dim", "batch=65"}),
              HasSubstr("at most 64, and is 65"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--dim", "batch"}), HasSubstr("--dim batch=4"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--dim", "batch=999999999999"}),
              HasSubstr("--dim batch=999999999999: in input x it must be at most 64"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--dim", "batch=0"}),
              HasSubstr("at least 1, and is 0"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--dim", "nope=4"}),
              HasSubstr("--dim nope=4: no input has a dimension of that name; there are: batch"));
  EXPECT_THAT(
      complaint({"infer", package_path("mlp"), "-i", beside("mlp_inputs.safetensors"), "--dim", "batch=4"}),
      HasSubstr("--dim batch=4: it is for generated inputs: add --generate"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--dim", "batch=2", "--dim", "batch=3"}),
              HasSubstr("--dim batch is given twice"));
  testing::write_file(folder_.path() + "/y.json", R"({"y": [1]})");
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-i", "y=" + folder_.path() + "/y.json"}),
              HasSubstr("the model has no input y: it takes x"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-i", folder_.path() + "/y.json"}),
              HasSubstr("the model has no input y: it takes x; --input NAME=FILE"))
      << "the only tensor of the file has a name";
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-i", folder_.path() + "/y.json", "--option",
                         "model.library=/nowhere.so"}),
              HasSubstr("the model has no input y"))
      << "said before torch is loaded";
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-i", "nothing.npy"}), HasSubstr("nothing.npy"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-i", "x.txt"}),
              HasSubstr("must end in .npy, .npz, .safetensors or .json"));
  EXPECT_THAT(complaint({"infer", package_path("mixed"), "-g", "-i", beside("mlp_inputs.safetensors")}),
              HasSubstr("the model has no input x: it takes a, bias, m, ids"));
  EXPECT_THAT(complaint({"infer", "nothing.pt2", "-g"}), HasSubstr("open nothing.pt2: no such file"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--device", "cuda"}),
              HasSubstr("was compiled for cpu, and cuda was requested"));
  EXPECT_THAT(complaint({"infer", package_path("mlp"), "-g", "--name", "other"}),
              HasSubstr("has no model \"other\": it has model"));

  testing::write_file(folder_.path() + "/text.pt2", "I am a text file");
  EXPECT_THAT(complaint({"inspect", folder_.path() + "/text.pt2"}), HasSubstr("it is not a package"));
  std::ifstream whole(package_path("add"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(whole)), {});
  testing::write_file(folder_.path() + "/cut.pt2", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(complaint({"infer", folder_.path() + "/cut.pt2", "-g"}), HasSubstr("cut off"));
}

TEST_F(ModelCommand, doctor_tries_the_device_and_the_model) {
  const Outcome outcome = run_command({"doctor", "--device", "cpu", "--model", package_path("mlp")});
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const json said = json::parse(outcome.out);
  EXPECT_EQ(said["works"], true);
  EXPECT_EQ(said["checks"].size(), 12U);
  EXPECT_EQ(said["model"]["outputs"][0]["not_finite"], 0);
  EXPECT_EQ(said["torch"]["built_for"], said["torch"]["found"]);

  testing::PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_MACHINE": "riscv64"})";
  const Outcome refused = run_command({"doctor", "--model", testing::write_package(folder_.path(), text)});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(json::parse(refused.out)["works"], false);
  EXPECT_THAT(refused.out, HasSubstr("compiled for riscv64"));
}

TEST_F(ModelCommand, doctor_reports_a_missing_device_once) {
  const Outcome outcome = run_command({"doctor", "--device", "cuda:99"});
  EXPECT_EQ(outcome.code, 1);
  const json said = json::parse(outcome.out);
  EXPECT_EQ(said["works"], false);
  EXPECT_FALSE(said.contains("checks"));
  EXPECT_THAT(said["reason"].get<std::string>(),
              AllOf(HasSubstr("torch " + said["torch"]["found"].get<std::string>()),
                    ContainsRegex("is built for CPUs only|finds [0-9]+ GPU")));
  EXPECT_EQ(outcome.err, "headrace: " + said["reason"].get<std::string>() + "\n");
}

TEST_F(ModelCommand, debug_prints_every_tensor_on_stderr) {
  ::setenv("HEADRACE_MODEL_DEBUG", "1", 1);
  const Outcome outcome =
      run_command({"infer", package_path("mlp"), "--generate", "--dim", "batch=2", "--json"});
  ::unsetenv("HEADRACE_MODEL_DEBUG");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("input 0 (x): float32 [2, 256] strides [256, 1] on cpu: least "));
  EXPECT_THAT(outcome.err, HasSubstr("output 1 (hidden): float32 [2, 512]"));
  EXPECT_TRUE(json::accept(outcome.out));
}

TEST_F(ModelCommand, without_json_the_output_is_a_table) {
  const auto said = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_command(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_LE(test::widest_line(outcome.out), 120U) << outcome.out;
    EXPECT_FALSE(json::accept(outcome.out));
    return outcome.out;
  };
  EXPECT_THAT(said({"inspect", package_path("mlp"), "--constants"}),
              AllOf(ContainsRegex("\ninput +x +float32 +\\[batch 1..64, 256\\]\n"),
                    ContainsRegex("\noutput +logits +float32 +\\[batch 1..64, 10\\]\n"),
                    ContainsRegex("\nconstant +first.weight +float32 +\\[512, 256\\]\n"),
                    EndsWith("\nIt runs on this machine.\n")));
  EXPECT_THAT(said({"infer", package_path("mlp"), "-g", "--dim", "batch=1", "--runs", "3"}),
              AllOf(ContainsRegex("\nlogits +float32 +\\[1, 10\\] "), ContainsRegex("\nload +[0-9.]+ "),
                    ContainsRegex("\nrun, mean +[0-9.]+ (us|ms|s) +of 3 runs")));
  EXPECT_THAT(said({"verify", package_path("mlp"), "--input", beside("mlp_inputs.safetensors"), "--expect",
                    beside("mlp_outputs.safetensors")}),
              ContainsRegex("\nlargest difference: [0-9.e-]+, as expected \\(allowed: [^\n]+\\)\n$"));
}

TEST_F(ModelCommand, help_has_examples) {
  for (const char* command : {"infer", "inspect", "verify"}) {
    const Outcome outcome = run_command({command, "--help"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Examples:\n  headrace "));
    EXPECT_LE(test::widest_line(outcome.out), 120U) << outcome.out;
    for (const char* word : {"TEXT", "UINT", "FLOAT", ":INT", "BOOLEAN", "{", " in ["})
      EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr(word))) << command;
  }
}

}  // namespace
}  // namespace headrace
