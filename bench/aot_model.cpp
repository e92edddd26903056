// SPDX-License-Identifier: Apache-2.0
// Headrace's side of bench/compare_aot.py: opens a package, runs it, prints a line of JSON.
//
//   bench_aot_model PACKAGE LENGTHxLENGTH RUNS THREADS OUTPUT
#include <headrace/model.hpp>

#include <fmt/format.h>

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

template <class T>
T take(headrace::Result<T> result) {
  if (result) return std::move(result).value();
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

/// float32 [shape], the same elements as the loader's program has.
headrace::Tensor make_input(const std::string& shape) {
  std::vector<std::int64_t> lengths;
  std::istringstream parts(shape);
  for (std::string part; std::getline(parts, part, 'x');) lengths.push_back(std::stoll(part));
  headrace::Tensor tensor = take(headrace::Tensor::zeros(headrace::DType::float32, headrace::Shape(lengths)));
  std::size_t i = 0;
  for (float& element : tensor.elements<float>()) element = static_cast<float>(i++ % 251) / 251 - 0.5F;
  return tensor;
}

void write(const std::string& path, const std::vector<headrace::Tensor>& outputs) {
  std::ofstream file(path, std::ios::binary);
  for (const headrace::Tensor& output : outputs)
    file.write(static_cast<const char*>(output.data()), static_cast<std::streamsize>(output.bytes()));
}

}  // namespace

int main(int, char** argv) {
  const auto runs = static_cast<std::size_t>(std::stoll(argv[3]));
  const auto callers = static_cast<std::size_t>(std::stoll(argv[4]));
  take(headrace::model_runtime());  // libtorch is loaded before the other program's clock starts as well
  headrace::ModelOptions options;
  options.runners = callers;
  const auto begin = Clock::now();
  headrace::Model model = take(headrace::Model::open(argv[1], options));
  const double load_us = microseconds(begin);

  const headrace::Tensor input = make_input(argv[2]);
  const headrace::TensorView view = input;
  std::vector<double> samples(runs);
  std::vector<headrace::Tensor> outputs;
  const auto work = [&](bool noted) {
    std::vector<headrace::Tensor> own;
    std::vector<headrace::Tensor>& into = noted ? outputs : own;
    for (std::size_t i = 0; i < runs; ++i) {
      const auto start = Clock::now();
      if (!model.run(std::span(&view, 1), into)) std::exit(1);
      if (noted) samples[i] = microseconds(start);
    }
  };
  for (std::size_t i = 0; i < 200; ++i) take(model.run(std::span(&view, 1)));
  const auto all = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < callers; ++i) threads.emplace_back(work, false);
    work(true);
  }
  const double seconds = microseconds(all) / 1e6;
  std::sort(samples.begin(), samples.end());
  write(argv[5], outputs);
  fmt::print("{{\"load_us\": {}, \"p50_us\": {}, \"runs_per_second\": {}}}\n", load_us, samples[runs / 2],
             static_cast<double>(runs * callers) / seconds);
}
