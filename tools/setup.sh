#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages that a build and the tests need: Debian packages, and a Python environment in .venv. It
# prints its steps. If its stamp is up to date, it does nothing; after an interruption it continues with the
# installed packages. HEADRACE_PYTHON names the interpreter; without it the script chooses one.
set -euo pipefail
cd "$(dirname "$0")/.."

# The build needs these.
build_packages=(
  g++ cmake ninja-build ccache pkg-config python3-dev python3-venv
  libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libmsgpack-cxx-dev libcurl4-openssl-dev libssl-dev
  libhwloc-dev libxxhash-dev libtomlplusplus-dev libminizip-dev zlib1g-dev libboost-dev mold
)
# Some tests and checks need these.
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev etcd-server iproute2
  clang-16 llvm-16 clang-format-16 libclang-rt-16-dev shellcheck
)
python_packages=("scikit-build-core>=0.10" "nanobind>=2.2" "nvidia-cuda-nvrtc-cu12==12.8.93" numpy pytest openai
  ruff==0.17.6 mypy==2.4.1 clang-tidy==22.1.0 pytest-xdist==3.8.0
  expecttest)  # torch's own tests import it
torch_package="torch==2.13.0"  # the newest version that the tests run with; a newer one may be gigabytes larger

word_every=30  # seconds: the longest time without a line while pip works

stamp=.venv/.headrace-setup
key="$(sha256sum tools/setup.sh | cut -d ' ' -f 1) ${HEADRACE_PYTHON:-}"

say() { echo "setup: $*"; }

is_done() {
  [[ -f $stamp && "$(<"$stamp")" == "$key" && -x .venv/bin/python ]] || return 1
  local tool
  for tool in g++ cmake ninja; do command -v "$tool" >/dev/null || return 1; done
}

missing_packages() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

# Prints the prefix with which apt-get runs: env for root, sudo env for other users; nothing if neither is
# possible.
privilege() {
  if [[ $(id -u) == 0 ]]; then echo env; elif command -v sudo >/dev/null; then echo "sudo env"; fi
}

install_debian_packages() {
  local missing
  mapfile -t missing < <(missing_packages "${build_packages[@]}" "${test_packages[@]}")
  if [[ ${#missing[@]} == 0 ]]; then
    say "all Debian packages are installed"
    return
  fi
  local run
  run="$(privilege)"
  if [[ -z $run ]]; then
    say "packages are missing, and their installation needs root. Run:" >&2
    echo "  apt-get update && apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  if ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then
    say "downloading the lists of packages"
    $run DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null
  fi
  # RUNLEVEL=1: the package etcd-server must not start its server; the tests start their own.
  local install
  read -ra install <<<"$run DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends"
  if ! "${install[@]}" "${missing[@]}" </dev/null; then
    say "the installation failed: finishing an interrupted one, downloading newer lists, and retrying once"
    $run DEBIAN_FRONTEND=noninteractive dpkg --configure -a </dev/null || true
    $run DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null
    "${install[@]}" "${missing[@]}" </dev/null
  fi
}

# Prints a Python >= 3.10 that can make an environment and compile an extension. Debian's own is tried first:
# its headers are in python3-dev.
find_python() {
  local candidate
  for candidate in ${HEADRACE_PYTHON:-/usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10}; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -c '
import ensurepip, os, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 10) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "there is no Python >= 3.10 with venv, pip and headers among ${HEADRACE_PYTHON:-python3, python3.13 ... python3.10}." >&2
  say "install one (Debian: python3-dev python3-venv), or name it in HEADRACE_PYTHON." >&2
  exit 1
}

# Tests whether .venv works, and whether it is of the interpreter in HEADRACE_PYTHON if that is set.
environment_fits() {
  local identity='import sys; print(sys.base_prefix, sys.version)'
  .venv/bin/python -m pip --version >/dev/null 2>&1 || return 1
  [[ -z ${HEADRACE_PYTHON:-} || "$(.venv/bin/python -c "$identity")" == "$("$1" -c "$identity")" ]]
}

# Reads pip's output and prints its progress: each package that it downloads, and a line every $word_every
# seconds.
tell_progress() {
  local line status doing="checking the installed packages" began=$SECONDS
  while true; do
    status=0
    IFS= read -r -t "$word_every" line || status=$?
    if ((status > 128)); then
      say "  still $doing, $((SECONDS - began)) s so far"
    elif ((status != 0)); then
      return 0
    elif [[ $line =~ ^[[:space:]]*(Downloading|Using cached)[[:space:]]+([^[:space:]]+)([[:space:]]\(.*\))? ]]; then
      [[ ${BASH_REMATCH[2]} != *.metadata ]] || continue
      doing="downloading ${BASH_REMATCH[2]##*/}${BASH_REMATCH[3]}"
      say "  $doing"
    elif [[ $line =~ ^Processing[[:space:]]+([^[:space:]]+) ]]; then
      doing="processing ${BASH_REMATCH[1]##*/}"
      say "  $doing"
    elif [[ $line == "Installing collected packages: "* ]]; then
      doing="unpacking ${line#*: }"
      say "  $doing"
    fi
  done
}

install_python_packages() {
  PYTHONUNBUFFERED=1 .venv/bin/python -m pip install --progress-bar off --disable-pip-version-check "$@" </dev/null | tell_progress
}

make_environment() {
  local python
  python="$(find_python)"
  # Packages of an interrupted set-up are kept, and also a torch that the user installed.
  if environment_fits "$python"; then
    say "using the existing Python environment .venv"
  else
    # `venv --clear` fails on a link whose target does not exist.
    [[ ! -L .venv || -e .venv ]] || rm .venv
    say "making the Python environment .venv with $("$python" --version) ($python)"
    "$python" -m venv --clear .venv
  fi
  say "installing into it: ${python_packages[*]}"
  install_python_packages "${python_packages[@]}"
  # A separate step, so that an interrupted download does not lose the other packages.
  if .venv/bin/python -c 'import importlib.metadata; importlib.metadata.version("torch")' 2>/dev/null; then
    say "torch is already installed"
  else
    say "installing into it: $torch_package (large: minutes)"
    install_python_packages "$torch_package"
  fi
}

if is_done; then
  say "nothing to do"
  exit 0
fi
if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  install_debian_packages
else
  say "this is not a Debian-like system: install the packages that correspond to these:"
  say "  ${build_packages[*]} ${test_packages[*]}"
  say "the build names each package that it misses"
fi
make_environment
echo "$key" >"$stamp"
say "done"
