# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/test.py: stages and their counts, GoogleTest programs, stored results, times."""
