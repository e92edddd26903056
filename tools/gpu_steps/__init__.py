# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/test_gpu.py: a run with its log, its steps, and what each step does."""
