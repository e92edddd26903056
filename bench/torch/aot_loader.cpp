// SPDX-License-Identifier: Apache-2.0
// The bare C++ loader's side of bench/compare_aot.py: what libtorch alone does, inputs unchecked.
//
//   bench_aot_loader FOLDER LENGTHxLENGTH RUNS THREADS OUTPUT
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

at::Tensor make_input(const std::string& shape) {
  std::vector<std::int64_t> lengths;
  std::istringstream parts(shape);
  for (std::string part; std::getline(parts, part, 'x');) lengths.push_back(std::stoll(part));
  at::Tensor tensor = at::zeros(lengths);
  auto* const elements = tensor.data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) elements[i] = static_cast<float>(i % 251) / 251 - 0.5F;
  return tensor;
}

}  // namespace

int main(int, char** argv) {
  const auto runs = static_cast<std::size_t>(std::stoll(argv[3]));
  const auto callers = static_cast<std::size_t>(std::stoll(argv[4]));
  const auto begin = Clock::now();
  torch::inductor::AOTIModelPackageLoader loader(argv[1], "model", /*run_single_threaded=*/callers == 1,
                                                 callers);
  const double load_us = microseconds(begin);

  const std::vector<at::Tensor> inputs{make_input(argv[2])};
  std::vector<double> samples(runs);
  std::vector<at::Tensor> outputs;
  const auto work = [&](bool noted) {
    at::init_num_threads();
    for (std::size_t i = 0; i < runs; ++i) {
      const auto start = Clock::now();
      std::vector<at::Tensor> made = loader.run(inputs);
      if (noted) {
        samples[i] = microseconds(start);
        outputs = std::move(made);
      }
    }
  };
  for (std::size_t i = 0; i < 200; ++i) loader.run(inputs);
  const auto all = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < callers; ++i) threads.emplace_back(work, false);
    work(true);
  }
  const double seconds = microseconds(all) / 1e6;
  std::sort(samples.begin(), samples.end());
  std::ofstream file(argv[5], std::ios::binary);
  for (const at::Tensor& output : outputs)
    file.write(static_cast<const char*>(output.const_data_ptr()),
               static_cast<std::streamsize>(output.nbytes()));
  std::printf("{\"load_us\": %f, \"p50_us\": %f, \"runs_per_second\": %f}\n", load_us, samples[runs / 2],
              static_cast<double>(runs * callers) / seconds);
}
