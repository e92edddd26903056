# SPDX-License-Identifier: Apache-2.0
"""What tools/test.py is made of: stages and their counts, GoogleTest programs, stored results, times."""
