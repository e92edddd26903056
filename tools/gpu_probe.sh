#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the GPU probe on this machine, from a folder with bench_gpu_probe, libheadrace_kernels.so,
# torch_segments.py and this script. `tools/gpu_probe.sh --collect FOLDER BUILD` copies them from a build into
# the folder. `--long-pages` runs only the probe of long pages.
set -eu

collect() {
  mkdir -p "$1"
  here=$(dirname "$0")
  cp "$2/bench/bench_gpu_probe" "$2/lib/libheadrace_kernels.so" "$here/../bench/gpu/torch_segments.py" "$0" "$1"
  strip --strip-debug "$1/bench_gpu_probe" "$1/libheadrace_kernels.so"
  ls -l "$1"
}

if [ "${1:-}" = --collect ]; then
  collect "$2" "$3"
  exit
fi

folder=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-.}
if [ "${1:-}" = --long-pages ]; then # long pages over every path; takes less than a minute
  timeout 100 "$folder/bench_gpu_probe" --long-pages >"$out/gpu_probe_long.jsonl"
  exit
fi
nvidia-smi topo -m || true
timeout 60 "$folder/bench_gpu_probe" --correct --quick --pid-namespace >"$out/gpu_probe_pid_namespace.jsonl" 2>&1 || true
tail -n 4 "$out/gpu_probe_pid_namespace.jsonl"
timeout 270 "$folder/bench_gpu_probe" "$@" >"$out/gpu_probe.jsonl" 2>"$out/gpu_probe.err" || echo "the probe ended with exit code $?"
tail -n 5 "$out/gpu_probe.err"
timeout 100 python3 "$folder/torch_segments.py" >"$out/torch_segments.jsonl" 2>&1 || true
cat "$out/torch_segments.jsonl"
grep -E '"failed": true|single|correct|end|import|prepared|bulk' "$out/gpu_probe.jsonl" || true
